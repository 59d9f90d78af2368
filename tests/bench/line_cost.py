"""What it costs to print a line under an agent: the trainer, in its write; the agent, in processor time."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import psutil

from tests.bench.children import BenchError, Child, environment
from tests.bench.commander_process import Commander, agent, commander
from tests.bench.reading import printer, through
from tests.bench.rounds import Figures, Setting, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured
from tests.bench.subscriber import subscribed

ROWS = ("line.cost", "line.lone", "line.slept", "line.followed", "line.cpu")
WORK = "work"
"""How a trainer spends its time between two lines. One that sleeps pays for waking up in the next thing that it does,
whatever that is."""
LINES, RATE = 1_000, 200
BURST = 50_000
"""Lines in a row, several times what a pipe holds: whoever takes them has to keep up."""
SLOW = 10
"""Lines a second of the trainer whose agent's processor time is measured."""
SETTLED, SECONDS = 4.0, 15.0
"""Before that is measured, and for how long."""
ROUNDS = 3
PATIENCE = 60.0


def run(setting: Setting) -> list[Row]:
    setting = replace(setting, rounds=min(setting.rounds, ROUNDS))
    numbers = itertools.count(1)
    rows: list[Row] = []
    with commander(setting.folder) as serving:
        if setting.wants("line.cost"):
            burst = interleave(
                {
                    "cat": lambda: piped(setting.folder, BURST, 0.0),
                    "relay": lambda: printed(setting.folder, serving, f"cost-{next(numbers)}", BURST, 0.0),
                },
                setting,
            )
            cat = Yardstick("into a pipe to cat", burst.of("cat", "mean_us"))
            rows.append(measured("line.cost", "us", burst.of("relay", "mean_us"), cat, Goal(at_most=10)))
        if setting.wants("line.lone"):
            worked = interleave(
                {
                    "nothing": lambda: thrown_away(setting.folder, WORK),
                    "relay": lambda: printed(setting.folder, serving, f"cost-{next(numbers)}", LINES, RATE, WORK),
                },
                setting,
            )
            nothing = Yardstick("into /dev/null", worked.of("nothing", "us"))
            rows.append(measured("line.lone", "us", worked.of("relay", "us"), nothing))
        if setting.wants("line.slept", "line.followed"):
            slept = interleave(
                {
                    "nothing": lambda: thrown_away(setting.folder),
                    "cat": lambda: piped(setting.folder),
                    "relay": lambda: printed(setting.folder, serving, f"cost-{next(numbers)}"),
                    "followed": lambda: asyncio.run(followed(setting.folder, serving, f"cost-{next(numbers)}")),
                },
                setting,
            )
            nothing = Yardstick("into /dev/null", slept.of("nothing", "us"))
            rows.append(measured("line.slept", "us", slept.of("relay", "us"), nothing))
            cat = Yardstick("into a pipe to cat", slept.of("cat", "us"))
            rows.append(measured("line.followed", "us", slept.of("followed", "us"), cat))
        if setting.wants("line.cpu"):
            used = interleave({"relay": lambda: busy(setting.folder, serving, f"cpu-{next(numbers)}")}, setting)
            rows.append(measured("line.cpu", "% of a core", used.of("relay", "percent"), None, Goal(at_most=1)))
    return rows


def thrown_away(folder: Path, *how: str) -> Figures:
    """What the write costs by itself."""
    result = folder / "printed.json"
    subprocess.run(
        printer(LINES, RATE, result, *how), stdout=subprocess.DEVNULL, env=environment(), check=True, timeout=PATIENCE
    )
    return cost(result)


def piped(folder: Path, count: int = LINES, rate: float = RATE) -> Figures:
    through(folder, ["cat"], quiet=True, count=count, rate=rate)
    return cost(folder / "printed.json")


def printed(
    folder: Path, serving: Commander, run_id: str, count: int = LINES, rate: float = RATE, *how: str
) -> Figures:
    result = folder / f"{run_id}.json"
    with agent(serving, folder, run_id, printer(count, rate, result, *how), RETRIES="0") as process:
        process.wait(PATIENCE)
    return cost(result)


async def followed(folder: Path, serving: Commander, run_id: str) -> Figures:
    """While somebody looks at the run's log, so that each line is wanted at once."""
    async with subscribed(serving, lambda message: None):
        return await asyncio.to_thread(printed, folder, serving, run_id)


def cost(result: Path) -> Figures:
    told = json.loads(result.read_text())
    return {name: float(told[name]) for name in ("us", "mean_us")}


def busy(folder: Path, serving: Commander, run_id: str) -> Figures:
    """Of agent and guardian together, while the trainer prints."""
    count = int(SLOW * (SETTLED + SECONDS + 10))
    with agent(serving, folder, run_id, printer(count, SLOW, folder / f"{run_id}.json"), RETRIES="0") as process:
        guardian = first_child(process)
        time.sleep(SETTLED)
        before, began = processor(process.pid) + processor(guardian), time.monotonic()
        time.sleep(SECONDS)
        used, took = processor(process.pid) + processor(guardian) - before, time.monotonic() - began
    return {"percent": used / took * 100}


def first_child(process: Child) -> int:
    until = time.monotonic() + PATIENCE
    while not (children := psutil.Process(process.pid).children()):
        if time.monotonic() > until:
            raise BenchError("the agent started no guardian")
        time.sleep(0.05)
    return children[0].pid


def processor(pid: int) -> float:
    """Seconds of it used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
