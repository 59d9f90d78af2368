"""An attempt's uploads to the artifact store."""

from __future__ import annotations

import functools

from relay_agent.artifacts.jobs import STORE, Store
from relay_agent.artifacts.upkeep import Upkeep
from relay_agent.artifacts.wish import wish_of
from relay_agent.attempt.around import Around
from relay_agent.attempt.pushing import holder_of
from relay_agent.process import say
from relay_agent.sending.way import Way


def store_of(around: Around) -> Store:
    """As the holder of the lease, as it is now."""
    settings, lease = around.settings, around.tenure.lease
    return Store(settings.commander_url, settings.shared_secret, settings.run_id, lease.epoch, lease.token)


class Storing(Way):
    def __init__(self, around: Around) -> None:
        self._tell = around.tell
        self._wish = wish = wish_of(around.settings)
        upkeep = Upkeep(wish, functools.partial(store_of, around), holder_of(around))
        super().__init__("artifacts", upkeep, around.stop, around.clock, wish.end_wait, "ARTIFACTS_END_WAIT")

    def begin(self) -> None:
        words = f"{self._wish.words} will go to {STORE}"
        if self._wish.which == "best" and self._wish.best is None:
            words += "; ARTIFACTS is best and CKPT_BEST_METRIC says nothing of what is best"
            say(words)
        self._tell.event("artifact.wish", words)
        super().begin()
