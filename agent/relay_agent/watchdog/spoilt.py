"""What is done about a loss that stays bad: said, and by policy the run ends or goes back to a healthy checkpoint.

How often a run went back is noted on the volume, so that the limit holds whichever agent comes next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from relay_agent.checkpoints import rollback
from relay_agent.checkpoints.disk import names
from relay_agent.checkpoints.rollback import Rollback
from relay_agent.checkpoints.staging import STEP
from relay_agent.outcome.stop import Stop
from relay_agent.output.follow import Follower
from relay_agent.process import say
from relay_agent.volume.volume import RunFolder
from relay_agent.watchdog.diverging import Bad
from relay_agent.watchdog.rules import Rules
from relaytui.wire.clock import Clock
from relaytui.wire.text import counted

TRY_AGAIN = 60.0
"""Seconds until a volume that took no note is tried again."""
PUBLISHED_WITHIN = 300.0
"""Seconds that a checkpoint which was saved before, and is the only one to go back to, has to be published."""


class Tell(Protocol):
    def event(self, kind: str, message: str, data: Mapping[str, str] | None = None) -> None: ...


class Publishes(Protocol):
    only_healthy: bool

    @property
    def newest_step(self) -> int | None: ...


class Spoilt:
    """Of one attempt, which resumed from the checkpoint `base` if it did."""

    def __init__(
        self,
        rules: Rules,
        folder: RunFolder,
        epoch: int,
        base: str | None,
        follower: Follower,
        stop: Stop,
        tell: Tell,
        clock: Clock,
        publisher: Publishes,
    ) -> None:
        self._rules = rules
        self._folder = folder
        self._epoch = epoch
        self._base = base
        self._follower = follower
        self._stop = stop
        self._tell = tell
        self._clock = clock
        self._publisher = publisher
        self._not_before = 0.0
        self._waits_until: float | None = None
        follower.on_bad, follower.on_nonfinite = self._begins, self._nonfinite

    def _nonfinite(self, step: int) -> None:
        """Its first sighting."""
        words = (
            f"the loss is not finite from step {step} on; what was saved before is kept, what is saved now is marked"
        )
        self._tell.event("loss.nonfinite", words, {"step": str(step)})
        say(words)

    def _begins(self, bad: Bad) -> None:
        """That it is not finite is said at its first sighting already."""
        if bad is Bad.NONFINITE:
            return
        trend = self._follower.trend
        words = (
            f"the loss is diverging from step {trend.since} on: far above {trend.usual:.4g}, where it had been;"
            " what was saved before is kept, what is saved now is marked"
        )
        self._tell.event("loss.diverging", words, {"step": str(trend.since), "usual": f"{trend.usual:.4g}"})
        say(words)

    async def look(self) -> None:
        """Do what the policy says, once."""
        bad = self._follower.trend.bad
        policy = self._rules.on(bad) if bad is not None else "warn"
        if bad is None or policy == "warn" or self._stop.asked.is_set() or self._clock.boot() < self._not_before:
            return
        try:
            if await asyncio.to_thread(self._is_coming) and self._may_wait():
                return
            words, back = await asyncio.to_thread(self._decide, bad, policy == "rollback")
        except OSError as error:
            self._not_before = self._clock.boot() + TRY_AGAIN
            words = f"the volume does not take a note of that the loss is {bad}: {error.strerror or error}"
            self._tell.event("loss.unnoted", f"{words}; training goes on")
            return
        if self._stop.asked.is_set():
            return
        self._tell.event("loss.rollback" if back else "loss.stopped", words, {"step": str(self._follower.trend.since)})
        say(words)
        self._publisher.only_healthy = True
        if back:
            self._stop.again(words, "diverged", healthy=True)
        else:
            self._stop.again(words, "spoilt")

    def _is_coming(self) -> bool:
        """Whether what is to be gone back to is saved and not published yet. Blocking."""
        since = self._follower.trend.since
        try:
            staged = [STEP.match(name) for name in names(self._folder.staging(self._epoch))]
        except FileNotFoundError:
            return False
        return any(int(match[1]) < since for match in staged if match) and not self._target()

    def _may_wait(self) -> bool:
        now = self._clock.boot()
        self._waits_until = self._waits_until or now + PUBLISHED_WITHIN
        return now < self._waits_until

    def _target(self) -> str | None:
        spoilt = None if self._follower.trend.finite else self._base
        return rollback.target(self._folder, self._epoch, self._follower.trend.since, spoilt)

    def _decide(self, bad: Bad, wanted: bool) -> tuple[str, bool]:
        """In words, and whether the run goes back. The note is on the volume when this returns: it binds whoever comes
        next. Blocking."""
        trend, limit = self._follower.trend, self._rules.rollbacks
        step = trend.since
        what = f"the loss is {bad} since step {step}"
        done = rollback.count(rollback.notes(self._folder))
        target, spoilt = self._target(), None if trend.finite else self._base
        fresh = target is None and self._base is None and trend.finite  # it may go better from the beginning
        back = wanted and done < limit and (target is not None or fresh)
        if back:
            goal = target or "the beginning, as no checkpoint was saved before"
            words = f"{what}: going back to {goal} (rollback {done + 1} of {limit})"
        elif not wanted:
            words = f"{what}: stopped, as {'ON_NAN' if bad is Bad.NONFINITE else 'ON_DIVERGE'} says"
        elif done >= limit:
            words = f"{what}, and the run went back {counted(done, 'time')} already (ROLLBACKS): stopped"
        else:
            words = f"{what}, and there is no healthy checkpoint to go back to: stopped"
        why = "nan" if bad is Bad.NONFINITE else "diverging"
        rollback.note(self._folder, Rollback(self._epoch, step, why, self._clock.wall(), spoilt, counts=back))
        if not back:
            words += "; queued again it " + (f"goes on from {target}" if target else "begins anew")
        return words, back
