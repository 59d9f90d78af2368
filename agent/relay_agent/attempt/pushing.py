"""An attempt's sync to the Hub."""

from __future__ import annotations

import functools

from relay_agent.attempt.around import Around
from relay_agent.hub.attempts import attempt_of
from relay_agent.hub.parcel import About
from relay_agent.hub.sync import HubSync
from relay_agent.hub.wish import lineage_of, wish_of
from relay_agent.sending.sender import Holder
from relay_agent.sending.way import Way


def holder_of(around: Around) -> Holder:
    epoch, held_for = around.holding.lease.epoch, around.tenure.held_for
    return Holder(around.folder, epoch, held_for, around.tell, around.clock, around.rng)


class Pushing(Way):
    def __init__(self, around: Around) -> None:
        settings = around.settings
        self._around = around
        self._wish = wish = wish_of(settings, around.holding.config)
        about = functools.partial(About.of, settings, around.launch, lineage_of(wish, settings.fork_from))
        self._sync = sync = HubSync(wish, holder_of(around), about, settings.retention)
        sync.attempt = attempt_of(around.holding.lease.token)
        self.hear = sync.metrics.hear
        super().__init__("hub", sync, around.stop, around.clock, wish.end_wait, "HF_END_WAIT")

    def begin(self) -> None:
        wish = self._wish
        dry = ", dry run: nothing is sent before HF_DRY_RUN is false" if wish.dry else ""
        data = {"repo": wish.where.repo, "dry_run": str(wish.dry).lower(), "interval_sec": f"{wish.interval:g}"}
        self._around.tell.event("hub.wish", f"sync to {wish.words}{dry}", data)
        self._sync.on_synced = self._synced
        self._around.orders.on_sync = self._sync.now
        super().begin()

    def _synced(self, revision: str) -> None:
        journal = self._around.tell.journal
        journal.hub_revision = revision
        journal.state()
