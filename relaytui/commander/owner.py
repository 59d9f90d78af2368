"""One commander a state folder: a lock on the folder itself, which nobody deletes by mistake, and one on its file
`lock`, which commanders from before know.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from pathlib import Path

from relaytui.wire.errors import RelayError
from relaytui.wire.files import must_be_plain, state_error

log = logging.getLogger(__name__)

LOCK_FILE = "lock"
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Owner:
    """From when it is made until `close`. BlockingIOError where another is; RelayError where the lock is no file of
    ours; OSError where it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_FILE
        must_be_plain(self._path)
        self._folder = _lock_folder(folder)
        try:
            self._file = _locked(self._path, _LOCK)
        except BaseException:
            self._close_folder()
            raise

    def close(self) -> None:
        os.close(self._file)
        self._close_folder()

    def trouble(self) -> RelayError | None:
        """Why it may be the owner no more: the file is gone, or another one is in its place. One that is gone is made
        again where the folder itself is locked: nobody can have come in between."""
        try:
            found = self._path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            if self._again():
                return None
            what = "deleted"
        except OSError:
            return None  # a file system that does not answer is no word on what is there
        else:
            if os.path.samestat(found, os.fstat(self._file)):
                return None
            what = "replaced"
        return state_error(
            f"{self._path} was {what} under the running commander: another may own this folder by now, so it stops; "
            "runs train on",
            "see that no other commander serves this folder, and start it again",
        )

    def _again(self) -> bool:
        if self._folder < 0:
            return False
        try:
            file = _locked(self._path, _LOCK | os.O_EXCL)
        except OSError:
            return False
        os.close(self._file)
        self._file = file
        log.warning("%s was deleted: it is made again", self._path)
        return True

    def _close_folder(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)


def _locked(path: Path, flags: int) -> int:
    lock = os.open(path, flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise BlockingIOError(error.errno, error.strerror) from None
    return lock


def _lock_folder(folder: Path) -> int:
    """-1 where its file system locks no folders. BlockingIOError where another has it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise
    except OSError:
        with contextlib.suppress(OSError):
            os.close(fd)
        return -1
    return fd
