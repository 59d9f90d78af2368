"""What is done about a loss that stays bad: said, and by policy the run ends or goes back to a healthy checkpoint.

How often a run went back is noted on the volume, so that the limit holds whichever agent comes next.
"""

from __future__ import annotations

import asyncio

from relay_agent.checkpoints import rollback
from relay_agent.checkpoints.disk import names
from relay_agent.checkpoints.rollback import Rollback
from relay_agent.checkpoints.staging import STEP
from relay_agent.process import say
from relay_agent.watchdog.diverging import Bad
from relay_agent.watchdog.watched import Watched
from relaytui.wire.text import counted

TRY_AGAIN = 60.0
"""Seconds until a volume that took no note is tried again."""
PUBLISHED_WITHIN = 300.0
"""Seconds that a checkpoint which was saved before, and is the only one to go back to, has to be published."""


class Spoilt:
    def __init__(self, of: Watched) -> None:
        self._of = of
        self._not_before = 0.0
        self._waits_until: float | None = None
        of.follower.on_bad, of.follower.on_nonfinite = self._begins, self._nonfinite

    def _nonfinite(self, step: int) -> None:
        """Its first sighting."""
        words = (
            f"the loss is not finite from step {step} on; what was saved before is kept, what is saved now is marked"
        )
        self._of.tell.event("loss.nonfinite", words, {"step": str(step)})
        say(words)

    def _begins(self, bad: Bad) -> None:
        """That it is not finite is said at its first sighting already."""
        if bad is Bad.NONFINITE:
            return
        trend = self._of.follower.trend
        words = (
            f"the loss is diverging from step {trend.since} on: far above {trend.usual:.4g}, where it had been;"
            " what was saved before is kept, what is saved now is marked"
        )
        self._of.tell.event("loss.diverging", words, {"step": str(trend.since), "usual": f"{trend.usual:.4g}"})
        say(words)

    async def look(self) -> None:
        """Do what the policy says, once."""
        bad = self._of.follower.trend.bad
        policy = self._of.rules.on(bad) if bad is not None else "warn"
        if bad is None or policy == "warn" or self._of.stop.asked.is_set() or self._of.clock.boot() < self._not_before:
            return
        try:
            if await asyncio.to_thread(self._is_coming) and self._may_wait():
                return
            words, back = await asyncio.to_thread(self._decide, bad, policy == "rollback")
        except OSError as error:
            self._not_before = self._of.clock.boot() + TRY_AGAIN
            words = f"the volume does not take a note of that the loss is {bad}: {error.strerror or error}"
            self._of.tell.event("loss.unnoted", f"{words}; training goes on")
            return
        if self._of.stop.asked.is_set():
            return
        self._of.tell.event(
            "loss.rollback" if back else "loss.stopped", words, {"step": str(self._of.follower.trend.since)}
        )
        say(words)
        self._of.publisher.only_healthy = True
        if back:
            self._of.stop.again(words, "diverged", healthy=True)
        else:
            self._of.stop.again(words, "spoilt")

    def _is_coming(self) -> bool:
        """Whether what is to be gone back to is saved and not published yet. Blocking."""
        since = self._of.follower.trend.since
        try:
            staged = [STEP.match(name) for name in names(self._of.folder.staging(self._of.epoch))]
        except FileNotFoundError:
            return False
        return any(int(match[1]) < since for match in staged if match) and not self._target()

    def _may_wait(self) -> bool:
        now = self._of.clock.boot()
        self._waits_until = self._waits_until or now + PUBLISHED_WITHIN
        return now < self._waits_until

    def _target(self) -> str | None:
        spoilt = None if self._of.follower.trend.finite else self._of.base
        return rollback.target(self._of.folder, self._of.epoch, self._of.follower.trend.since, spoilt)

    def _decide(self, bad: Bad, wanted: bool) -> tuple[str, bool]:
        """In words, and whether the run goes back. The note is on the volume when this returns: it binds whoever comes
        next. Blocking."""
        trend, limit = self._of.follower.trend, self._of.rules.rollbacks
        step = trend.since
        what = f"the loss is {bad} since step {step}"
        done = rollback.count(rollback.notes(self._of.folder))
        target, spoilt = self._target(), None if trend.finite else self._of.base
        fresh = target is None and self._of.base is None and trend.finite  # it may go better from the beginning
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
        rollback.note(self._of.folder, Rollback(self._of.epoch, step, why, self._of.clock.wall(), spoilt, counts=back))
        if not back:
            words += "; queued again it " + (f"goes on from {target}" if target else "begins anew")
        return words, back
