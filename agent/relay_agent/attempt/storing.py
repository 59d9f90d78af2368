"""An attempt's uploads to the artifact store: begun with it, told what is published, waited for at its end."""

from __future__ import annotations

import asyncio
import math
import random

from relay_agent.artifacts.jobs import Store
from relay_agent.artifacts.shown import STORE, Shown
from relay_agent.artifacts.upkeep import Upkeep
from relay_agent.artifacts.wish import wish_of
from relay_agent.attempt.holding import Holding
from relay_agent.attempt.telling import Teller
from relay_agent.attempt.tenure import Tenure
from relay_agent.checkpoints.publisher import Publisher
from relay_agent.config import Settings
from relay_agent.hub.ending import ENDS, patience
from relay_agent.outcome.stop import Stop
from relay_agent.process import say
from relay_agent.volume.volume import RunFolder
from relaytui.wire.clock import Clock
from relaytui.wire.status import Outcome

VOLUME_ANSWERS = 10.0
"""Seconds that the volume has to say what is not there yet."""


def store_of(settings: Settings, tenure: Tenure) -> Store:
    """As the holder of the lease."""
    lease = tenure.lease
    return Store(settings.commander_url, settings.shared_secret, settings.run_id, lease.epoch, lease.token)


class Storing:
    """Does nothing where nothing is wished for."""

    def __init__(
        self, settings: Settings, folder: RunFolder, holding: Holding, tenure: Tenure, tell: Teller, stop: Stop,
        clock: Clock, rng: random.Random,
    ) -> None:  # fmt: skip
        self._tell = tell
        self._stop = stop
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._wish = wish = wish_of(settings)
        self._shown = Shown(tell, clock)
        self._upkeep: Upkeep | None = None
        if wish is not None:
            self._upkeep = Upkeep(
                wish, lambda: store_of(settings, tenure), folder, holding.lease.epoch, self._shown, clock, rng,
                held_for=lambda: tenure.lease.safe_until - clock.boot() if tenure.held else 0.0,
            )  # fmt: skip

    def begin(self) -> None:
        upkeep, wish = self._upkeep, self._wish
        if upkeep is None or wish is None:
            return
        words = f"{wish.words} will go to {STORE}"
        if wish.which == "best" and wish.best is None:
            words += "; ARTIFACTS is best and CKPT_BEST_METRIC says nothing of what is best"
            say(words)
        self._tell.event("artifact.wish", words)
        self._tell.on_published.append(upkeep.published)
        self._task = asyncio.create_task(self._run(upkeep), name="artifacts")

    async def _run(self, upkeep: Upkeep) -> None:
        try:
            await upkeep.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
            say(f"uploads to {STORE} ended: {type(error).__name__}: {error}; training goes on")

    def spares(self, publisher: Publisher) -> None:
        """What is being sent is not pruned."""
        if self._upkeep is not None:
            publisher.sending = self._upkeep.pins

    async def last(self, outcome: Outcome) -> None:
        """The trainer is gone and all that is whole is published: send what is left, if there is time for it, and wait
        no longer than there is. One more signal ends the wait."""
        upkeep, task = self._upkeep, self._task
        if upkeep is None or task is None or task.done():
            return
        size = 0
        try:
            async with asyncio.timeout(VOLUME_ANSWERS):
                size = await asyncio.to_thread(upkeep.size_left)
        except TimeoutError:
            pass
        changed, before = asyncio.Event(), self._stop.signal
        self._stop.listen(lambda at_once: changed.set())
        if size and (why := await self._wait(upkeep, task, outcome, size, changed, before)):
            self._shown.left(f"not all that should be is in {STORE}: {why}")
        await self.close()

    async def _wait(
        self, upkeep: Upkeep, task: asyncio.Task[None], outcome: Outcome, size: int, changed: asyncio.Event, before: int
    ) -> str:
        """Why it was not waited for to its end; empty where it was."""
        seconds, why = self._left(outcome, size, upkeep.speed)
        if seconds <= 0:
            return why or "no time is left"
        until = self._clock.boot() + seconds
        signals = "one more signal ends" if before else "Ctrl-C ends"
        say(f"waiting up to {seconds:.0f} s for the last upload to {STORE}; {signals} the wait")
        upkeep.close(final=outcome in ENDS or outcome is Outcome.CANCELLED)
        while not task.done():
            if self._stop.hurried.is_set() or self._stop.signal != before:
                return "the wait for it was ended"
            changed.clear()
            now = self._clock.boot()
            until = min(until, now + self._left(outcome, size, upkeep.speed)[0])
            if until <= now:
                return "the wait for it is over"
            told = asyncio.create_task(changed.wait())
            await asyncio.wait({task, told}, timeout=until - now, return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
        return ""

    def _left(self, outcome: Outcome, size: int, speed: float | None) -> tuple[float, str]:
        """Seconds, and why not longer."""
        dead_by = self._stop.dead_by
        left = math.inf if math.isinf(dead_by) else dead_by - self._clock.boot()
        if self._stop.hurried.is_set():
            left = 0.0
        assert self._wish is not None
        wait = self._wish.end_wait
        if not wait:
            return 0.0, "ARTIFACTS_END_WAIT is 0"
        return patience(self._stop.why, outcome, left, size, speed, wait)

    async def close(self) -> None:
        """At once, with its child process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
