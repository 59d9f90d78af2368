"""The time by which a checkpoint keeps still: only what somebody looked on at counts.

While a process of the trainer is stopped (SIGSTOP, a debugger) nothing says that it is not in the middle of a save.
Between two looks far apart the agent may have stood still, its trainer beside it, or the trainer may have died in the
middle of a save: that nothing changed meanwhile says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

MOST = 1.0
"""Seconds that a gap between two looks counts for at most: twice the usual one."""


class Settling(NamedTuple):
    """What is whole once it has kept still for `needed` seconds, `kept` of which are over."""

    name: str
    saved_at: int
    kept: float
    needed: float


class Watching:
    def __init__(self) -> None:
        self.seconds = 0.0
        self.frozen: Callable[[], bool] = lambda: False
        """Whether who could change something is stopped."""
        self._last: float | None = None

    def look(self, now: float, *, over: bool = False, waits: bool = True) -> float:
        """Seconds watched until this look. `now`: of a clock that counts a suspend. `over`: nobody is left who could
        have changed anything, and since when is not known. `waits`: whether anything is to keep still."""
        if self._last is not None and not over and not (waits and self.frozen()):
            self.seconds += max(0.0, min(now - self._last, MOST))
        self._last = now
        return self.seconds
