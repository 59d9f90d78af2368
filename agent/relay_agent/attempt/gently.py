"""Before a stop that nobody hurries: a trainer that would only die of SIGTERM is asked for a checkpoint first."""

from __future__ import annotations

import math
from collections.abc import Callable

from relay_agent.attempt.telling import Teller
from relay_agent.attempt.wish import HEED, Saver, Wish
from relay_agent.process import say
from relaytui.wire.clock import Clock

LAST = 1.0
"""Seconds for a SIGTERM that nothing handles to do its work."""
UNHEEDED = "the trainer takes no wish for a checkpoint and knows no SIGTERM: it is stopped"


class Gently:
    """Of a trainer that runs. `grace`: seconds that it has to save; `answers`: whether it has taken such a wish before;
    `hurried`: whether nothing is waited for any more, as it has exited or is being stopped, or the pod or the lease is
    about to go. `more`: seconds that a save which is there has besides to keep still."""

    def __init__(
        self,
        saver: Saver,
        clock: Clock,
        tell: Teller,
        grace: float,
        answers: Callable[[], bool],
        hurried: Callable[[], bool],
        more: float,
    ) -> None:
        self._saver = saver
        self._clock = clock
        self._tell = tell
        self._grace = grace
        self._answers = answers
        self._hurried = hurried
        self._more = more

    async def save(self) -> float:
        """Returns when it may get SIGTERM: at once where it handles that, and is not known to answer the file. By when
        it is to be dead, on the boot clock: what handles no SIGTERM can do no more with it, so its grace began here."""
        began = self._clock.boot()
        handles = await self._saver.knows_sigterm()
        known = self._answers() and await self._saver.took_the_wish()
        if known or not handles:
            await self._ask_first(known)
        else:
            say("stopping the trainer, publishing what it saves")
        return math.inf if handles else max(began + self._grace, self._clock.boot()) + LAST

    async def _ask_first(self, known: bool) -> None:
        """`known`: it looks for the file, though one of its steps may take long."""
        say(f"the trainer is to save before it is stopped, in {self._grace:g} s at the latest")
        wish = await Wish.of(self._saver, self._clock)
        wish.heeded = wish.heeded or known
        asked = self._clock.boot()
        if await wish.came_true(lambda: asked + min(HEED, self._grace), self._hurried) or self._hurried():
            return
        if not wish.heeded:
            self._tell.event("order.unheeded", UNHEEDED)
            say(UNHEEDED)
            return
        if await wish.came_true(lambda: asked + self._grace, self._hurried) or self._hurried():
            return
        if there := self._saver.awaited:
            say(there)
            until = asked + self._grace + self._more
            if await wish.came_true(lambda: until if self._saver.undecided else 0.0, self._hurried) or self._hurried():
                return
        say(f"no checkpoint came in {self._clock.boot() - asked:.0f} s: stopping the trainer")
