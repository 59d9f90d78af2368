"""Ctrl-C where there is nothing to put away: the process is gone at once, without a word.

Loaded before anything else, so it imports next to nothing: most of the first tenth of a second is imports.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130


def leave_at_once(code: int = INTERRUPTED) -> None:
    """From now on Ctrl-C ends this process with `code`, whatever it is in the middle of. Call it in the main thread.

    Commands that have something to put away take the signal themselves meanwhile. Where the signal is ignored
    (nohup, a job in the background) it stays so.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        os._exit(code)

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, leave)
