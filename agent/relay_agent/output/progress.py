"""The progress of an attempt: which of the counts that a trainer prints is the one of its training.

What a line says is understood in `reading`; here it is judged by what was said before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import Struct

from relay_agent.reading.patterns import Pattern
from relay_agent.reading.reader import Reader
from relay_agent.reading.shapes import read
from relay_agent.reading.sight import Sight, evaluated

__all__ = ["Progress", "read"]


class Told(Struct, frozen=True, gc=False):
    """What there is to report of one step."""

    step: int
    total: int | None
    metrics: dict[str, float]


@dataclass
class _Count:
    """Sightings that named one and the same total."""

    last: int
    trains: bool = False  # one of them told of the training
    advances: int = 0  # since it last went back
    again: bool = False  # it went back: a loop that is run through more than once

    @property
    def established(self) -> bool:
        return self.advances >= 2

    def see(self, step: int) -> None:
        if step < self.last:
            self.advances, self.again = 0, True
        elif step > self.last:
            self.advances += 1
        self.last = step


@dataclass(slots=True)
class _Seen:
    """Sightings within a grain, as one: when the first and the last came, and the last step."""

    began: float
    at: float
    step: int


WINDOW, SIGHTINGS = 10.0, 10
"""Seconds and sightings that a rate is measured over: both at least, where there are as many."""
GRAIN = 0.25
SHORTEST = 0.5
"""Seconds from which on a rate says anything."""
MAX_COUNTS = 64


class Progress:
    """The progress of one attempt. Times are seconds of any clock that does not go back.

    A trainer may count other things than its steps (an evaluation: `step 10/10 loss 2.0`). The first total that comes
    with what training tells is the training's; another one is taken over only where the steps go on towards it, or
    begin anew once the first is reached.
    """

    def __init__(self, step: int = 0, total: int | None = None, patterns: Sequence[Pattern] = ()) -> None:
        self.step = step
        self.total = total
        self.first: int | None = None
        """The first step seen: where the trainer really began."""
        self.rate: float | None = None
        self.start = step
        self.stride = 0
        """The fewest steps from one line to the next, 0 where there were no two."""
        self._known_total = total is not None
        self._main: int | None = None  # the total that the training is printed with
        self._reader = Reader(step, patterns)
        self._counts: dict[int, _Count] = {}  # by total
        self._other: set[int] = set()  # totals of something else
        self._seen: deque[_Seen] = deque()

    def complete(self, step: int) -> bool:
        """Whether `step` is the last one, for all that is known. That is one below the total for who counts from 0, and
        only a start from the beginning shows who counts from 1. Who prints every tenth step may end between two lines.
        """
        if self.total is None:
            return True
        if self.first is None and step == 0:
            return False
        from_one = self.start == 0 and self.first is not None and self.first > 0
        from_zero = self.first in (0, self.start)
        stride = max(1, self.stride)
        return step >= self.total - (not from_one) or step + stride > self.total - from_zero

    def saved_last(self, newest: int | None) -> bool:
        """Whether a checkpoint of the last step, `newest`, shows that it was made. Stricter than `complete`: whoever is
        told to stop saves and exits 0 wherever it is."""
        if self.total is None or newest is None or newest < self.total:
            return False
        return self.first is None or (self.complete(self.step) and newest <= max(self.step, self.total))

    def worthy(self, lines: Sequence[str], form: bytes = b"") -> Iterator[str]:
        """Those of some lines that `see` may understand. Ask for the next one once it has seen the last."""
        return self._reader.worthy(lines, form)

    def see(self, text: str, now: float, nested: bool = False) -> Told | None:
        """Read one line, or one state of a bar; what it says, with the total known so far."""
        sight = self._reader.see(text, nested)
        return None if sight is None else self.take(sight, now)

    @property
    def waits(self) -> bool:
        """`flush` may have something to tell."""
        return self._reader.waits

    def flush(self, now: float) -> Told | None:
        """Nothing more is printed: what waited for another line."""
        sight = self._reader.flush()
        return None if sight is None else self.take(sight, now)

    def know_total(self, total: int) -> None:
        """Told by who has not to guess; whoever set a target knows better."""
        if not self._known_total:
            self.total, self._known_total = total, True

    def take(self, sight: Sight, now: float) -> Told | None:
        """What a line or a file of the trainer's own says."""
        step = sight.step
        if step is None:
            return None if self.first is None else Told(self.step, self.total, sight.metrics)
        if sight.sure:
            if sight.total is not None:
                self.know_total(sight.total)
        elif not self._is_ours(sight):
            return None
        if self.first is None:
            if sight.bar and step in (0, self.start):
                return None  # it was drawn before there was a step
            self.first = step
        elif step > self.step and (step - self.step < self.stride or not self.stride):
            self.stride = step - self.step
        self._pace(step, now)
        self.step = step
        return Told(step, self.total, sight.metrics)

    def _is_ours(self, sight: Sight) -> bool:
        """Whether it is about the steps of the training; takes over its total."""
        assert sight.step is not None
        if evaluated(sight.metrics):
            return sight.total is None
        if sight.total is None:
            return True
        count = self._counts.get(sight.total)
        if count is None:
            if len(self._counts) >= MAX_COUNTS:
                return False
            count = self._counts[sight.total] = _Count(sight.step)
        count.see(sight.step)
        count.trains |= bool(sight.metrics)
        if sight.total == self._main:
            return True
        if self._main is not None and not self._goes_on(sight.step, sight.total, count, self._counts[self._main]):
            self._other.add(sight.total)
            return False
        self._main = sight.total
        if not self._known_total:
            self.total = sight.total
        return True

    def _goes_on(self, step: int, total: int, count: _Count, main: _Count) -> bool:
        """Whether the training counts towards this total from here on."""
        assert self._main is not None
        if total == self.total:
            return True  # as is known from elsewhere
        if not (count.trains and main.trains):
            return count.trains  # lines with nothing but two numbers may be about anything
        if total < self._main or total in self._other:
            return False
        return (
            self.complete(self.step)
            or step == self.step + 1
            or (main.established and (main.again or step >= self.step))
        )

    def forget_pace(self) -> None:
        """What was seen came all at once, and not as it was printed."""
        self.rate = None
        self._seen.clear()

    def _pace(self, step: int, now: float) -> None:
        """Steps since the beginning of a window by its seconds; a step that goes back starts it anew.

        Buffers hand on many lines at once: only how far the steps came in much longer than that tells anything.
        """
        if step < self.step:
            self.forget_pace()
        seen = self._seen
        last = seen[-1] if seen else None
        if last is not None and now - last.began <= GRAIN:
            last.at, last.step = now, step
        elif last is None or step > last.step:
            seen.append(_Seen(now, now, step))
        while len(seen) > SIGHTINGS and now - seen[1].at >= WINDOW:
            seen.popleft()
        first = seen[0]
        if now - first.at >= SHORTEST and step > first.step:
            self.rate = (step - first.step) / (now - first.at)
