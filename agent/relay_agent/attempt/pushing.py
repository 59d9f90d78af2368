"""An attempt's sync to the Hub."""

from __future__ import annotations

import functools
import random

from relay_agent.attempt.holding import Holding
from relay_agent.attempt.orders import Orders
from relay_agent.attempt.telling import Teller
from relay_agent.attempt.tenure import Tenure
from relay_agent.config import Settings
from relay_agent.hub.parcel import About
from relay_agent.hub.sync import HubSync
from relay_agent.hub.wish import lineage_of, wish_of
from relay_agent.outcome.stop import Stop
from relay_agent.sending.way import Way
from relay_agent.trainer.command import Launch
from relay_agent.volume.volume import RunFolder
from relaytui.wire.clock import Clock


class Pushing(Way):
    def __init__(
        self, settings: Settings, folder: RunFolder, launch: Launch, holding: Holding, tenure: Tenure, orders: Orders,
        tell: Teller, stop: Stop, clock: Clock, rng: random.Random,
    ) -> None:  # fmt: skip
        self._tell = tell
        self._orders = orders
        self._wish = wish = wish_of(settings, holding.config)
        self._sync = sync = HubSync(
            wish, folder, holding.lease.epoch, tell, clock, rng, held_for=tenure.held_for,
            about=functools.partial(About.of, settings, launch, lineage_of(wish, settings.fork_from)),
            retention=settings.retention,
        )  # fmt: skip
        self.hear = sync.metrics.hear
        super().__init__("hub", sync, stop, clock, wish.end_wait, "HF_END_WAIT")

    def begin(self) -> None:
        wish = self._wish
        dry = ", dry run: nothing is sent before HF_DRY_RUN is false" if wish.dry else ""
        data = {"repo": wish.where.repo, "dry_run": str(wish.dry).lower(), "interval_sec": f"{wish.interval:g}"}
        self._tell.event("hub.wish", f"sync to {wish.words}{dry}", data)
        self._sync.on_synced = self._synced
        self._orders.on_sync = self._sync.now
        super().begin()

    def _synced(self, revision: str) -> None:
        self._tell.journal.hub_revision = revision
        self._tell.journal.state()
