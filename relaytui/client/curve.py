"""A metric over steps, one line per attempt, bounded. Values may be NaN."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite

from relaytui.wire.numbers import Number, unpack

MAX_POINTS = 4_096
"""Points kept per attempt; beyond that neighbours are merged to their lowest and highest."""


@dataclass
class Line:
    """One attempt's points, ascending in step."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def put(self, step: int, value: float) -> bool:
        if not self.steps or step > self.steps[-1]:
            self.steps.append(step)
            self.values.append(value)
        else:
            at = bisect_left(self.steps, step)
            if self.steps[at] == step:
                if self.values[at] == value:
                    return False
                self.values[at] = value
            else:
                self.steps.insert(at, step)
                self.values.insert(at, value)
        if len(self.steps) > MAX_POINTS:
            self._thin()
        return True

    def _thin(self) -> None:
        """Halve: of every four neighbours keep the lowest and the highest, and any that is no number."""
        steps: list[int] = []
        values: list[float] = []
        for start in range(0, len(self.steps), 4):
            block = range(start, min(start + 4, len(self.steps)))
            finite = [i for i in block if isfinite(self.values[i])]
            keep = {i for i in block if not isfinite(self.values[i])}
            if finite:
                keep |= {min(finite, key=self.values.__getitem__), max(finite, key=self.values.__getitem__)}
            for i in sorted(keep):
                steps.append(self.steps[i])
                values.append(self.values[i])
        if len(steps) > MAX_POINTS:  # all NaN: nothing to choose by
            steps, values = steps[::2], values[::2]
        self.steps, self.values = steps, values


class Curve:
    """Lines by epoch. `version` grows with every change."""

    def __init__(self) -> None:
        self.lines: dict[int, Line] = {}
        self.version = 0

    def add(self, points: Iterable[tuple[int, int, Number]]) -> None:
        """Points are (epoch, step, value); those known already change nothing."""
        changed = False
        for epoch, step, value in points:
            line = self.lines.get(epoch)
            if line is None:
                line = self.lines[epoch] = Line()
            changed |= line.put(step, unpack(value))
        if changed:
            self.version += 1
