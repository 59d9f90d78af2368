"""Resident memory: an agent while its trainer trains, its guardian, and a commander that serves three agents."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import psutil

from relaytui.wire.feed import Lines, ServerFeed
from tests.bench.children import BenchError, child, resident
from tests.bench.commander_process import agent, commander
from tests.bench.line import subscribed
from tests.bench.rounds import Bench, Figures, Setting, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured

AGENTS = 3
RATE = 20
LINES = 80
"""Of each trainer, until memory is read: four seconds of training."""
PATIENCE = 60.0
ROUNDS = 3
"""At most: memory hardly differs from round to round."""
MB = 1e6
IMPORTS = "import asyncio, aiohttp, orjson, sys; print('{}', flush=True); sys.stdin.read()"


def run(setting: Setting) -> list[Row]:
    setting = replace(setting, rounds=min(setting.rounds, ROUNDS))
    numbers = itertools.count(1)

    def relay() -> Figures:
        folder = setting.folder / f"round-{next(numbers)}"
        folder.mkdir()
        return asyncio.run(training(folder))

    samples = interleave({"bare imports": lambda: imports(setting.folder), "relay": relay}, setting)
    bare = Yardstick("python with asyncio, aiohttp, orjson", samples.of("bare imports", "mb"))
    return [
        measured("memory.agent", "MB", samples.of("relay", "agent_mb"), bare, Goal(at_most=45)),
        measured("memory.guardian", "MB", samples.of("relay", "guardian_mb"), bare),
        measured("memory.commander", "MB", samples.of("relay", "commander_mb"), bare, Goal(at_most=60)),
    ]


def imports(folder: Path) -> Figures:
    """Python with the imports alone, waiting."""
    with child("bare imports", [sys.executable, "-c", IMPORTS], folder) as process:
        process.answer(PATIENCE)
        return {"mb": resident(process.pid) / MB}


async def training(folder: Path) -> Figures:
    """Commander and agents, read once every trainer has printed LINES lines that reached a subscriber."""
    seen: Counter[str] = Counter()
    enough = asyncio.Event()
    runs = [f"memory-{number}" for number in range(1, AGENTS + 1)]

    def received(message: ServerFeed) -> None:
        if isinstance(message, Lines):
            seen[message.run_id] += len(message.lines)
            if all(seen[run_id] >= LINES for run_id in runs):
                enough.set()

    trainer = [sys.executable, "-I", str(Path(__file__).with_name("trainer.py")), "100000", str(RATE)]
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(commander(folder))
        async with subscribed(serving, received):
            agents = [stack.enter_context(agent(serving, folder, run_id, trainer)) for run_id in runs]
            try:
                await asyncio.wait_for(enough.wait(), PATIENCE)
            except TimeoutError:
                raise BenchError(f"lines seen of each run in {PATIENCE:.0f} s: {dict(seen)}") from None
            return {
                "agent_mb": max(resident(process.pid) for process in agents) / MB,
                "guardian_mb": max(resident(guardian(process.pid)) for process in agents) / MB,
                "commander_mb": resident(serving.process.pid) / MB,
            }


def guardian(agent_pid: int) -> int:
    """The process between agent and trainer: the agent's only child."""
    children = psutil.Process(agent_pid).children()
    if len(children) != 1:
        raise BenchError(f"the agent has {len(children)} child processes, not one guardian")
    return children[0].pid


BENCH = Bench(
    "memory",
    "resident memory of an agent that trains, its guardian, and a commander with three agents",
    ("memory.agent", "memory.guardian", "memory.commander"),
    run,
)
