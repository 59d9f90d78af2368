"""A run's checkpoints on the Hub, as an attempt that begins asks for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from relay_agent.hub import calls
from relay_agent.hub.protocol import Listed, ListSteps, Pull, Pulled, Where
from relay_agent.outcome.stop import Stop
from relay_agent.sending.protocol import Step
from relay_agent.sending.source import Source
from relaytui.wire.clock import Clock
from relaytui.wire.reports import Transfer

LIST_TIMEOUT = 20.0
"""Seconds that one small request waits: a pod without a way out is not held up for minutes."""


class OnHub(Source):
    event = "restore.hub"

    def __init__(
        self, where: Where, cache: str, stop: Stop, clock: Clock, rng: random.Random, tell: Callable[[Transfer], None]
    ) -> None:
        super().__init__(where.repo, stop, clock, rng, tell)
        self._hub = where
        self._cache = cache

    async def ask(self, within: float) -> list[Step]:
        job = ListSteps(replace(self._hub, timeout=min(self._hub.timeout, LIST_TIMEOUT)))
        listed = await calls.call(job, Listed, cache=self._cache, quiet={"looking": within})
        return listed.steps

    async def bring(self, step: Step, place: Path, on_progress: Callable[[int, int], None]) -> str:
        job = Pull(self._hub, step.run_id, step.revision, step.manifest, str(place))
        pulled = await calls.call(job, Pulled, cache=self._cache, on_progress=on_progress)
        return pulled.folder
