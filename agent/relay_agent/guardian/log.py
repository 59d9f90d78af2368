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
        self._word = ""
        self._fd = -1
        self._ended = False  # nobody writes any more

    def start(self) -> None:
        self._done.acquire()
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError as error:  # no thread is to be had here
            self._end(str(error))

    @property
    def waiting(self) -> int:
        """Chunks not on the volume yet."""
        return 0 if self._ended else self._put - self._written

    def put(self, offset: int, data: bytes) -> None:
        if not self._ended:
            self._put += 1
            self._queue.put((offset, data))

    def close(self, timeout: float, word: str) -> None:
        """All written; and beside it, for whoever comes after a dead agent, how the trainer ended."""
        self._word = word
        self._queue.put(None)
        self._done.acquire(timeout=timeout)

    def _run(self) -> None:
        trouble = ""
        try:
            self._write_all()
        except Exception as error:  # noqa: BLE001 - a log that is not written is no reason to hold up a trainer
            trouble = f"{type(error).__name__}: {error}"
        self._end(trouble)

    def _end(self, trouble: str) -> None:
        self._ended = True
        self.trouble = trouble or self.trouble
        self._done.release()

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
            os.write(fd, f"{self._word}\n".encode())
            os.fsync(fd)
            os.close(fd)
        except OSError as error:
            self.trouble = self.trouble or f"{error.strerror}"
