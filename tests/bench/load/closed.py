"""A closed loop over many sockets that costs next to nothing: frames that were made before, one epoll, no event loop.

Each line has one frame in flight; what comes back has to be the answer to it, byte for byte, and the next goes out.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence

from tests.bench.load.websocket import PONG, ClosedError, frame

FIRST = 1_000_000_000
"""Of the numbers that are filled in: all have as many digits, so that all frames of a line are of one length."""
PAGE = 65_536
_PING = b"\x89\x00"


class Line:
    """One connection's frames, with a `%d` for their number: what is sent, and what has to come back."""

    def __init__(self, fd: int, sent: bytes, answer: bytes) -> None:
        """`sent`, `answer`: payloads."""
        self.fd = fd
        self._frame = frame(sent % FIRST).replace(str(FIRST).encode(), b"%d")
        size = len(answer % FIRST)
        head = bytes((0x81, size)) if size < 126 else b"\x81\x7e" + size.to_bytes(2, "big")
        self._answer = head + answer
        self._number = FIRST
        self._due = self._rest = b""
        self._sent_at = 0.0

    def send(self, now: float) -> None:
        self._number += 1
        self._due = self._answer % self._number
        self._sent_at = now
        data = self._frame % self._number
        if os.write(self.fd, data) != len(data):
            raise ClosedError("the socket took half a frame, with nothing else in it")

    def answered(self, now: float) -> float | None:
        """Seconds it took, once the whole answer is there; ClosedError where it is another one."""
        data = os.read(self.fd, PAGE)
        if data == self._due:
            return now - self._sent_at
        return self._looked_at(data, now)

    def _looked_at(self, data: bytes, now: float) -> float | None:
        if not data:
            raise ClosedError("the server hung up")
        data = self._rest + data
        while data.startswith(_PING):
            os.write(self.fd, frame(b"", PONG))
            data = data[len(_PING) :]
        self._rest = b"" if data == self._due else data
        if data == self._due:
            return now - self._sent_at
        if not (self._due.startswith(data) or data == _PING[:1]):
            raise ClosedError(f"{self._due!r} was due, and {data[:200]!r} came")
        return None


def went(lines: Sequence[Line], until: float, patience: float) -> list[float]:
    """Seconds of each answer to what was sent before `until` (perf_counter)."""
    took = list[float]()
    by_fd = {line.fd: line for line in lines}
    with select.epoll() as poll:
        for line in lines:
            poll.register(line.fd, select.EPOLLIN)
            line.send(time.perf_counter())
        left = len(lines)
        while left:
            ready = poll.poll(patience)
            if not ready:
                raise ClosedError(f"{left} got no answer for {patience:g} s")
            for fd, _ in ready:
                line = by_fd[fd]
                now = time.perf_counter()
                seconds = line.answered(now)
                if seconds is None:
                    continue
                took.append(seconds)
                if now < until:
                    line.send(now)
                else:
                    left -= 1
    return took
