"""The line to the agent: what is said to it without waiting for it, what it orders, and a place for the next one.

Whatever comes in, or does not go out, is no more than an agent that went: it never ends the guardian.
"""

from __future__ import annotations

# ruff: noqa: SIM105 - contextlib is not worth its memory here
import errno
import os
import time

from relay_agent.guardian.files import OURS
from relay_agent.guardian.protocol import BESIDE, ENDED, HEADER, HELLO, OUTPUT, SOCKET

LONGEST = 1024
"""Bytes of half an order that are kept; an order has a few."""
_LATER = (errno.ENOBUFS, errno.ENOMEM)
"""The system has no room for it now: that says nothing about who is at the other end."""
PAUSE = 0.02
CALLERS = 8
"""Who called and has said nothing yet; the others wait in the queue."""
CALLER_SPEAKS = 5.0
"""Seconds that a caller has to say that it is an agent."""


class Line:
    def __init__(self, fd: int, folder: str) -> None:
        self.fd = fd
        self.folder = folder
        self.listening = -1
        self.lost_at: float | None = None  # since when there is no agent
        self.pending = b""  # what the agent has not taken yet
        self.printed = 0  # bytes of the trainer's output
        self.skipped = False  # it missed some of that and has to be told how far it got
        self._heard = b""  # half an order
        self.callers: dict[int, float] = {}  # since when; none of them is our agent yet

    @property
    def alone(self) -> bool:
        return self.lost_at is not None

    # -- out -----------------------------------------------------------------------------------------------------

    def output(self, data: bytes) -> int:
        """What the trainer printed; the offset at which it begins."""
        offset, self.printed = self.printed, self.printed + len(data)
        if self.pending or self.alone:
            self.skipped = True
        else:
            self.tell(OUTPUT, data, offset)
        return offset

    def tell(self, kind: bytes, payload: bytes, offset: int = 0) -> None:
        if not self.alone:
            self.pending += HEADER.pack(kind, offset, len(payload)) + payload
            self.flush()

    def tell_printed(self) -> None:
        """It reads from the log what it has not got."""
        self.skipped = False
        self.tell(OUTPUT, b"", self.printed)

    def flush(self) -> None:
        """Send what the agent takes without waiting for it."""
        try:
            while self.pending:
                self.pending = self.pending[os.write(self.fd, self.pending) :]
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in _LATER:
                time.sleep(PAUSE)
            else:
                self.lose()
            return
        if self.skipped:
            self.tell_printed()

    # -- in ------------------------------------------------------------------------------------------------------

    def orders(self) -> list[bytes]:
        """Whole lines that came."""
        try:
            words = os.read(self.fd, 4096)
        except BlockingIOError:
            return []
        except OSError:
            words = b""
        if not words:
            self.lose()
            return []
        *lines, half = (self._heard + words).split(b"\n")
        self._heard = half[:LONGEST]
        return lines

    def lose(self) -> None:
        if self.lost_at is None:
            self.lost_at = time.monotonic()
            self.pending = self._heard = b""

    # -- the next agent ------------------------------------------------------------------------------------------

    def listen(self) -> bytes:
        """Be there for a new agent; why not, where that cannot be."""
        import _socket

        try:
            listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
            here = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.chdir(self.folder)  # a socket's whole path may have 107 bytes
                try:
                    os.unlink(SOCKET)  # noqa: PTH108
                except FileNotFoundError:
                    pass
                listener.bind(SOCKET)
                listener.listen(16)
            finally:
                os.fchdir(here)
                os.close(here)
            self.listening = listener.detach()
            os.set_blocking(self.listening, False)
        except OSError as error:
            return os.fsencode(f"{self.folder}: {error.strerror}")
        return b""

    def accept(self) -> None:
        """Somebody calls. Whether it is an agent shows once it has spoken; until then nothing changes."""
        import _socket

        try:
            fd, _ = _socket.socket(fileno=os.dup(self.listening))._accept()  # type: ignore[attr-defined]
        except BlockingIOError:
            return
        except OSError:  # no descriptor left, or who called has gone
            time.sleep(PAUSE)
            return
        os.set_inheritable(fd, False)
        os.set_blocking(fd, False)
        self.callers[fd] = time.monotonic()

    def greeted(self, caller: int, guard: str) -> bool:
        """Whether this caller proves to be our new agent, in place of the one that is gone."""
        try:
            # No more than the first line: what follows is read once it is our agent.
            said = b""
            while not said.endswith(b"\n") and len(said) < LONGEST:
                byte = os.read(caller, 1)
                said += byte
                if not byte:
                    break
        except OSError:  # it said half of it, which no agent does
            said = b""
        name = said[1:-1]
        if not (name and said.startswith(HELLO) and said.endswith(b"\n") and guard.encode().startswith(name)):
            self._drop(caller)
            return False
        del self.callers[caller]
        before, self.fd = self.fd, caller
        self.lost_at = None
        try:
            os.close(before)
        except OSError:
            pass
        return True

    def drop_silent(self) -> None:
        for caller, since in list(self.callers.items()):
            if time.monotonic() >= since + CALLER_SPEAKS:
                self._drop(caller)

    def _drop(self, caller: int) -> None:
        del self.callers[caller]
        os.close(caller)

    def asked_beside(self) -> bool:
        """Whether an agent that we did not hear has begun to stop the trainer."""
        return self.folder != "-" and os.path.lexists(f"{self.folder}/{BESIDE}")

    def leave_word(self, word: str) -> None:
        """For an agent that was not there when the trainer ended."""
        if self.folder == "-":
            return
        try:
            temporary = f"{self.folder}/{ENDED}.tmp"
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | OURS, 0o600)
            os.write(fd, word.encode())
            os.fsync(fd)
            os.close(fd)
            os.rename(temporary, f"{self.folder}/{ENDED}")  # noqa: PTH104
        except OSError:
            pass  # then it is known that it is gone, and not how
