"""How far a long piece of work is, on one line of a terminal; nothing where stderr is a file or a pipe."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from relaytui.client.words import duration, size

EVERY = 0.2
_CLEAR = "\r\x1b[K"


class Progress:
    """Of `total` bytes. Used as `with Progress("fetching", total) as progress: progress.at(done)`."""

    def __init__(self, verb: str, total: int, done: int = 0) -> None:
        self._verb = verb
        self._total = total
        self._first = done
        self._began = self._said = time.monotonic()
        self._shown = False
        self._on = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

    def at(self, done: int) -> None:
        now = time.monotonic()
        if self._on and now - self._said >= EVERY:
            self._said, self._shown = now, True
            sys.stderr.write(_CLEAR + self.words(done, now - self._began))
            sys.stderr.flush()

    def words(self, done: int, seconds: float) -> str:
        """`fetching 1.2 GB of 20 GB, 90 MB/s, 3m left`"""
        said = f"{self._verb} {size(done)} of {size(self._total)}"
        rate = (done - self._first) / seconds if seconds > 0 else 0.0
        if rate >= 1.0:
            said += f", {size(int(rate))}/s, {duration((self._total - done) / rate)} left"
        return said
