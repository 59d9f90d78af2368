"""An agent is killed and started again: from the kill to the next line of its trainer in a feed subscriber's hands."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from relaytui.wire.feed import Lines, ServerFeed
from tests.bench.children import BenchError
from tests.bench.commander_process import Commander, agent, commander
from tests.bench.line import ended, subscribed
from tests.bench.rounds import Bench, Figures, Setting, interleave
from tests.bench.rows import Goal, Row, measured

RATE, COUNT, KILL_AT = 100, 600, 150
PATIENCE = 60.0
ROUNDS = 3


def run(setting: Setting) -> list[Row]:
    setting = replace(setting, rounds=min(setting.rounds, ROUNDS))
    numbers = itertools.count(1)
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(commander(setting.folder))
        samples = interleave(
            {"relay": lambda: asyncio.run(taken_over(setting.folder, serving, f"takeover-{next(numbers)}"))}, setting
        )
    return [
        measured("takeover", "s", samples.of("relay", "seconds"), None, Goal(at_most=10)),
        measured("takeover.lost", "lines", samples.of("relay", "lost"), None, Goal(at_most=0)),
    ]


async def taken_over(folder: Path, serving: Commander, run_id: str) -> Figures:
    seen: dict[int, float] = {}
    there, complete = asyncio.Event(), asyncio.Event()

    def received(message: ServerFeed) -> None:
        if not (isinstance(message, Lines) and message.run_id == run_id):
            return
        now = time.monotonic()
        for number, line in enumerate(message.lines, message.n):
            if line.startswith("step "):
                seen.setdefault(number, now)
        if len(seen) >= KILL_AT:
            there.set()
        if len(seen) == COUNT:
            complete.set()

    trainer = [sys.executable, "-I", str(Path(__file__).with_name("trainer.py")), str(COUNT), str(RATE)]
    async with subscribed(serving, received):
        with agent(serving, folder, run_id, trainer) as first:
            await wait(there, "the first lines")
            os.kill(first.pid, signal.SIGKILL)
            killed = time.monotonic()
        with agent(serving, folder, run_id, trainer) as second:
            await wait(complete, "every line")
            await ended(second)
    return {"seconds": min(at for at in seen.values() if at > killed) - killed, "lost": COUNT - len(seen)}


async def wait(event: asyncio.Event, what: str) -> None:
    try:
        await asyncio.wait_for(event.wait(), PATIENCE)
    except TimeoutError:
        raise BenchError(f"{what}: not seen in {PATIENCE:.0f} s") from None


BENCH = Bench(
    "takeover",
    f"an agent killed and started again, at {RATE} lines a second: kill → next line at a subscriber",
    ("takeover", "takeover.lost"),
    run,
)
