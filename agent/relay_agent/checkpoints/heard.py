"""Whether all is heard that a trainer printed before a save of it was whole: the loss with which it was made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from relaytui.wire.clock import Clock

HEARD_WITHIN = 15.0
"""Seconds that a save waits for that; then it is published, and not called healthy."""


class Heard:
    """`patient`: whether anybody has the time to wait."""

    def __init__(self, clock: Clock, patient: Callable[[], bool]) -> None:
        self._clock = clock
        self._patient = patient
        self._since: float | None = None  # it was asked for in vain

    async def ask(self, catch_up: Callable[[], Awaitable[bool]] | None) -> bool | None:
        """None: it is worth waiting for, as a volume that is slow for a moment keeps the answer back."""
        if catch_up is None or await catch_up():
            self._since = None
            return True
        now = self._clock.boot()
        self._since = now if self._since is None else self._since
        return None if self._patient() and now < self._since + HEARD_WITHIN else False
