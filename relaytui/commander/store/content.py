"""Bytes of artifacts on the disk: uploads as far as they came, and whole contents under their own SHA-256.

    <state>/artifacts/uploads/<32 hex digits>      as long as what came; this alone says how far an upload is
    <state>/artifacts/sha256/ab/ab…                whole, read and hashed before it got the name

Names are made of hex digits that were checked before, and no link is followed. Everything here waits for the disk: it
is called in threads only.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from relaytui.commander.store.durable import sync_file, sync_folder
from relaytui.wire.artifacts import is_upload

FOLDER = "artifacts"
SYNC_EVERY = 8 << 20
"""Bytes of one upload that may wait in memory for the disk: what else is made durable meanwhile waits for no more."""
SLICE = 8 << 20
"""Bytes read and hashed at a stretch."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_HEX = frozenset("0123456789abcdef")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


Sight = tuple[int, int, int, int]
"""Of a file: which it is, how long, and when it was last written to or touched."""


def sight_of(found: os.stat_result) -> Sight:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Part:
    """The file of one upload, and the hash of what is in it. One thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = -1
        """Bytes in the file; -1 where it has to be looked at."""
        self._synced = -1  # bytes that are on the disk for good
        self._hashed = 0
        self._digest = hashlib.sha256()

    def look(self) -> int:
        """Bytes in the file, all on the disk for good from now on; 0 where there is none yet."""
        try:
            handle = os.open(self.path, _READ)
        except FileNotFoundError:
            self._forget()
            self.size = self._synced = 0
            return 0
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is no plain file")
            if found.st_size != self._synced:
                os.fsync(handle)
        finally:
            os.close(handle)
        if found.st_size < self._hashed:
            self._forget()
        self.size = self._synced = found.st_size
        return self.size

    def write(self, data: bytes) -> None:
        """At its end. An OSError (a full disk) leaves it as long as it got."""
        at, self.size = self.size, -1
        new = not self.path.exists()
        handle = os.open(self.path, _WRITE, 0o600)
        try:
            if new:
                sync_folder(self.path.parent)
            rest = memoryview(data)
            while rest:
                rest = rest[os.pwrite(handle, rest, at + len(data) - len(rest)) :]
            if at + len(data) - self._synced >= SYNC_EVERY:
                os.fsync(handle)
                self._synced = at + len(data)
        finally:
            os.close(handle)
        if self._hashed == at:
            self._digest.update(data)
            self._hashed += len(data)
        else:
            self.hash_more()  # after a restart: what was there already, a slice for each that comes
        self.size = at + len(data)

    def hash_more(self) -> bool:
        """Another slice of what is not hashed yet; False where nothing is left."""
        with self.path.open("rb") as file:
            file.seek(self._hashed)
            data = file.read(SLICE)
        self._digest.update(data)
        self._hashed += len(data)
        return len(data) == SLICE

    @property
    def durable(self) -> int:
        """Bytes that are on the disk for good, as far as is known."""
        return max(0, self._synced)

    def digest(self) -> str:
        return self._digest.hexdigest()

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        self._forget()

    def _forget(self) -> None:
        self.size, self._synced, self._hashed, self._digest = -1, -1, 0, hashlib.sha256()


class Content:
    """The store's folder. Made when something is first put there."""

    def __init__(self, state: Path) -> None:
        self.root = state / FOLDER
        self._uploads = self.root / "uploads"
        self._whole = self.root / "sha256"

    def part(self, upload: str) -> Part:
        return Part(self._uploads / upload)

    def path(self, sha256: str) -> Path:
        return self._whole / sha256[:2] / sha256

    def prepare(self) -> None:
        """OSError where the folders cannot be made."""
        for folder in (self.root, self._uploads, self._whole):
            _make(folder)

    def has(self, sha256: str, size: int) -> bool:
        """Whether it is there and of that size; that it is whole was seen before it came there."""
        with contextlib.suppress(OSError):
            found = self.path(sha256).lstat()
            return stat.S_ISREG(found.st_mode) and found.st_size == size
        return False

    def sight(self, sha256: str) -> Sight | None:
        """Of what is there now."""
        with contextlib.suppress(OSError):
            return sight_of(self.path(sha256).lstat())
        return None

    def free(self) -> int:
        """Bytes that may be written to its disk by who is no root."""
        place = next(path for path in (self.root, *self.root.parents) if path.exists())
        found = os.statvfs(place)
        return found.f_bavail * found.f_frsize

    def place(self, part: Part, sha256: str) -> None:
        """What `part` holds was found to be `sha256`: it gets that name too, in the place of whatever has it.

        The upload keeps its own until its row is gone, so that it is still there where the commander ends in between.
        """
        path = self.path(sha256)
        _make(path.parent)
        sync_file(part.path)
        try:
            os.link(part.path, path)
        except OSError:  # something has it, or this file system has one name a file
            part.path.rename(path)
            sync_folder(part.path.parent)
        sync_folder(path.parent)

    def open(self, sha256: str, size: int | None = None) -> BinaryIO | None:
        """None where it is not there, is no plain file or not of that size, where one is said. OSError: the disk's."""
        try:
            handle = os.open(self.path(sha256), _READ)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                return None
            raise
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or size not in (None, found.st_size):
            os.close(handle)
            return None
        return os.fdopen(handle, "rb", buffering=0)

    def remove(self, sha256: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path(sha256).unlink()

    def parts(self) -> list[str]:
        """Uploads that have a file."""
        return [name for name in _names(self._uploads) if is_upload(name)]

    def contents(self) -> Iterator[tuple[str, float]]:
        """(sha256, when it came or was last touched) of all that are there."""
        for folder in _names(self._whole):
            for name in _names(self._whole / folder):
                if len(name) == 64 and name.startswith(folder) and _HEX.issuperset(name):
                    with contextlib.suppress(OSError):
                        found = self.path(name).lstat()
                        yield name, max(found.st_mtime, found.st_ctime)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder))
    except OSError:
        return []


def _make(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        sync_folder(folder.parent)
