"""What an agent does when its pod is about to be taken away: one for all of its attempts."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from relay_agent.attempt.telling import Teller
from relay_agent.attempt.wish import Wish
from relay_agent.config import Settings
from relay_agent.outcome.stop import Stop, Why
from relay_agent.preempt.clues import Clues
from relay_agent.preempt.metadata import Metadata
from relay_agent.preempt.notice import Notice, Surroundings
from relay_agent.preempt.places import Place, place_of
from relay_agent.preempt.plan import Act, Plan, kill_margin, leave_margin, plan
from relay_agent.preempt.slurm import warned
from relay_agent.preempt.sources import SOURCES, Source, sources_of
from relay_agent.preempt.training import Training
from relay_agent.preempt.watch import watch
from relay_agent.process import say
from relaytui.wire.clock import Clock

LEAD = 120.0
"""Seconds before a known end of the job at which that is acted on, where PREEMPT_GRACE says no other."""
LAST, LAST_PART = 10.0, 0.4
"""At most so many seconds, or this part of what was left, before the end a trainer gets SIGTERM in any case."""


def grace_of(settings: Settings, place: Place | None) -> float | None:
    """Seconds that the pod has after SIGTERM; None: only RELAY_STOP_GRACE counts. Whoever sets that one has seen to it
    that the pod has longer."""
    if settings.preempt_grace is not None:
        return settings.preempt_grace
    return None if place is None or settings.stop_grace_set else place.grace


class Departure:
    """`stop`: of the attempt that goes on, or of the agent before there is one."""

    def __init__(self, settings: Settings, clock: Clock, stop: Callable[[], Stop], clues: Clues | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._stop = stop
        off = settings.preempt == "none"
        self._clues = clues or (Clues({}) if off else Clues.here())
        self._sources: list[Source] = sources_of(settings.preempt, self._clues)
        self._grace = grace_of(settings, None if off else place_of(self._clues))
        self._advised: set[str] = set()
        self._notice: Notice | None = None
        self._by = math.inf  # on the boot clock: the end of the pod
        self._timer: asyncio.TimerHandle | None = None
        self._training: Training | None = None
        self._winding_up: asyncio.Task[None] | None = None
        self._over = False  # the trainer has exited
        self.tell: Teller | None = None
        """Of the attempt that goes on."""

    # -- who says so -----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Ask whoever gives notice here, for as long as the agent lives."""
        if not self._sources:
            return
        metadata = Metadata(self._settings.preempt_url)
        lead = self._settings.preempt_grace or LEAD
        around = Surroundings(metadata, self._clues.environ, self._clock.wall, lead)
        try:
            async with asyncio.TaskGroup() as group:
                for source in self._sources:
                    group.create_task(watch(source.name, source.poller(around), self.hear, say), name=source.name)
        finally:
            await metadata.close()

    def close(self) -> None:
        """The agent ends."""
        if self._winding_up is not None:
            self._winding_up.cancel()
        self._forget_timer()

    def warned(self) -> None:
        """SIGUSR1 came: a notice where Slurm is watched, else a signal that was meant for others."""
        if any(source.name == "slurm" for source in self._sources):
            self.hear(warned(self._clues.environ, self._clock.wall()))

    def signalled(self, number: int) -> None:
        """SIGTERM or SIGINT came, and the trainer is about to be stopped for it."""
        if self._winding_up is not None:
            self._winding_up.cancel()  # what it waits for is decided
        if number == signal.SIGTERM and self._grace is not None:
            self._end_by(self._clock.boot() + self._grace)

    # -- a notice ----------------------------------------------------------------------------------------------------

    def hear(self, notice: Notice) -> None:
        """The first one counts; of the same, or of another, only that the end is nearer."""
        if notice.advice:
            if notice.source not in self._advised:
                self._advised.add(notice.source)
                self._announce(notice, None, "nothing is done until it says that it is", "advice")
            return
        by = self._clock.boot() + self._left(notice)
        if self._notice is None:
            self._notice, self._by = notice, min(self._by, by)
            self._act(notice)
        elif by < self._by - 1.0:
            say(f"{notice.words}: earlier than said before")
            self._by = by
            if self._stop().asked.is_set():
                self._end_by(by)

    def _left(self, notice: Notice) -> float:
        """Seconds. A time that cannot be is none: one of the two clocks is wrong."""
        source = SOURCES[notice.source]
        if notice.at is not None and 0 < (left := notice.at - self._clock.wall()) <= source.at_most:
            return left
        return self._settings.preempt_grace if self._settings.preempt_grace is not None else source.grace

    def _act(self, notice: Notice) -> None:
        if self._training is not None:
            self._winding_up = asyncio.create_task(self._wind_up(notice, self._training), name="preempt")
            return
        left = self._by - self._clock.boot()
        if self._over:
            self._announce(notice, left, "the trainer has exited, and what it saved is being published", "publish")
            self._end_by(self._by)
            return
        self._announce(notice, left, "nothing is begun here any more", "leave")
        self._leave()

    def again(self) -> None:
        """A new attempt is about to begin: not on a pod that goes."""
        self._over, self.tell = False, None
        if self._notice is not None:
            self._leave()

    def begin(self, training: Training) -> None:
        """The trainer is up."""
        self._training = training

    def ended(self, code: int) -> None:
        """The trainer has exited. Once there was a notice, an end that is none of its own is the notice's doing."""
        self._training, self._over = None, True
        if self._winding_up is not None:
            self._winding_up.cancel()
        if self._notice is not None and self._stop().why is None:
            if code != 0:
                self._leave()
            else:
                self._end_by(self._by)

    # -- what is done ------------------------------------------------------------------------------------------------

    async def _wind_up(self, notice: Notice, training: Training) -> None:
        left = self._by - self._clock.boot()
        decided = plan(left, training.size, training.speed)
        self._announce(notice, left, decided.words, str(decided.act))
        saved = False
        try:
            saved = decided.act is Act.SAVE and await self._saved(training, decided)
        except Exception as error:  # noqa: BLE001 - the pod goes whatever fails here
            say(f"the trainer could not be asked to save: {type(error).__name__}: {error}")
        if not saved:
            await self._sleep_until(self._last_moment(left))
        self._leave()

    def _last_moment(self, left: float) -> float:
        return self._by - min(LAST, LAST_PART * left)

    async def _saved(self, training: Training, decided: Plan) -> bool:
        """Ask for a checkpoint. Whether to stop the trainer at once: there is one, or it takes SIGTERM for the wish."""
        began = self._clock.boot()
        wish = await Wish.of(training, self._clock)
        unheeded_at = began + min(wish.heeded_within, max(0.0, decided.left - decided.need))
        if await wish.came_true(lambda: min(unheeded_at, self._last_moment(decided.left))):
            return True
        if not wish.heeded and self._clock.boot() < self._last_moment(decided.left):
            if await training.knows_sigterm():
                return True
            words = f"{wish.unheeded}: it trains on to the end"
            self._event("preempt.unheeded", words)
            say(words)
        return await wish.came_true(lambda: self._last_moment(decided.left))

    async def _sleep_until(self, at: float) -> None:
        while True:
            left = at - self._clock.boot()
            if left <= 0:
                return
            await asyncio.sleep(min(left, 1.0))

    def _leave(self) -> None:
        """Stop what runs: publish what is whole, give the lease back, be gone before the pod is."""
        assert self._notice is not None
        self._end_by(self._by)
        self._stop().ask(Why.SIGNAL, f"the pod is taken away: {self._notice.words}")

    def _end_by(self, by: float) -> None:
        """Whatever still goes on by then is left as it is. Asking again only shortens it."""
        left = max(0.0, by - self._clock.boot())
        stop = self._stop()
        stop.dead_by = min(stop.dead_by, by - kill_margin(left))
        loop = asyncio.get_running_loop()
        at = loop.time() + max(0.0, left - leave_margin(left))
        if self._timer is None or at < self._timer.when() or self._timer.cancelled():
            self._forget_timer()
            self._timer = loop.call_at(at, self._out_of_time)

    def _out_of_time(self) -> None:
        self._timer = None
        if not self._stop().hurried.is_set():
            say("the pod's time is up: nothing is waited for any more")
            self._stop().hurry()

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- what is said ------------------------------------------------------------------------------------------------

    def _announce(self, notice: Notice, left: float | None, words: str, act: str) -> None:
        data = {"source": notice.source, "plan": act}
        if left is not None:
            with suppress(ValueError, OverflowError, OSError):
                end = datetime.fromtimestamp(self._clock.wall() + left, UTC)
                data |= {"deadline": end.strftime("%Y-%m-%dT%H:%M:%SZ"), "left": f"{left:.0f}"}
        said = f"{notice.words}; {words}"
        self._event("preempt.notice", said, data)
        say(said)

    def _event(self, kind: str, message: str, data: dict[str, str] | None = None) -> None:
        if self.tell is not None:
            self.tell.event(kind, message, data)
