"""When something is sent next, after success and after failure. Pure: time and chance come in."""

from __future__ import annotations

import math
import random

from relay_agent.sending.backoff import full_jitter
from relay_agent.sending.protocol import Kind

FIRST = 15.0
LONGEST = 900.0
"""Seconds that are waited after a failure, at most: each of a row may wait twice as long as the one before."""
TRIES = 8
"""In a row; then the next one comes in its turn."""
SOON = 60.0
"""Seconds between two that a better metric asks for, at least."""


class Schedule:
    """`interval`: seconds from one to the next; 0: after every checkpoint. All times on one clock."""

    def __init__(self, interval: float, rng: random.Random, now: float, since: float | None = None) -> None:
        """`since`: seconds since the last one of an earlier attempt; None: there was none."""
        self._interval = interval
        self._rng = rng
        self._due = now if since is None else now + max(0.0, interval - max(0.0, since))
        self._last = -math.inf if since is None else now - max(0.0, since)
        self._failed = 0
        self.stopped = False
        """What stands in the way stays until somebody sees to it."""

    @property
    def tries(self) -> int:
        """The number of the try that comes next, from 1."""
        return self._failed + 1

    def left(self, now: float) -> float:
        """Seconds until the next one is due; inf where none comes by itself."""
        return math.inf if self.stopped else max(0.0, self._due - now)

    def done(self, now: float) -> None:
        self._failed = 0
        self._last = now
        self._due = now + self._interval

    def failed(self, now: float, kind: Kind, wait: float | None = None) -> bool:
        """False where it is given up for now: for good, or until its next turn."""
        if kind == "permanent":
            self._failed = 0
            self.stopped = True
            return False
        self._failed += 1
        if self._failed >= TRIES:
            self._failed = 0
            self._due = now + max(self._interval, LONGEST)
            return False
        pause = full_jitter(self._rng, self._failed - 1, FIRST, LONGEST)
        self._due = now + (max(wait, 1.0) + self._rng.uniform(0.0, FIRST) if wait else pause)
        return True

    def at_once(self, now: float) -> None:
        """Somebody wants it now, whatever was wrong before."""
        self.stopped = False
        self._failed = 0
        self._due = now

    def better(self, now: float) -> None:
        """The best checkpoint so far is there: sooner than in its turn, unless it waits after a failure."""
        if not self._failed:
            self._due = min(self._due, max(now, self._last + SOON))
