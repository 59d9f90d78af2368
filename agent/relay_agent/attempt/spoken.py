"""What the pod's own log says of a training that goes well: its first step, and about once a minute how far it is."""

from __future__ import annotations

from collections.abc import Callable

from relay_agent.process import say
from relaytui.wire.clock import Clock
from relaytui.wire.numbers import unpack
from relaytui.wire.reports import Step, TelemetryReport

EVERY = 60.0
"""Seconds from one line to the next, at least."""


class Spoken:
    """Hands every report on. `loss` is told where the trainer tells it with a step."""

    def __init__(self, hand_on: Callable[[TelemetryReport], None], clock: Clock) -> None:
        self._hand_on = hand_on
        self._clock = clock
        self._due = 0.0

    def __call__(self, report: TelemetryReport) -> None:
        self._hand_on(report)
        if not isinstance(report, Step) or self._clock.boot() < self._due:
            return
        self._due = self._clock.boot() + EVERY
        words = f"step {report.step}" + (f" of {report.total}" if report.total is not None else "")
        if "loss" in report.metrics:
            words += f", loss {unpack(report.metrics['loss']):.4g}"
        say(words)
