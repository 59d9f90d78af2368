"""An attempt's uploads to the artifact store."""

from __future__ import annotations

import functools
import random

from relay_agent.artifacts.jobs import STORE, Store
from relay_agent.artifacts.upkeep import Upkeep
from relay_agent.artifacts.wish import wish_of
from relay_agent.attempt.holding import Holding
from relay_agent.attempt.telling import Teller
from relay_agent.attempt.tenure import Tenure
from relay_agent.config import Settings
from relay_agent.outcome.stop import Stop
from relay_agent.process import say
from relay_agent.sending.way import Way
from relay_agent.volume.volume import RunFolder
from relaytui.wire.clock import Clock


def store_of(settings: Settings, tenure: Tenure) -> Store:
    """As the holder of the lease."""
    lease = tenure.lease
    return Store(settings.commander_url, settings.shared_secret, settings.run_id, lease.epoch, lease.token)


class Storing(Way):
    def __init__(
        self, settings: Settings, folder: RunFolder, holding: Holding, tenure: Tenure, tell: Teller, stop: Stop,
        clock: Clock, rng: random.Random,
    ) -> None:  # fmt: skip
        self._tell = tell
        self._wish = wish = wish_of(settings)
        upkeep = Upkeep(
            wish, functools.partial(store_of, settings, tenure), folder, holding.lease.epoch, tell, clock, rng,
            held_for=tenure.held_for,
        )  # fmt: skip
        super().__init__("artifacts", upkeep, stop, clock, wish.end_wait, "ARTIFACTS_END_WAIT")

    def begin(self) -> None:
        words = f"{self._wish.words} will go to {STORE}"
        if wrong := self._wish.trouble:
            words += f"; {wrong}"
            say(words)
        self._tell.event("artifact.wish", words)
        super().begin()
