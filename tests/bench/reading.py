"""How fast a trainer's lines are read and understood: a printer's pipe into the agent's reader, and into `tee`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.children import REPOSITORY, BenchError, environment, module
from tests.bench.rounds import Bench, Figures, Setting, Skipped, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured

COUNT = 150_000
LINE = 100
"""Bytes."""
PATIENCE = 120.0
PRINTER = Path(__file__).with_name("bare") / "printer.py"


def run(setting: Setting) -> list[Row]:
    tee = shutil.which("tee")
    if tee is None:
        raise Skipped("there is no tee here")
    samples = interleave(
        {
            "tee": lambda: through(setting.folder, [tee, str(setting.folder / "tee.log")], quiet=True),
            "relay": lambda: through(setting.folder, module("bare.listener", str(setting.folder / "relay.log"))),
        },
        setting,
    )
    bare = Yardstick("tee file", samples.of("tee", "mb_per_s"))
    return [measured("read", "MB/s", samples.of("relay", "mb_per_s"), bare, Goal(ratio_at_least=0.6))]


def printer(count: int, rate: float, result: Path, *how: str) -> list[str]:
    return [sys.executable, "-I", str(PRINTER), str(count), str(rate), str(result), *how]


def through(folder: Path, reader: list[str], quiet: bool = False, count: int = COUNT, rate: float = 0.0) -> Figures:
    """From the first line printed to when who reads them is through: who is `quiet` ends then, who is not says when."""
    result = folder / "printed.json"
    out = subprocess.DEVNULL if quiet else subprocess.PIPE
    read, write = os.pipe()
    with subprocess.Popen(reader, stdin=read, stdout=out, env=environment(), cwd=REPOSITORY) as reading:
        os.close(read)
        try:
            if reading.stdout is not None:
                reading.stdout.readline()  # its start is no part of it
            subprocess.run(printer(count, rate, result), stdout=write, env=environment(), check=True, timeout=PATIENCE)
        finally:
            os.close(write)
        said, _ = reading.communicate(timeout=PATIENCE)
        ended = time.time()
    if reading.returncode != 0:
        raise BenchError(f"{reader[0]} ended with {reading.returncode}")
    if not quiet:
        told = json.loads(said)
        ended = told.pop("ended")
        if told != {"bytes": COUNT * LINE, "lines": COUNT, "steps": COUNT // 10}:
            raise BenchError(f"of {COUNT} lines, a tenth of them steps, it read {told}")
    return {"mb_per_s": count * LINE / 1e6 / (ended - json.loads(result.read_text())["began"])}


BENCH = Bench("read", f"{LINE}-byte lines, each a write, read and understood: lines, steps, log", ("read",), run)
