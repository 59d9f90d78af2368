"""The run's log, written where a volume that hangs stops nobody."""

from __future__ import annotations

import _queue
import _thread
import os

from relay_agent.guardian.files import open_own

LOG_QUEUE = 16  # chunks that may wait for a slow volume before the trainer has to


class Log:
    """The run's log, written by a thread so that a volume that hangs does not stop the guardian from obeying.

    A byte of output has the same offset in the file, also after a write that failed: that part stays a hole.
    """

    def __init__(self, path: str) -> None:
        self.trouble = ""
        self._put = 0  # each counter has one writer, so that no lock is needed
        self._written = 0
        self._queue: _queue.SimpleQueue[tuple[int, bytes] | None] = _queue.SimpleQueue()
        self._done = _thread.allocate_lock()
        self._path = path
        self._code = 0
        self._fd = -1

    def start(self) -> None:
        self._done.acquire()
        _thread.start_new_thread(self._write_all, ())

    @property
    def waiting(self) -> int:
        """Chunks not on the volume yet."""
        return self._put - self._written

    def put(self, offset: int, data: bytes) -> None:
        self._put += 1
        self._queue.put((offset, data))

    def close(self, timeout: float, code: int) -> None:
        """All written; and beside it, for whoever comes after a dead agent, how the trainer exited."""
        self._code = code
        self._queue.put(None)
        self._done.acquire(timeout=timeout)

    def _write_all(self) -> None:
        try:
            self._fd = open_own(self._path, os.O_WRONLY)
        except OSError as error:
            self.trouble = f"{self._path}: {error.strerror}"
        while (item := self._queue.get()) is not None:
            offset, data = item
            view = memoryview(data)
            try:
                while view and self._fd >= 0:
                    written = os.pwrite(self._fd, view, offset)
                    offset, view = offset + written, view[written:]
            except OSError as error:
                self.trouble = f"{error.strerror}"
            self._written += 1
        try:
            if self._fd >= 0:
                os.fsync(self._fd)
            fd = open_own(self._path.removesuffix(".log") + ".exit", os.O_WRONLY | os.O_TRUNC)
            os.write(fd, f"{self._code}\n".encode())
            os.fsync(fd)
            os.close(fd)
        except OSError as error:
            self.trouble = self.trouble or f"{error.strerror}"
        self._done.release()
