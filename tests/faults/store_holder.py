"""One holder of a run, for `store_kills`: it publishes checkpoints, and sends them as an agent does.

`store_holder ROOT EPOCH FIRST COUNT URL`, the worker's secret and the lease's token in a file. COUNT 0: without an end.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from itertools import count
from pathlib import Path

from relay_agent.artifacts import calls
from relay_agent.artifacts.jobs import Store
from relay_agent.artifacts.upkeep import Upkeep
from relay_agent.artifacts.wish import Wish
from relay_agent.checkpoints.aside import throw_away
from relay_agent.checkpoints.line import survey
from relay_agent.sending.sender import Holder
from relay_agent.volume.volume import RunFolder
from relaytui.wire.clock import SystemClock
from tests.faults.hub_holder import Silent, save

KEPT = 8
"""Checkpoints on the volume."""


def store_of(root: Path, url: str) -> Store:
    lease = json.loads((root.parent.parent.parent / "lease.json").read_bytes())
    return Store(url, lease["secret"], "run-1", lease["epoch"], lease["token"], timeout=10.0, finish=30.0)


async def hold(root: Path, epoch: int, first: int, steps: int, url: str) -> None:
    calls.FAR = "tests.faults.slow_store"
    run, clock = RunFolder(root), SystemClock()
    store = store_of(root, url)
    wish = Wish("every", None, (), 60.0, str(root.parent / f"cache-{epoch}"))
    holder = Holder(run, epoch, lambda: 20.0, Silent(), clock, random.Random(epoch))
    upkeep = Upkeep(wish, lambda: store, holder)
    upkeep._schedule.failed = _soon  # type: ignore[method-assign]
    sending = asyncio.create_task(upkeep.run())
    sending.add_done_callback(lambda task: task.exception() and sys.exit(3))
    for step in count(first) if not steps else range(first, first + steps):
        await asyncio.to_thread(save, run, epoch, step)
        print("step", step, flush=True)
        upkeep._wake.set()
        for old in (await asyncio.to_thread(lambda: survey(run).line))[KEPT:]:
            if old.name not in upkeep.pins:
                await asyncio.to_thread(throw_away, run, old.path)
        await asyncio.sleep(0.3)
    upkeep.close(final=True)  # it waits, as the end of an attempt does
    await sending


def _soon(now: float, kind: str, wait: float | None = None) -> bool:
    """Every failure is tried again, at once."""
    print("failed", kind, flush=True)
    return True


if __name__ == "__main__":
    at, number, begin, many, where = sys.argv[1:]
    asyncio.run(hold(Path(at), int(number), int(begin), int(many), where))
