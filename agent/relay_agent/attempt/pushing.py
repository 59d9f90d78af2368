"""An attempt's sync to the Hub: begun with it, fed by what it tells, waited for at its end."""

from __future__ import annotations

import asyncio
import functools
import math
import random
from collections.abc import Callable

from relay_agent.attempt.holding import Holding
from relay_agent.attempt.orders import Orders
from relay_agent.attempt.telling import Teller
from relay_agent.attempt.tenure import Tenure
from relay_agent.checkpoints.publisher import Publisher
from relay_agent.config import Settings
from relay_agent.hub.ending import patience
from relay_agent.hub.parcel import About
from relay_agent.hub.shown import Shown
from relay_agent.hub.sync import HubSync
from relay_agent.hub.wish import lineage_of, wish_of
from relay_agent.outcome.stop import Stop
from relay_agent.process import say
from relay_agent.trainer.command import Launch
from relay_agent.volume.volume import RunFolder
from relaytui.wire.clock import Clock
from relaytui.wire.reports import TelemetryReport
from relaytui.wire.status import Outcome

VOLUME_ANSWERS = 10.0
"""Seconds that the volume has to say what is not on the Hub yet."""


class Pushing:
    """Does nothing where the run has no repository."""

    def __init__(
        self, settings: Settings, folder: RunFolder, launch: Launch, holding: Holding, tenure: Tenure, tell: Teller,
        stop: Stop, clock: Clock, rng: random.Random,
    ) -> None:  # fmt: skip
        self._tell = tell
        self._stop = stop
        self._clock = clock
        self._telemetry = holding.spool.telemetry.append
        self._task: asyncio.Task[None] | None = None
        self._wish = wish = wish_of(settings, holding.config)
        self._sync: HubSync | None = None
        if wish is None:
            return
        self._sync = HubSync(
            wish, folder, holding.lease.epoch, Shown(wish, tell, clock), clock, rng,
            held_for=lambda: tenure.lease.safe_until - clock.boot() if tenure.held else 0.0,
            about=functools.partial(About.of, settings, launch, lineage_of(wish, settings.fork_from)),
            retention=settings.retention,
        )  # fmt: skip

    def begin(self, orders: Orders) -> None:
        sync, wish = self._sync, self._wish
        if sync is None or wish is None:
            return
        dry = ", dry run: nothing is sent before HF_DRY_RUN is false" if wish.dry else ""
        data = {"repo": wish.where.repo, "dry_run": str(wish.dry).lower(), "interval_sec": f"{wish.interval:g}"}
        self._tell.event("hub.wish", f"sync to {wish.words}{dry}", data)
        sync.on_synced = self._synced
        self._tell.on_published.append(sync.published)
        orders.on_sync = sync.now
        self._task = asyncio.create_task(self._run(sync), name="hub")

    async def _run(self, sync: HubSync) -> None:
        try:
            await sync.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
            say(f"the sync to the Hub ended: {type(error).__name__}: {error}; training goes on")

    def _synced(self, revision: str) -> None:
        self._tell.journal.hub_revision = revision
        self._tell.journal.state()

    def feeding(self) -> Callable[[TelemetryReport], None]:
        """Where reports of the trainer go: to the commander, and into the run's metrics."""
        if self._sync is None:
            return self._telemetry
        metrics, telemetry = self._sync.metrics, self._telemetry

        def both(report: TelemetryReport) -> None:
            metrics.hear(report)
            telemetry(report)

        return both

    def spares(self, publisher: Publisher) -> None:
        """What is being sent is not pruned."""
        if self._sync is not None:
            publisher.protect |= self._sync.pins
            self._sync.pins = publisher.protect

    # -- the end -----------------------------------------------------------------------------------------------------

    async def last(self, outcome: Outcome) -> None:
        """The trainer is gone and all that is whole is published: whether there is time for what is not on the Hub yet,
        and no longer than there is. One more signal ends the wait."""
        sync, wish, task = self._sync, self._wish, self._task
        if sync is None or wish is None or task is None or task.done() or sync.stopped:
            return
        try:
            async with asyncio.timeout(VOLUME_ANSWERS):
                size = await asyncio.to_thread(sync.size_left)
        except TimeoutError:
            size = 0
        changed, before = asyncio.Event(), self._stop.signal
        self._stop.listen(lambda at_once: changed.set())
        until, why = self._until(outcome, size, sync.speed, wish.end_wait)
        if size and until <= self._clock.boot():
            if why:
                self._left(wish.where.repo, why)
        elif size:
            if not wish.dry:
                signals = "one more signal ends" if before else "Ctrl-C ends"
                left = until - self._clock.boot()
                say(f"waiting up to {left:.0f} s for the last sync to {wish.where.repo}; {signals} the wait")
            sync.close()
            while not task.done() and not self._stop.hurried.is_set() and self._stop.signal == before:
                changed.clear()
                until = min(until, self._until(outcome, size, sync.speed, wish.end_wait)[0])
                left = until - self._clock.boot()
                if left <= 0:
                    break
                told = asyncio.create_task(changed.wait())
                await asyncio.wait({task, told}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
            if not task.done():
                self._left(wish.where.repo, "the wait for it is over")
        await self.close()

    def _left(self, repo: str, why: str) -> None:
        words = f"the newest checkpoint is not on {repo}: {why}"
        self._tell.event("hub.left", words)
        say(words)

    def _until(self, outcome: Outcome, size: int, speed: float | None, wait: float) -> tuple[float, str]:
        """On the boot clock."""
        now = self._clock.boot()
        left = math.inf if math.isinf(self._stop.dead_by) else self._stop.dead_by - now
        if self._stop.hurried.is_set():
            left = 0.0
        seconds, why = patience(self._stop.why, outcome, left, size, speed, wait)
        return now + seconds, why

    async def close(self) -> None:
        """At once, with its child process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
