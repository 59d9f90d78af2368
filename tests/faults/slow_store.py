"""The jobs of `relay_agent.artifacts.far` in small pieces with pauses, so that a kill finds them in the middle."""

from __future__ import annotations

import sys
import time
from typing import Any

from relay_agent.artifacts.far import JOBS, WORK, commander, failures, fetch, send
from relay_agent.artifacts.jobs import Attach
from relay_agent.sending.backoff import Backoff

__all__ = ["JOBS", "WORK"]

WORK = {job: name for job, name in WORK.items() if job is not Attach}
PAUSE = 0.01
PIECE = 16_384

for _module in (send, fetch, failures):
    sys.modules[f"{__name__}.{_module.__name__.rpartition('.')[2]}"] = _module
send.CHUNK = 32_768
commander.BACKOFF = Backoff(tries=40, first=0.05, longest=0.5)  # a commander that was killed is back soon
_once, _read = commander.Commander.once, fetch._Coming.read


def _slow_once(self: Any, *given: Any, **more: Any) -> Any:
    time.sleep(PAUSE)
    return _once(self, *given, **more)


def _slow_read(self: Any, count: int) -> bytes:
    time.sleep(PAUSE)
    return _read(self, min(count, PIECE))


commander.Commander.once = _slow_once  # type: ignore[method-assign]
fetch._Coming.read = _slow_read  # type: ignore[method-assign]
