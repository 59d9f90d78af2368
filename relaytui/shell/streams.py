"""Standard streams that may be closed, full, or left by their reader.

What stdout does not take is said once, by an exception that is no OSError: click would end the process on those by
itself. What stderr does not take is lost: there is nobody to say it to.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any, TextIO


class Unwritable(Exception):  # noqa: N818 - what stdout is
    """Raised once, by the first write that stdout did not take."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.reader_gone = number in (errno.EPIPE, errno.ECONNRESET)
        self.why = "it is closed" if number == errno.EBADF else os.strerror(number).lower()


class _Raw(io.RawIOBase):
    """One descriptor; after the first failure a sink, or Python would try again, and fail, as it ends."""

    def __init__(self, number: int, *, loud: bool, closed: bool) -> None:
        self._number = number
        self._loud = loud
        self._closed = closed
        self._lost = False

    def write(self, data: Any, /) -> int:
        while not self._lost:
            try:
                if self._closed:
                    raise OSError(errno.EBADF, "")
                return os.write(self._number, data)
            except BlockingIOError:  # the shell left it non-blocking
                select.select([], [self._number], [])
            except OSError as error:
                self._lost = True
                if self._loud:
                    raise Unwritable(error.errno or errno.EIO) from None
        return len(data)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return not self._closed and os.isatty(self._number)


def settle_streams() -> None:
    """Put streams in place that cannot bring a command down; a locale without UTF-8 costs a `?`, no traceback."""
    closed = _fill_descriptors()
    settled = {
        "stdin": sys.stdin if sys.stdin is not None else open(0, encoding="utf-8", closefd=False),  # noqa: SIM115
        "stdout": _stream(1, sys.stdout, loud=True, closed=1 in closed),
        "stderr": _stream(2, sys.stderr, loud=False, closed=2 in closed),
    }
    for name, stream in settled.items():
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)  # others know the terminal by this one


def _stream(number: int, before: TextIO | None, *, loud: bool, closed: bool) -> TextIO:
    raw = _Raw(number, loud=loud, closed=closed)
    encoding = before.encoding if before is not None else "utf-8"
    buffer = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, encoding, errors="replace", line_buffering=not loud or raw.isatty())


def _fill_descriptors() -> set[int]:
    """Descriptors 0 to 2 are open afterwards: a socket that got the number of a closed one would be written to.

    Which of them were closed.
    """
    closed = set[int]()
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            closed.add(number)
            null = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            os.set_inheritable(null, True)
    return closed
