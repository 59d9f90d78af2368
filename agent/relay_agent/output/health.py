"""Whether the loss is a number: which steps lie in a stretch of nan or inf, so that their checkpoints are known."""

from __future__ import annotations

import math
from collections.abc import Mapping

MAX_STRETCHES = 100
"""Of a loss that comes and goes, so many are told apart; the last one then goes on to the end."""


class Health:
    """Steps as the trainer prints them. A checkpoint of step N is healthy where the loss printed at N, or last before
    it, was finite; of one whose loss was never printed that is assumed."""

    def __init__(self) -> None:
        self._stretches: list[tuple[int, int | None]] = []  # first step that was not finite, first that was again
        self.sick = False
        """Now."""
        self.since: int | None = None
        """The lowest step that told how the loss was."""

    def see(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether a stretch begins here."""
        loss = metrics.get("loss")
        if loss and math.isfinite(loss) and not self.sick and self.since is not None and self.since <= step:
            return False  # as nearly all of them are
        finite = _is_finite(metrics)
        if finite is not None and (self.since is None or step < self.since):
            self.since = step
        if finite is None or (finite and not self.sick) or len(self._stretches) == MAX_STRETCHES:
            return False
        if not self.sick:
            self._stretches.append((step, None))
        elif finite:
            self._stretches[-1] = self._stretches[-1][0], step
        elif step < self._stretches[-1][0]:  # the counter went back
            self._stretches[-1] = step, None
        began, self.sick = not self.sick, not finite
        return began

    def healthy(self, step: int) -> bool:
        return not any(first <= step and (end is None or step < end) for first, end in self._stretches)


def _is_finite(metrics: Mapping[str, float]) -> bool | None:
    """None where the line says nothing of it. Some trainers show a loss of 0, or none, beside a gradient that is nan;
    an infinite gradient alone is what loss scaling looks like."""
    loss = metrics.get("loss")
    if loss:
        return math.isfinite(loss)
    if math.isnan(metrics.get("grad_norm", 0.0)) or math.isnan(metrics.get("norm", 0.0)):
        return False
    return None if loss is None else True
