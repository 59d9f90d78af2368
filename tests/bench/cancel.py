"""An order to cancel: from the operator's call to the end of the last process of a tree that will not stop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from relaytui.client.api import CommanderClient
from relaytui.wire.feed import Lines, ServerFeed
from relaytui.wire.status import OrderKind
from tests.bench.children import REPOSITORY, BenchError
from tests.bench.commander_process import Commander, agent, commander
from tests.bench.line import subscribed
from tests.bench.rounds import Bench, Figures, Setting, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured
from tests.bench.takeover import wait

GRACE = 1.0
PATIENCE = 60.0
CHILDREN = 4
"""That leave the trainer's session and lose their parent, and hear SIGTERM no more than the trainer does."""
MOCK = str(REPOSITORY / "launchers" / "mock_trainer.py")
FLAGS = f"--steps 100000 --save-every 0 --ignore-sigterm --children {CHILDREN} --daemons"


def run(setting: Setting) -> list[Row]:
    numbers = itertools.count(1)
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(commander(setting.folder))
        samples = interleave(
            {"relay": lambda: asyncio.run(cancelled(setting.folder, serving, f"cancel-{next(numbers)}"))}, setting
        )
    grace = Yardstick("the trainer's grace", [GRACE] * setting.rounds)
    return [measured("cancel", "s", samples.of("relay", "seconds"), grace, Goal(at_most=GRACE + 2))]


@contextlib.contextmanager
def lifeline(path: Path) -> Iterator[int]:
    """A FIFO that ends when the last process is gone that has it open for writing, with no process table to trust."""
    os.mkfifo(path)
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield end
    finally:
        os.close(end)


def gone_at(end: int) -> float:
    """When nobody held the lifeline any more. Blocking."""
    poll = select.poll()
    poll.register(end, 0)  # only that it was hung up
    if not poll.poll(PATIENCE * 1000):
        raise BenchError(f"processes of the trainer live {PATIENCE:.0f} s after the order to cancel")
    return time.monotonic()


def holders(path: Path) -> int:
    """How many processes have it open."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            count += any(_is(each, path) for each in (process / "fd").iterdir())
    return count


def _is(descriptor: Path, path: Path) -> bool:
    """One that is closed meanwhile, as that of the listing itself is, says nothing of the others."""
    with contextlib.suppress(OSError):
        return descriptor.samefile(path)
    return False


async def cancelled(folder: Path, serving: Commander, run_id: str) -> Figures:
    trains = asyncio.Event()

    def received(message: ServerFeed) -> None:
        if isinstance(message, Lines) and message.run_id == run_id:
            trains.set()

    path = folder / f"{run_id}.lifeline"
    script = f"exec 9>{shlex.quote(str(path))}; exec {shlex.quote(sys.executable)} {shlex.quote(MOCK)} {FLAGS}"
    trainer = ["bash", "-c", shlex.quote(script)]
    with lifeline(path) as end:
        async with subscribed(serving, received):
            with agent(serving, folder, run_id, trainer, RELAY_STOP_GRACE=str(GRACE)) as process:
                await wait(trains, "a line of the trainer")
                if (alive := holders(path) - 1) <= CHILDREN:  # one is ours
                    raise BenchError(f"{alive} processes of the trainer's tree are alive, not {CHILDREN + 1}")
                async with CommanderClient(serving.endpoint, actor="bench") as client:
                    await client.run(run_id)  # the commander has proven itself
                    ordered = time.monotonic()
                    await client.order(OrderKind.CANCEL, run_id, expected_epoch=1)
                    gone = await asyncio.to_thread(gone_at, end)
                await asyncio.to_thread(process.wait, PATIENCE)
    return {"seconds": gone - ordered, "grace": GRACE}


BENCH = Bench(
    "cancel",
    f"an order to cancel, {GRACE:g} s of grace: order → the last of a trainer's tree that ignores SIGTERM is gone",
    ("cancel",),
    run,
)
