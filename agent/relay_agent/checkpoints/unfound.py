"""A trainer that trains on and no checkpoint of it is found: it may save where nobody looks, and all is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from relay_agent.checkpoints.looked import CURE, STAGING
from relay_agent.checkpoints.recorder import Recorder
from relay_agent.process import say
from relaytui.wire.clock import Clock
from relaytui.wire.text import clean, sayable

NOTHING_FOR = 300.0
"""Seconds from its first step on. Said where it only saves more seldom, too: that costs nobody anything."""


class Unfound:
    """Of one attempt. `step_now`: the step that its trainer told last; `staging`, `own`: where is looked, `called`:
    what `own` is called."""

    def __init__(
        self, clock: Clock, step_now: Callable[[], int], staging: Path, own: Path, called: str, recorder: Recorder
    ) -> None:
        self._clock = clock
        self._step_now = step_now
        self._staging = staging
        self._own = own
        self._called = called
        self._recorder = recorder
        self._start: int | None = None
        self._since: float | None = None  # its first step
        self._over = False

    def look(self, found: bool) -> None:
        """`found`: anything that looks like one, whole or not, was ever there."""
        self._over = self._over or found
        if self._over:
            return
        step, now = self._step_now(), self._clock.boot()
        self._start = step if self._start is None else self._start
        if self._since is None:
            self._since = now if step > self._start else None
        elif now - self._since >= NOTHING_FOR:
            self._over = True
            where = f"{STAGING} ({self._staging}) and in {self._called} ({self._own})"
            words = f"{NOTHING_FOR / 60:g} minutes after its first step no checkpoint was found: Relay looks in {where}"
            words = clean(sayable(f"{words}; if it saves elsewhere, {CURE}"), 1000)
            self._recorder.event("checkpoint.none", words)
            say(words)
