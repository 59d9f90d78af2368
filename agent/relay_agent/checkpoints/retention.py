"""Which checkpoints stay besides the newest ones: milestones, and the best by a metric."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from relay_agent.checkpoints.manifest import Sealed

_METRIC = re.compile(r"(?P<sign>[-+]?)(?P<name>[A-Za-z][\w/.@-]{0,127})(?:\s+(?P<word>min|max))?")


@dataclass(frozen=True)
class Best:
    """`name` of a metric, as the trainer prints it; whether the highest value is the best, or the lowest."""

    name: str
    highest: bool = False

    @classmethod
    def parse(cls, text: str) -> Best | None:
        """`eval_loss` and `eval_loss min`: the lowest; `-reward` (the lowest of it turned round) and `reward max`: the
        highest. None where it is none of these."""
        match = _METRIC.fullmatch(text.strip())
        if match is None or (match["sign"] and match["word"]):
            return None
        return cls(match["name"], match["sign"] == "-" or match["word"] == "max")

    def of(self, line: Sequence[Sealed]) -> Sealed | None:
        """The best of a line (newest first) whose loss was finite; of equal ones the earliest."""
        known = [sealed for sealed in line if sealed.manifest.healthy and self.name in sealed.manifest.metrics]
        turn = -1 if self.highest else 1
        return min(reversed(known), key=lambda sealed: turn * sealed.manifest.metrics[self.name], default=None)


@dataclass(frozen=True)
class Retention:
    """`every`: steps from one milestone to the next, 0 for none."""

    every: int = 0
    best: Best | None = None

    def spared(self, line: Sequence[Sealed]) -> Iterator[str]:
        """Names of a line (newest first) that stay. A milestone is the first one at or after each multiple of `every`:
        many trainers save at 499 or at the ends of epochs."""
        if self.every:
            passed = 0
            for sealed in reversed(line):
                if sealed.manifest.step // self.every > passed:
                    passed = sealed.manifest.step // self.every
                    yield sealed.name
        if self.best is not None and (best := self.best.of(line)) is not None:
            yield best.name


NEWEST_ONLY = Retention()
