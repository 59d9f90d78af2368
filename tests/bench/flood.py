"""What it costs a trainer to print much: the same work and output under an agent, and into a plain file."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.bench.children import environment
from tests.bench.commander_process import Commander, agent, commander
from tests.bench.rounds import Bench, Figures, Setting, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured

RATE = 50
"""Megabytes a second."""
SECONDS = 4
ROUNDS = 3
PATIENCE = 120.0
PRINTER = """
import os, sys, time
rate, seconds, result = float(sys.argv[1]) * 1e6, float(sys.argv[2]), sys.argv[3]
chunk = b"".join(b"step %d loss 1.5 and what else a trainer has to say about it\\n" % n for n in range(1000))
began = time.monotonic()
written = 0
while written < rate * seconds:
    view = memoryview(chunk)
    while view:
        view = view[os.write(1, view):]
    written += len(chunk)
    ahead = began + written / rate - time.monotonic()
    if ahead > 0:
        time.sleep(ahead)
with open(result, "w") as file:
    file.write(str(time.monotonic() - began))
"""


def run(setting: Setting) -> list[Row]:
    setting = replace(setting, rounds=min(setting.rounds, ROUNDS))
    numbers = itertools.count(1)
    script = setting.folder / "printer.py"
    script.write_text(PRINTER)
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(commander(setting.folder))
        samples = interleave(
            {
                "plain file": lambda: plain(setting.folder, script),
                "relay": lambda: relay(setting.folder, serving, script, next(numbers)),
            },
            setting,
        )
    bare = Yardstick("the same into a file", samples.of("plain file", "seconds"))
    return [measured("flood", "s", samples.of("relay", "seconds"), bare, Goal(ratio_at_most=1.05))]


def printer(script: Path, result: Path) -> list[str]:
    return [sys.executable, "-I", str(script), str(RATE), str(SECONDS), str(result)]


def plain(folder: Path, script: Path) -> Figures:
    result = folder / "plain.seconds"
    with (folder / "plain.log").open("wb") as log:
        subprocess.run(printer(script, result), stdout=log, env=environment(), check=True, timeout=PATIENCE)
    return {"seconds": float(result.read_text())}


def relay(folder: Path, serving: Commander, script: Path, number: int) -> Figures:
    result = folder / f"relay-{number}.seconds"
    with agent(serving, folder, f"flood-{number}", printer(script, result)) as process:
        process.wait(PATIENCE)
    return {"seconds": float(result.read_text())}


BENCH = Bench("flood", f"a trainer that prints {RATE} MB/s for {SECONDS} s, under an agent", ("flood",), run)
