"""How long a rollout takes, as earlier ones did: slime counts rollouts between saves, and Relay wishes seconds.

Nobody can tell before the first ones were made. So each attempt leaves word of its own in RELAY_OUTPUT_DIR, and the
next one goes by what the one before found; within an attempt slime's interval does not change.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median

NAME = "slime_rollouts.json"
ROLLOUT = re.compile(rb"(?:^|[\s\-])(?:rollout|perf) (\d{1,9}): \{")
REMEMBERED = 50
"""Rollouts; the last ones, for answers grow longer."""
LONGEST = 100_000
"""Rollouts between saves."""


class Pace:
    """Hears what the job prints; `file` is where word of it is left."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._last = -1
        self._since = 0.0
        self._seconds: list[float] = []
        self._tail = b""

    def hear(self, data: bytes) -> None:
        lines = (self._tail + data).split(b"\n")
        self._tail = lines.pop()[-200:]
        for line in lines:
            for found in ROLLOUT.finditer(line[:400]):
                self._made(int(found[1]))

    def _made(self, rollout: int) -> None:
        if rollout <= self._last:
            return
        now = self._clock()
        if self._last >= 0:
            self._seconds = [*self._seconds, (now - self._since) / (rollout - self._last)][-REMEMBERED:]
            self._leave_word()
        self._last, self._since = rollout, now

    def _leave_word(self) -> None:
        with suppress(OSError):
            between = self._file.with_name(self._file.name + ".tmp")
            between.write_text(json.dumps({"seconds": median(self._seconds)}), encoding="ascii")
            between.replace(self._file)


def known(output: Path) -> float:
    """Seconds for a rollout, by the latest attempt that made some; `output`: RELAY_OUTPUT_DIR of this one. 0: nobody
    knows."""
    with suppress(OSError):
        for folder in sorted(output.parent.iterdir(), key=lambda path: path.name, reverse=True):
            with suppress(OSError, ValueError, TypeError, KeyError):
                with (folder / NAME).open("rb") as file:
                    seconds = float(json.loads(file.read(1000))["seconds"])
                if 0 < seconds < 1e9:
                    return seconds
    return 0.0


def interval(wish: str, every: str, output: Path) -> str:
    """Rollouts between saves, for SLIME_SAVE_INTERVAL=auto (`wish`): as many as `every` (RELAY_CKPT_INTERVAL, seconds)
    has. Empty where nobody knows yet; anything but `auto` is what it is."""
    if wish != "auto":
        return wish
    seconds = known(output)
    if not seconds or not every.isascii() or not every.isdigit() or len(every) > 12:
        return ""
    return str(max(1, min(LONGEST, round(int(every) / seconds))))
