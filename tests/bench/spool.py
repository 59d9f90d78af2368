"""Reports into an agent's spool on the disk, as they come from a trainer that prints: a chunk, its reports, a mark."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from relay_agent.spool.lane import Mark
from relay_agent.spool.spool import Spool
from relaytui.wire.reports import Step
from tests.bench.rounds import Bench, Figures, Setting, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured

REPORTS = 50_000
CHUNK = 50
"""Reports of one read of the trainer's output."""


def run(setting: Setting) -> list[Row]:
    samples = interleave({"bare file": lambda: bare(setting.folder), "relay": lambda: relay(setting.folder)}, setting)
    yardstick = Yardstick("JSON lines into a file", samples.of("bare file", "per_s"))
    return [measured("spool", "reports/s", samples.of("relay", "per_s"), yardstick, Goal(at_least=50_000))]


def step(number: int) -> Step:
    return Step(1.0, number, REPORTS, {"loss": 1.5, "lr": 0.001}, 20.0)


def bare(folder: Path) -> Figures:
    path = folder / "bare"
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for first in range(0, REPORTS, CHUNK):
            lines = [
                {"type": "step", "t": 1.0, "step": number, "total": REPORTS, "metrics": {"loss": 1.5, "lr": 0.001}}
                for number in range(first, first + CHUNK)
            ]
            file.write("\n".join(map(json.dumps, lines)).encode())
    took = time.perf_counter() - began
    path.unlink()
    return {"per_s": REPORTS / took}


def relay(folder: Path) -> Figures:
    path = folder / "spool"
    path.mkdir()
    spool = Spool("bench", 1, "t" * 32, path)
    began = time.perf_counter()
    for first in range(0, REPORTS, CHUNK):
        for number in range(first, first + CHUNK):
            spool.telemetry.append(step(number))
        spool.telemetry.note(Mark(first * 80, first + 1))
    took = time.perf_counter() - began
    spool.close()
    shutil.rmtree(path)
    return {"per_s": REPORTS / took}


BENCH = Bench("spool", "reports a second into an agent's spool, no commander in sight", ("spool",), run)
