"""A run's checkpoints in the artifact store, as an attempt that begins asks for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from relay_agent.artifacts import calls
from relay_agent.artifacts.jobs import STORE, Came, ListStored, Offer, Offers, Pull, Store
from relay_agent.outcome.stop import Stop
from relay_agent.sending.protocol import Step
from relay_agent.sending.source import Source
from relay_agent.sending.trouble import Trouble
from relaytui.wire.clock import Clock
from relaytui.wire.reports import Transfer


class InStore(Source):
    """`store` is asked anew each time: it speaks for the lease as it is then."""

    event = "restore.artifact"

    def __init__(
        self, store: Callable[[], Store], cache: str, stop: Stop, clock: Clock, rng: random.Random,
        tell: Callable[[Transfer], None],
    ) -> None:  # fmt: skip
        super().__init__(STORE, stop, clock, rng, tell)
        self._store = store
        self._cache = cache
        self._offers: dict[str, Offer] = {}

    async def ask(self, within: float) -> list[Step]:
        """A commander that has no such store has nothing in it."""
        try:
            found = await calls.call(ListStored(self._store()), Offers, cache=self._cache, longest=within)
        except Trouble as error:
            if error.code == "no_store":
                return []
            raise
        self._offers = {offer.step.revision: offer for offer in found.offers}
        return [offer.step for offer in found.offers]

    async def bring(self, step: Step, place: Path, on_progress: Callable[[int, int], None]) -> str:
        offer = self._offers[step.revision]
        job = Pull(
            self._store(), int(step.revision), offer.archive, step.name, step.bytes, offer.files, str(place)
        )  # fmt: skip
        came = await calls.call(job, Came, cache=self._cache, on_progress=on_progress)
        return came.folder
