"""How the loss of an earlier attempt was, by what the volume has of it: its log, and the events that its agent noted.

Its agent is gone, and so is what it knew. The end of a long log does not tell what the usual loss was, nor when it
went bad; there the events do. Neither is trusted beyond that one word.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from relay_agent import guardian
from relay_agent.output import printed
from relay_agent.output.follow import Follower
from relay_agent.output.progress import Progress
from relay_agent.volume.volume import RunFolder, read_claim
from relaytui.wire.clock import Clock

END = 16 << 20
"""Bytes of a log, and of the events, that are read."""
NONFINITE, DIVERGING = "loss.nonfinite", "loss.diverging"


class _Event(msgspec.Struct):
    event: str
    epoch: int
    step: str


_STEP = re.compile("[0-9]{1,16}")
_event = msgspec.json.Decoder(_Event).decode


class Recorded:
    """Of the attempts of one run. `progress`: of a trainer that goes on from a step; `check` raises Cancelled once
    nobody waits; `reading` has something read where that is bounded in time."""

    def __init__(
        self, run: RunFolder, progress: Callable[[int], Progress], clock: Clock, check: Callable[[], None],
        reading: Callable[[Callable[[], bool]], bool] = lambda read: read(),
    ) -> None:  # fmt: skip
        self._run = run
        self._progress = progress
        self._clock = clock
        self._check = check
        self._reading = reading
        self._read: dict[int, tuple[Follower, bool]] = {}

    def well(self, epoch: int, step: int) -> bool | None:
        """Whether a checkpoint of that step was saved while the loss was well; None where nothing tells. Blocking."""
        follower, whole = self._of(epoch)
        if not self._reading(lambda: follower.well(step)):
            return False
        told = follower.health.since is not None and follower.health.since <= step
        if not (whole and told):
            began = {event.event for event in self._events(epoch) if _is_step(event.step) and int(event.step) <= step}
            if DIVERGING in began or (NONFINITE in began and not told):
                return False
        return True if told else None

    def last_step(self, epoch: int) -> int:
        """The last that it printed; that which it resumed from where it printed none. Blocking."""
        follower, _ = self._of(epoch)
        return follower.progress.step

    def over(self, epoch: int, step: int) -> bool:
        """Whether it can have been at its end where it has saved that step. Blocking."""
        follower, whole = self._of(epoch)
        progress = follower.progress
        # The last step is one below the total for who counts from 0, and only its first line tells who does.
        return progress.complete(max(progress.step, step) + (not whole))

    def total(self, epoch: int) -> int | None:
        """The last step that was to be made, as it told. Blocking."""
        follower, _ = self._of(epoch)
        return follower.progress.total

    def _of(self, epoch: int) -> tuple[Follower, bool]:
        if epoch not in self._read:
            self._read = {epoch: self._heard(epoch)}
        return self._read[epoch]

    def _heard(self, epoch: int) -> tuple[Follower, bool]:
        """All that its log tells, and whether that was read from its beginning."""
        log = self._run.log(epoch)
        follower = Follower(
            self._progress(self._start(epoch)), self._clock, lambda report: None, lambda mark: None, lambda: None
        )
        size = printed.size(log)
        start = max(0, size - END)
        for at, data in self._pieces(log, start, size):
            if at == start > 0:  # it begins in the middle of a line
                data = data.partition(b"\n")[2]
            self._reading(functools.partial(_replay, follower, data))
        return follower, not start

    def _pieces(self, path: Path, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        while start < end and (data := printed.read(path, start, min(guardian.CHUNK, end - start))):
            self._check()
            yield start, data
            start += len(data)

    def _start(self, epoch: int) -> int:
        """The step that it resumed from."""
        claim = read_claim(self._run, epoch)
        base = claim.base if claim is not None else None
        digits = (base or "").removeprefix("step_").partition(".")[0]
        return int(digits) if _is_step(digits) else 0

    def _events(self, epoch: int) -> Iterator[_Event]:
        size = printed.size(self._run.events)
        half = b""
        for _, data in self._pieces(self._run.events, max(0, size - END), size):
            *lines, half = (half + data).split(b"\n")
            half = half[: guardian.CHUNK]
            for line in lines:
                if b'"loss.' not in line:
                    continue
                try:
                    event = _event(line)
                except (msgspec.DecodeError, RecursionError):
                    continue
                if event.epoch == epoch:
                    yield event


def _replay(follower: Follower, data: bytes) -> bool:
    follower.replay(data)
    return True


def _is_step(text: str) -> bool:
    return _STEP.fullmatch(text) is not None
