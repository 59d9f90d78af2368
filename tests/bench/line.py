"""From a line that a trainer prints to that line in a feed subscriber's hands: trainer → agent → commander → feed."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import aiohttp

from relaytui.wire.feed import Lines, ServerFeed
from tests.bench import line_cost
from tests.bench.children import BenchError, Child, child, module
from tests.bench.commander_process import Commander, agent, commander
from tests.bench.rounds import Bench, Figures, Setting, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured, percentile
from tests.bench.subscriber import subscribed

RATE = 200
COUNT = 600
WARM = 100
"""Lines at the start that are not counted: the programs are still starting."""
READY = 30.0
PATIENCE = 60.0
_STAMP = re.compile(r"step (\d+)/\d+ .* t=(\d+\.\d+)$")


def trainer() -> list[str]:
    return [sys.executable, "-I", str(Path(__file__).with_name("trainer.py")), str(COUNT), str(RATE)]


class Arrivals:
    """Lines as they come: seconds since each was printed. Both ends read one clock, that of this machine."""

    def __init__(self) -> None:
        self._took: dict[int, float] = {}
        self.complete = asyncio.Event()

    def line(self, text: str, now: float) -> None:
        found = _STAMP.search(text)
        if found is None:
            return
        self._took.setdefault(int(found[1]), now - float(found[2]))
        if len(self._took) == COUNT:
            self.complete.set()

    def figures(self) -> Figures:
        counted = [took for step, took in self._took.items() if step > WARM]
        return {"p50_ms": percentile(counted, 0.5) * 1e3, "p99_ms": percentile(counted, 0.99) * 1e3}

    async def all_arrived(self, whose: str) -> None:
        try:
            await asyncio.wait_for(self.complete.wait(), PATIENCE)
        except TimeoutError:
            raise BenchError(f"{whose}: {len(self._took)} of {COUNT} lines arrived in {PATIENCE:.0f} s") from None


def run(setting: Setting) -> list[Row]:
    rows = on_the_way(setting) if setting.wants("line.p50", "line.p99") else []
    if setting.wants(*line_cost.ROWS):
        folder = setting.folder / "cost"
        folder.mkdir()
        rows += line_cost.run(replace(setting, folder=folder))
    return rows


def on_the_way(setting: Setting) -> list[Row]:
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(commander(setting.folder))
        relay = stack.enter_context(child("bare relay", module("bare.relay"), setting.folder))
        port = int(relay.answer(READY)["port"])
        numbers = iter(range(1, 1_000))
        samples = interleave(
            {
                "bare path": lambda: asyncio.run(bare_path(setting.folder, port)),
                "relay": lambda: asyncio.run(relay_path(setting.folder, serving, f"line-{next(numbers)}")),
            },
            setting,
        )
    return [
        measured(
            f"line.{share}",
            "ms",
            samples.of("relay", f"{share}_ms"),
            Yardstick("bare path", samples.of("bare path", f"{share}_ms")),
            goal,
        )
        for share, goal in (("p50", Goal(ratio_at_most=5)), ("p99", Goal(at_most=25)))
    ]


async def bare_path(folder: Path, port: int) -> Figures:
    arrivals = Arrivals()
    rest = ""

    async with aiohttp.ClientSession() as session, session.ws_connect(f"ws://127.0.0.1:{port}/out") as socket:
        with child("bare reader", module("bare.reader", str(port), *trainer()), folder):
            listening = asyncio.create_task(arrivals.all_arrived("bare path"))
            while not listening.done():
                receiving = asyncio.ensure_future(socket.receive())
                await asyncio.wait({receiving, listening}, return_when=asyncio.FIRST_COMPLETED)
                if not receiving.done():
                    receiving.cancel()
                    break
                now = time.time()
                frame = receiving.result()
                if frame.type is not aiohttp.WSMsgType.TEXT:
                    raise BenchError(f"bare path: the socket ended with {frame.type}")
                *lines, rest = (rest + frame.data).split("\n")
                for line in lines:
                    arrivals.line(line, now)
            await listening
    return arrivals.figures()


async def relay_path(folder: Path, serving: Commander, run_id: str) -> Figures:
    arrivals = Arrivals()

    def received(message: ServerFeed) -> None:
        now = time.time()
        if isinstance(message, Lines) and message.run_id == run_id:
            for line in message.lines:
                arrivals.line(line, now)

    async with subscribed(serving, received):
        with agent(serving, folder, run_id, trainer()) as process:
            await arrivals.all_arrived("relay")
            await ended(process)
    return arrivals.figures()


async def ended(process: Child) -> None:
    """Waits for the agent to end by itself, as its trainer has."""
    code = await asyncio.to_thread(process.wait, PATIENCE)
    if code != 0:
        raise process.broken("did not complete its run")


ROWS = ("line.p50", "line.p99", *line_cost.ROWS)
BENCH = Bench("line", f"line printed → feed subscriber, at {RATE} lines a second; and what a line costs", ROWS, run)
