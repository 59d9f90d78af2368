"""Before a stop that nobody hurries: a trainer that would only die of SIGTERM is asked for a checkpoint first."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

from relay_agent.attempt.telling import Teller
from relay_agent.attempt.wish import LOOK, Saver, Wish
from relay_agent.checkpoints.watching import Settling
from relay_agent.process import say
from relaytui.wire.clock import Clock
from relaytui.wire.text import clean, sayable

LAST = 1.0
"""Seconds for a SIGTERM that nothing handles to do its work."""
QUIET = 2.0
"""Seconds without a change after which nobody is writing to a save any more, for all that is seen."""


class Stoppable(Saver, Protocol):
    def settling(self) -> list[Settling]:
        """What it saved that has yet to keep still, in the order of saving."""


class Gently:
    """Of a trainer that runs. `grace`: seconds that it has to save; `answers`: whether it has taken such a wish before;
    `hurried`: whether nothing is waited for any more, as it has exited or is being stopped, or the pod or the lease is
    about to go. `more`: seconds that a save which is there has besides to keep still."""

    def __init__(
        self,
        saver: Stoppable,
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
        wish.heeded = wish.heeded or (known and not wish.unasked)
        asked = self._clock.boot()
        if await wish.came_true(lambda: asked + min(wish.heeded_within, self._grace), self._hurried) or self._hurried():
            return
        if not wish.heeded:
            await self._let_settle(asked + self._grace + self._more, wish.unheeded)
            return
        if await wish.came_true(lambda: asked + self._grace, self._hurried) or self._hurried():
            return
        if there := self._saver.awaited:
            say(there)
            until = asked + self._grace + self._more
            if await wish.came_true(lambda: until if self._saver.undecided else 0.0, self._hurried) or self._hurried():
                return
        say(f"no checkpoint came in {self._clock.boot() - asked:.0f} s: stopping the trainer")

    async def _let_settle(self, until: float, unheeded: str) -> None:
        """Nothing will answer: its last saves are what there is, and no longer known to be whole once it is stopped."""
        there = self._saver.settling()
        words = f"{unheeded}: it is stopped"
        if there:
            name, _, kept, needed = there[-1]
            still = f"has kept still for {needed:g} s, in {max(1.0, needed - kept):.0f} s"
            words += f" once {clean(sayable(name), 128)}, which it saved before, {still}"
        self._tell.event("order.unheeded", words)
        say(words)
        names, began = {each.name for each in there}, self._clock.boot()
        while not self._hurried() and (now := self._clock.boot()) < until:
            left = [each for each in self._saver.settling() if each.name in names]
            if not any(now - began < QUIET or each.kept >= QUIET for each in left):
                break
            await asyncio.sleep(LOOK)
        if there and not self._hurried():
            say("stopping the trainer")
