"""The commander's log: never in the way of its loop, and never the same words without end.

A line goes into a bounded queue; a thread takes it to whatever handlers there are, or to stderr where there are none.
What finds no room is counted and said when there is some again.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator

from relaytui.wire.text import counted

WAITING = 500
"""Lines on their way to whoever reads them."""
ALIKE = 5
PERIOD = 60.0
"""Seconds in which no more than `ALIKE` lines of one kind are said; the rest is counted."""
KINDS = 200
CLOSE_WITHIN = 1.0
_LOGGERS = ("relaytui.commander", "asyncio")
_Kind = tuple[object, ...]


class Seldom:
    """How often what was said: lets the first of a kind through in each period, and counts the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[_Kind, tuple[float, int]] = {}

    def take(self, record: logging.LogRecord) -> int | None:
        """How many of its kind were kept back since the last one that was let through; None: this one is, too."""
        error = record.exc_info[0] if record.exc_info else None
        kind: _Kind = (record.name, record.levelno, str(record.msg)[:60], error)
        now = self._clock()
        if kind not in self._said and len(self._said) >= KINDS:
            self._said = {kind: said for kind, said in self._said.items() if now - said[0] < PERIOD}
            kind = kind if len(self._said) < KINDS else ("others",)
        since, count = self._said.get(kind, (now, 0))
        if now - since >= PERIOD:
            self._said[kind] = (now, 1)
            return max(0, count - ALIKE)
        self._said[kind] = (since, count + 1)
        return 0 if count < ALIKE else None


class Aside(logging.Handler):
    """Takes records in at once, whatever becomes of them; `stop` leaves what nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self._seldom = Seldom()
        self._waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(WAITING)
        self._dropped = 0
        self._stopping = threading.Event()
        self._words = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
        self._thread = threading.Thread(target=self._work, name="relay-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        kept_back = self._seldom.take(record)
        if kept_back is None:
            return
        # Made into words here: arguments may change before the thread comes to them, and may hold anything.
        ready = copy.copy(record)
        ready.msg = record.getMessage()
        if kept_back:
            ready.msg += f" ({kept_back} more like this were not said)"
        if self._dropped:
            ready.msg += f" ({counted(self._dropped, 'line')} before this dropped: nobody read them)"
        ready.args = None
        if record.exc_info:
            ready.exc_text = self._words.formatException(record.exc_info)
            ready.exc_info = None
        try:
            self._waiting.put_nowait(ready)
            self._dropped = 0
        except queue.Full:
            self._dropped += 1

    def stop(self) -> None:
        self._stopping.set()
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(CLOSE_WITHIN)

    # -- in the thread -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not (self._stopping.is_set() and self._waiting.empty()):
            record = self._waiting.get()
            if record is None:
                return
            handlers = logging.getLogger().handlers
            for handler in handlers:
                if record.levelno >= handler.level:
                    handler.handle(record)
            if not handlers and not say(self._words.format(record) + "\n", lambda: not self._stopping.is_set()):
                return


def say(words: str, patience: Callable[[], bool] = lambda: False) -> bool:
    """Onto stderr as far as somebody reads it, and never waiting for that; `patience`: whether to try on."""
    stream = sys.stderr
    try:
        if stream is None or stream is not sys.__stderr__ or not isinstance(stream, io.TextIOWrapper):
            print(words, end="", file=stream, flush=True)
            return True
        fd, left = stream.fileno(), words.encode("utf-8", "backslashreplace")
        while left:
            # A pipe that is ready takes this much without waiting; one that nobody reads is never ready.
            if select.select([], [fd], [], 0.1)[1]:
                left = left[os.write(fd, left[: select.PIPE_BUF]) :]
            elif not patience():
                return False
    except (OSError, ValueError):
        pass  # closed: nobody wants to know
    return True


_lock = threading.Lock()
_users = 0
_handler: Aside | None = None


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """While a commander runs here, its words (and those of its loop) take the way of this module."""
    global _users, _handler
    with _lock:
        _users += 1
        if _handler is None:
            _handler = Aside()
            for name in _LOGGERS:
                logging.getLogger(name).addHandler(_handler)
                logging.getLogger(name).propagate = False
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            handler, _handler = (_handler, None) if not _users else (None, _handler)
            if handler is not None:
                for name in _LOGGERS:
                    logging.getLogger(name).removeHandler(handler)
                    logging.getLogger(name).propagate = True
        if handler is not None:
            handler.stop()
