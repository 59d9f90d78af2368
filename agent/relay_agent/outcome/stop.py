"""Why an attempt is asked to stop, and who has to hear of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from enum import IntEnum
from signal import SIGTERM

from relay_agent.checkpoints.tree import Cancelled


class Why(IntEnum):
    """The higher one counts where there are several."""

    AGAIN = 1  # it hangs, or trains into nothing: save, release, and go on from a checkpoint
    CHANGED = 2  # its command was changed: save, release, and go on with the new one
    SIGNAL = 3  # the pod is taken away: save, publish, say so
    CUT_OFF = 4  # no commander for longer than the lease, and the run is not to go on without one
    DRAIN = 5  # an operator wants it saved and released
    CANCEL = 6  # an operator wants it saved and never trained again
    LOST = 7  # another epoch took over: stop, publish nothing


class Stop:
    """Set once or more; `ask` calls back at once, also for who listens later."""

    def __init__(self) -> None:
        self.why: Why | None = None
        self.message = ""
        self.signal = 0
        self.ending = ""
        """Of `Why.AGAIN`: the name of what is wrong with the trainer (`endings`)."""
        self.healthy = False
        """Of `Why.AGAIN`: it goes on from the last checkpoint saved while the loss was finite."""
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        """A second signal came, or the pod's time is up: nothing is waited for any more."""
        self.dead_by = math.inf
        """On the boot clock: no later is the trainer's tree killed, whatever its grace, and what is sent waited for, as
        the pod goes."""
        self.kill_by = math.inf
        """The same of the trainer alone: what is sent once it is gone has its own time."""
        self._listeners: list[Callable[[bool], None]] = []

    def ask(self, why: Why, message: str, signal: int = 0) -> None:
        """`message` goes into the attempt's end. A second signal means: do not wait for the trainer. Without `signal`
        it is a notice that one will come."""
        again = bool(signal and self.signal)
        if self.why is None or why > self.why:
            self.why, self.message = why, message
        self.signal = self.signal or signal
        if again:
            self.hurried.set()
        self.asked.set()
        for listener in self._listeners:
            listener(again)

    def hurry(self) -> None:
        """Wait for nothing any more."""
        self.hurried.set()
        for listener in self._listeners:
            listener(True)

    @property
    def exit_code(self) -> int:
        """Of an agent whose trainer ended well, though it was stopped: whoever stopped the pod sees that it was."""
        return 128 + (self.signal or SIGTERM)

    def again(self, message: str, ending: str, *, healthy: bool = False) -> None:
        """The trainer is stopped as on a drain, so that it may save, and the same agent takes the run up anew, as far
        as the retry policy lets it. `healthy`: from the last checkpoint saved while the loss was finite; later ones
        stay where they are, off the line."""
        if self.why is None:
            self.ending, self.healthy = ending, healthy
        self.ask(Why.AGAIN, message)

    def anew(self) -> None:
        """What it was asked for, if anything, is done: the trainer is started once more by the same attempt."""
        assert self.why in (None, Why.AGAIN)
        self.why, self.message, self.ending, self.healthy = None, "", "", False
        self.asked.clear()
        self._listeners.clear()

    def listen(self, listener: Callable[[bool], None]) -> None:
        """`listener(at_once)` stops the trainer, or a wait."""
        self._listeners.append(listener)
        if self.asked.is_set():
            listener(False)

    def unless_asked(self) -> None:
        """For work before the trainer starts, in any thread: Cancelled once asked."""
        if self.asked.is_set():
            raise Cancelled

    def unless_hurried(self) -> None:
        """For what is seen to on the way out, in any thread: Cancelled once nothing is waited for, or all is lost."""
        if self.hurried.is_set() or self.lost:
            raise Cancelled

    @property
    def patient(self) -> bool:
        """Whether there is time left: a pod that is taken away has none, and what is lost is worth none."""
        return self.why in (None, Why.AGAIN, Why.CHANGED, Why.DRAIN, Why.CANCEL)

    @property
    def lost(self) -> bool:
        return self.why is Why.LOST
