"""One holder of a run, for `hub_kills`: it publishes a checkpoint every now and then, and syncs as an agent does."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import Any

from relay_agent.checkpoints.publish import publish
from relay_agent.checkpoints.retention import NEWEST_ONLY
from relay_agent.checkpoints.staging import Staged
from relay_agent.hub.parcel import About
from relay_agent.hub.protocol import Where
from relay_agent.hub.sync import HubSync
from relay_agent.hub.wish import Wish
from relay_agent.sending.sender import Holder
from relay_agent.volume.volume import RunFolder
from relaytui.wire.clock import SystemClock

LEASE = 1.5
"""Seconds that a lease holds; it is renewed all the time."""


class Silent:
    def event(self, kind: str, message: str, data: Any = None, *, send: bool = True) -> None:
        print(kind, message, flush=True)

    def transfer(self, report: Any) -> None:
        print("phase", report.phase, flush=True)


def save(run: RunFolder, epoch: int, step: int) -> None:
    path = run.staging(epoch) / f"step_{step}"
    (path / "shard").mkdir(parents=True)
    (path / "weights.bin").write_bytes(random.Random(step).randbytes(300_000))
    (path / "shard" / "0.json").write_text(f'{{"step": {step}}}\n')
    (path / "COMPLETE").touch()
    publish(run, Staged(step, path), epoch, lambda: True)


async def _nothing() -> None:
    """It is known to come to something."""


async def hold(root: Path, epoch: int, first: int, last: int, url: str, repo: str) -> None:
    """Steps `first` to `last` of the run at `root`, then the last sync."""
    run, clock = RunFolder(root), SystemClock()
    safe_until = clock.boot() + LEASE

    async def renew() -> None:
        nonlocal safe_until
        while True:
            safe_until = clock.boot() + LEASE
            await asyncio.sleep(0.1)

    where = Where(repo, "hf_write", url, timeout=5.0)
    wish = Wish(where, False, (), 0.0, False, 3, 60.0, "", None, str(root.parent / f"cache-{epoch}"))
    holder = Holder(run, epoch, lambda: safe_until - clock.boot(), Silent(), clock, random.Random(epoch))
    sync = HubSync(wish, holder, lambda: About("sft", "t", "d", "c"), NEWEST_ONLY)
    sync._check = _nothing  # type: ignore[method-assign]  # a process less to wait for
    renewing = asyncio.create_task(renew())
    syncing = asyncio.create_task(sync.run())
    for step in range(first, last + 1):
        began = time.monotonic()
        await asyncio.to_thread(save, run, epoch, step)
        sync._wake.set()
        print("step", step, f"{time.monotonic() - began:.3f}", flush=True)
        await asyncio.sleep(0.4)
    sync.close(final=True)
    await syncing
    renewing.cancel()


if __name__ == "__main__":
    at, number, begin, end, hub, name = sys.argv[1:]
    asyncio.run(hold(Path(at), int(number), int(begin), int(end), hub, name))
