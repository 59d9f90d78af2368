"""Whether a loss that is finite goes bad: far above where it was, and staying there.

Robust on purpose, as a false alarm costs trust: single spikes, noise however strong, and a loss that says nothing (of
reinforcement learning, or one that is not positive) raise none. Steps are the trainer's, as it prints them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from enum import StrEnum

from relay_agent.watchdog.middle import median

WINDOW = 256
"""Sightings that say what is usual."""
LEAST = 48
"""Of these, before anything is unusual."""
IN_A_ROW = 20
"""Sightings far above the usual, one after another, that make an alarm."""
NOT_FINITE = 3
"""Sightings that are no number, one after another, that a policy acts on: a loss scale that was too high skips one."""
REFRESH = 64
"""Sightings between two looks at the whole window."""
FAR = 8.0
"""Times the usual deviation that are far, …"""
LEAST_FAR = 0.25
"""… and this much of the usual value at least."""
UNLEARNT = 0.5
"""How much of what the loss had come down since the start must be lost."""
_NORMAL = 1.4826
"""From a median absolute deviation to a standard deviation."""
_REWARDED = ("reward", "rewards/mean", "score/mean")
MAX_STRETCHES = 100
"""Far above the usual, the latest: what is saved now was not saved in an earlier one."""


class Bad(StrEnum):
    """What is wrong with a loss."""

    NONFINITE = "not finite"
    DIVERGING = "diverging"


class LossTrend:
    """Of one attempt. `see` takes every line that told a step, in order."""

    def __init__(self) -> None:
        self.bad: Bad | None = None
        """Now, and long enough for a policy to act on."""
        self.since = 0
        """The step at which that began."""
        self.finite = False
        """A finite loss was seen in this attempt."""
        self._off = False
        self._names = 0  # metrics of the line that was asked last whether it tells of a reward
        self._usual: deque[float] = deque(maxlen=WINDOW)
        self._best = math.inf  # the lowest median of the window so far
        self._spread = math.inf  # the deviation there
        self._start = math.nan
        self._limit = math.inf
        self._new = 0  # of the window since `_limit` was made
        self._row = 0  # sightings above it, one after another
        self._row_since = 0
        self._nans = 0
        self._nans_since = 0
        self._stretches: deque[tuple[int, int | None]] = deque(maxlen=MAX_STRETCHES)  # first step, first one after

    @property
    def usual(self) -> float:
        """The level that the loss had come down to; inf before that is known."""
        return self._best

    def healthy(self, step: int) -> bool:
        """Whether a checkpoint of this step was saved outside of every stretch far above the usual, one that is too
        short for an alarm yet included: nobody knows what becomes of it."""
        return not any(first <= step and (end is None or step < end) for first, end in self._stretches)

    def see(self, step: int, metrics: Mapping[str, float], sick: bool = False) -> Bad | None:
        """What begins to be wrong for good with this line. `sick`: it is known not to be finite, though the line may
        not show it."""
        loss = metrics.get("loss")
        if len(metrics) != self._names:
            self._names = len(metrics)
            if not self._off and any(name.endswith(_REWARDED) for name in metrics):
                self._turn_off()
        if sick or (loss is not None and not math.isfinite(loss)):
            return self._see_no_number(step)
        if loss is None:
            return None
        self._nans = 0
        self.finite = True
        if self.bad is not None and self.bad is Bad.NONFINITE:  # a member of an enum takes a while to find
            self.bad = None
        if not self._off and loss <= 0:
            self._turn_off()
        return None if self._off else self._see_number(step, loss)

    def _see_no_number(self, step: int) -> Bad | None:
        if not self._nans:
            self._nans_since = step
        self._nans += 1
        if self._nans < NOT_FINITE or self.bad is Bad.NONFINITE:
            return None
        self.bad, self.since = Bad.NONFINITE, self._nans_since
        return self.bad

    def _see_number(self, step: int, loss: float) -> Bad | None:
        if loss <= self._limit:
            self._usual.append(loss)
            self._new += 1
            if (self._new >= REFRESH or self._limit == math.inf) and len(self._usual) >= LEAST:
                self._look_at_window()
            if self._row:
                self._row = 0
                self._stretches[-1] = self._stretches[-1][0], step
            if self.bad is not None and self.bad is Bad.DIVERGING:
                self.bad = None
            return None
        if not self._row:
            self._row_since = step
            self._stretches.append((step, None))
        elif step < self._row_since:  # the counter went back
            self._row_since = step
            self._stretches[-1] = step, None
        self._row += 1
        if self._row < IN_A_ROW or self.bad is Bad.DIVERGING:
            return None
        self.bad, self.since = Bad.DIVERGING, self._row_since
        return self.bad

    def _look_at_window(self) -> None:
        """Make the limit anew: from the best level so far and how much the loss moves around it."""
        self._new = 0
        usual = list(self._usual)
        level, spread = median(usual), _spread(usual)
        if math.isnan(self._start):
            self._start = median(usual[:8])
        if level < self._best:
            self._best, self._spread = level, spread
        far = max(FAR * max(spread, self._spread), LEAST_FAR * self._best)
        self._limit = self._best + max(far, UNLEARNT * max(0.0, self._start - self._best))

    def _turn_off(self) -> None:
        """For good: what is optimized is not this loss."""
        self._off, self._limit = True, math.inf
        self._usual.clear()
        if self._stretches and self._stretches[-1][1] is None:
            self._stretches.pop()
        if self.bad is Bad.DIVERGING:
            self.bad = None


def _spread(losses: list[float]) -> float:
    """How much they move around where they are, as a standard deviation: in the middle one of four parts, so that what
    was learnt meanwhile is no movement, nor are spikes."""
    size = len(losses) // 4
    parts = [losses[start : start + size] for start in range(0, 4 * size, size)]
    return _NORMAL * median([_deviation(part) for part in parts])


def _deviation(losses: list[float]) -> float:
    return median(map(abs, map((-median(losses)).__add__, losses)))
