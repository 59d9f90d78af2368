"""A pod whose volume was lost, for `pull_kills`: it brings back the newest checkpoint as an attempt that begins does.

`pull_holder ROOT store|hub URL`.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

from relay_agent.artifacts import calls as store_calls
from relay_agent.artifacts.restore import InStore
from relay_agent.checkpoints.placing import place
from relay_agent.checkpoints.receiving import place_for
from relay_agent.hub import calls as hub_calls
from relay_agent.hub.protocol import Where
from relay_agent.hub.restore import OnHub
from relay_agent.outcome.stop import Stop
from relay_agent.sending import source
from relay_agent.volume.volume import RunFolder
from relaytui.wire.clock import SystemClock
from tests.faults.store_holder import store_of

REPO = "relay/run-1"


def source_of(root: Path, kind: str, url: str) -> source.Source:
    stop, clock, cache = Stop(), SystemClock(), str(root.parent / "cache")
    common: Any = stop, clock, random.Random(1), lambda report: None
    if kind == "store":
        store = store_of(root, url)
        return InStore(lambda: store, cache, *common)
    return OnHub(Where(REPO, "hf_write", url, timeout=5.0), cache, *common)


async def bring_back(root: Path, kind: str, url: str) -> None:
    store_calls.FAR, hub_calls.FAR = "tests.faults.slow_store", "tests.faults.slow_hub"
    source.FIRST_PAUSE, source.LONGEST_PAUSE = 0.1, 1.0
    source.LIST_TRIES = source.PULL_TRIES = 30
    run, at = RunFolder(root), source_of(root, kind, url)
    bring = at.bring

    async def bringing(step: Any, place: Path, on_progress: Any) -> str:
        print("phase downloading", flush=True)
        return await bring(step, place, on_progress)

    at.bring = bringing  # type: ignore[method-assign]
    print("phase looking", flush=True)
    steps = [step for step in await at.steps() if not step.trouble]
    newest = max(steps, key=lambda step: (step.epoch, step.seq))
    received = await at.pull(newest, place_for(run, newest.manifest))
    print("phase placing", flush=True)
    sealed = await asyncio.to_thread(place, run, received, lambda: True)
    print("phase done", flush=True)
    print("has", sealed.name, flush=True)


if __name__ == "__main__":
    asyncio.run(bring_back(Path(sys.argv[1]), *sys.argv[2:]))
