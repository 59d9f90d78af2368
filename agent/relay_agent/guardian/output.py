"""What the trainer prints, and when it is taken: at once, or, where nobody waits for it, now and then.

To be woken for every line costs whoever writes it more than the line does. So a trainer that prints without pause is
let gather for a moment, and, on the agent's word, one that prints a little is looked at now and then only. Whoever has
filled a quarter of its pipe between two looks is taken at once for a while, so that nobody waits long for room in it.
"""

from __future__ import annotations

# ruff: noqa: SIM105 - contextlib is not worth its memory here
import fcntl
import os
import sys
import time

from relay_agent.guardian import terminal
from relay_agent.guardian.protocol import CHUNK

PIPE = 1 << 20
TERMINAL = 64 << 10
"""More than the kernel keeps of what was printed to one: two buffers of a few KiB."""
LEAST = 64 << 10
"""Bytes that a pipe must hold to be let gather: a user who has many may get small ones only (pipe(7))."""
RUSH = 8
"""Reads in a row, each within RUSH_GAP seconds of the last, after which output is let gather for RUSH_PAUSE: a trainer
that prints without pause costs little, and one that prints now and then is heard at once."""
RUSH_GAP, RUSH_PAUSE = 0.001, 0.002
LOOK = 0.25
"""Seconds between two looks at how much has gathered."""
LIVELY = 60.0
"""Seconds for which a trainer that filled a quarter of its pipe meanwhile is taken at once."""
_FIONREAD = 0x541B if sys.platform == "linux" else 0


class Output:
    """The reading end of what the trainer prints to."""

    def __init__(self, fd: int, *, pty: bool) -> None:
        self.fd = fd
        """-1 once there is no more."""
        self.gather = 0.0
        """Seconds from one read to the next that the agent is content with."""
        self.holds = PIPE
        """Bytes that wait in it at most: what was printed before some moment is among as many as are read after it."""
        self._room = bytearray(CHUNK)  # a new one for each read would be a mapping made and taken away
        self._read_at = float("-inf")
        self._rush = 0
        self._lively_until = 0.0
        self._quarter = 0  # 0: it holds too little to be let gather, or does not tell how much
        if fd < 0:
            return
        os.set_blocking(fd, False)
        if pty:
            self.holds = TERMINAL
        if pty or not _FIONREAD:
            return
        try:
            fcntl.fcntl(fd, getattr(fcntl, "F_SETPIPE_SZ", 1031), PIPE)
        except OSError:
            pass  # a smaller pipe does too
        try:
            size = fcntl.fcntl(fd, getattr(fcntl, "F_GETPIPE_SZ", 1032))
        except OSError:
            return
        self.holds = size
        self._quarter = size // 4 if size >= LEAST else 0

    def pause(self) -> float:
        """Seconds until it is to be looked at again; 0: whatever there is is to be taken at once."""
        if not self.gather or not self._quarter:
            return 0.0
        now = time.monotonic()
        left = min(self.gather, self._read_at + self.gather - now)
        if left <= 0 or now < self._lively_until:
            return 0.0
        gathered = self._gathered()
        if gathered is None:
            self._quarter = 0
            return 0.0
        if gathered >= self._quarter:
            self._lively_until = now + LIVELY
            return 0.0
        return min(left, LOOK)

    def _gathered(self) -> int | None:
        """Bytes that wait; None where the system does not tell."""
        count = bytearray(4)
        try:
            fcntl.ioctl(self.fd, _FIONREAD, count)
        except OSError:
            return None
        return int.from_bytes(count, sys.byteorder)

    def take(self) -> bytes:
        """A chunk of it; nothing where there is none for now, or ever (`fd` says)."""
        now = time.monotonic()
        self._rush = self._rush + 1 if now - self._read_at < RUSH_GAP else 0
        if self._rush > RUSH:
            time.sleep(RUSH_PAUSE)
        self._read_at = time.monotonic()
        try:
            data = bytes(memoryview(self._room)[: os.readv(self.fd, [self._room])])
        except BlockingIOError:
            return b""
        except OSError as error:
            if not terminal.ended(error):
                raise
            data = b""
        if not data:
            os.close(self.fd)
            self.fd = -1
        return data
