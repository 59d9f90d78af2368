"""How long a trainer may go without a step, learnt from how it went so far."""

from __future__ import annotations

from collections import deque

from relay_agent.watchdog.middle import median
from relay_agent.watchdog.phases import Phase

LEARNT = 3
"""Gaps between steps from which on they tell something."""
RECENT, PAUSES = 32, 16
TIMES = 20.0
"""A stall is a silence this many times as long as the slowest of the recent steps, …"""
TIMES_LONG, LONG = 3.0, 3_600.0
"""… but of slow steps, or of pauses seen before, this many times is enough where it is an hour or more."""
OUTLIER = 10.0
"""A gap so many times the usual one is a pause: a save or an evaluation that nobody announced."""
ENOUGH = 8
"""Gaps from which on there is a usual one."""


class Pace:
    """Gaps between steps in seconds. Steps that come in bursts, as a buffer hands them on, are one arrival each."""

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=RECENT)
        self._pauses: dict[Phase, deque[float]] = {}

    def stepped(self, gap: float, during: Phase = Phase.TRAINING) -> None:
        """A step came `gap` after the one before; `during`: what else went on meanwhile, if anything did."""
        if during is Phase.TRAINING and len(self._gaps) >= ENOUGH and gap > OUTLIER * median(self._gaps):
            self._pause(Phase.TRAINING, gap)
        elif during is Phase.TRAINING:
            self._gaps.append(gap)
        else:
            self._pause(during, gap)

    def _pause(self, phase: Phase, gap: float) -> None:
        self._pauses.setdefault(phase, deque(maxlen=PAUSES)).append(gap)

    @property
    def learnt(self) -> bool:
        return len(self._gaps) >= LEARNT

    def allows(self, phase: Phase) -> float:
        """Seconds that this phase may take, by what was seen of it; 0 where nothing was."""
        longest = max(self._pauses.get(phase, ()), default=0.0) * TIMES_LONG
        if phase is not Phase.TRAINING or not self._gaps:
            return longest
        slowest = max(self._gaps)
        return max(longest, min(TIMES * slowest, max(TIMES_LONG * slowest, LONG)))
