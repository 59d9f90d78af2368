"""Time, as both sides measure it. Injected everywhere, so that both can run in one simulation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    def wall(self) -> float:
        """Seconds since 1970. Shown to people, never compared."""
        ...

    def boot(self) -> float:
        """Seconds that also count suspend (CLOCK_BOOTTIME on Linux). All deadlines are on this clock."""
        ...

    def boot_id(self) -> str:
        """Changes when `boot` starts over."""
        ...


class SystemClock:
    """The machine's own clock."""

    _source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def wall(self) -> float:
        return time.time()

    def boot(self) -> float:
        return time.clock_gettime(self._source)

    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            # No boot id (macOS): the time of boot, to the ten seconds, changes at every boot too.
            return f"boot-{int((time.time() - self.boot()) / 10)}"
