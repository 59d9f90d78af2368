"""Ends the process where leaving in order does not: a frozen terminal takes no bytes, and its writer waits for it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from types import TracebackType
from typing import Any, Self

PATIENCE = 2.5
"""Seconds that leaving in order may take after a signal."""
AGAIN = 0.3
"""Seconds after which a second signal is another one; a terminal that closes may send several at a time."""
_LEAVE = b"\x1b[<u\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?2004l\x1b[?1004l\x1b[?7h\x1b[?1049l\x1b[?25h"


class LastResort:
    """While entered, `begin` gives leaving in order some seconds; called again, none. Leaving the block cancels it."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._timer: threading.Timer | None = None
        self._begun = 0.0
        self._attributes: list[Any] | None = None

    def __enter__(self) -> Self:
        with contextlib.suppress(Exception):  # no terminal, or a system without termios
            import termios

            self._attributes = termios.tcgetattr(sys.__stdin__.fileno())  # type: ignore[union-attr]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def begin(self, number: int) -> None:
        """Called with the signal's number, in the main thread."""
        if self._timer is not None:
            if time.monotonic() - self._begun > AGAIN:
                self._end(number)
            return
        self._begun = time.monotonic()
        self._timer = threading.Timer(self._patience, self._end, (number,))
        self._timer.daemon = True
        self._timer.start()

    def _end(self, number: int) -> None:
        """Nothing here waits for the terminal."""
        with contextlib.suppress(Exception):
            import termios

            if self._attributes is not None:
                termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, self._attributes)  # type: ignore[union-attr]
            # If it takes bytes after all, it gets its own screen back.
            terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            os.write(terminal, _LEAVE)
        os._exit(128 + number)
