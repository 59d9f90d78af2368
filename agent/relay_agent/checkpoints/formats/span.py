"""A stretch of an open file, read at given places: never past its end, never more than was asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass

from relay_agent.checkpoints.tree import Torn


@dataclass(frozen=True)
class Span:
    """`size` bytes of the file open as `fd`, from its byte `start` on. Reading moves no file position."""

    fd: int
    start: int
    size: int

    @classmethod
    def of(cls, fd: int) -> Span:
        return cls(fd, 0, os.fstat(fd).st_size)

    def read(self, at: int, count: int) -> bytes:
        """`count` bytes from `at` on (relative to the span). Torn where they are not all there."""
        if at < 0 or count < 0 or at + count > self.size:
            raise Torn("it points past its own end")
        data = os.pread(self.fd, count, self.start + at)
        while len(data) < count:
            more = os.pread(self.fd, count - len(data), self.start + at + len(data))
            if not more:
                raise Torn("it became shorter while it was read")
            data += more
        return data

    def head(self, count: int) -> bytes:
        return self.read(0, min(count, self.size))

    def tail(self, count: int) -> bytes:
        count = min(count, self.size)
        return self.read(self.size - count, count)

    def part(self, at: int, size: int) -> Span:
        """A stretch within this one. Torn where it does not lie in it."""
        if at < 0 or size < 0 or at + size > self.size:
            raise Torn("it points past its own end")
        return Span(self.fd, self.start + at, size)
