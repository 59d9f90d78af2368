"""Signals that come before an agent listens to them, and after it has listened.

Without a handler SIGTERM kills Python outright, which is no exit code of ours; as the first process of a container it
does nothing at all. Slurm's warning, or a terminal that hangs up, would end an agent that has not even begun. Loaded
before anything else, so it imports next to nothing.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

STOPPED = 128 + signal.SIGTERM
HEARD: set[int] = set()
"""Those of `KEPT` that came before anybody listened."""
KEPT = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


def stop_at_once(code: int = STOPPED) -> None:
    """From now on SIGTERM ends this process with `code`: there is nothing to put away yet, or any more. What a
    scheduler or a terminal sends besides is kept in HEARD. What is ignored (nohup) stays so. In the main thread."""

    def leave(number: int, frame: FrameType | None) -> None:
        os._exit(code)

    def keep(number: int, frame: FrameType | None) -> None:
        HEARD.add(number)

    for number in (signal.SIGTERM, *KEPT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave if number == signal.SIGTERM else keep)
