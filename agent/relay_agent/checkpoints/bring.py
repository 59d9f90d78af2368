"""Bringing files from one folder into another by the cheapest safe way: a reflink, a hard link, a copy.

A hard link is one only as long as nobody writes to the file under its other name. Each file comes with the time it had,
and is on the disk when the call returns.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from relay_agent.checkpoints.disk import Disk, folder, open_file
from relay_agent.checkpoints.tree import Check, Found, Unsettled

_CHUNK = 16 << 20
_UNABLE = frozenset(
    (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EMLINK,
     errno.EBADF, errno.ETXTBSY)
)  # fmt: skip
"""What a filesystem answers that has no such way."""
_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE))

LINK = "hard link"


@dataclass
class Bringer:
    """Brings file after file out of the folder open as `root` into the folder `place`, by the first way that works.
    `bytes`: of all of them. `in_place`: a second name would be no snapshot."""

    root: int
    place: Path
    bytes: int
    in_place: bool
    check: Check
    disk: Disk
    ways: dict[str, None] = field(default_factory=dict)
    _unable: set[str] = field(default_factory=set)

    def bring(self, path: str, found: Found) -> None:
        self.check()
        target = self.place / path
        if self._may("reflink") and self._reflink(found, target):
            return
        if not self.in_place and self._may("hard link") and self._link(found, target):
            return
        if "copy" not in self.ways:
            self._refuse_too_large()
        self.ways["copy"] = None
        with self._open(found) as source, self._new(target, found) as new:
            self._copy(source, new)

    def _may(self, way: str) -> bool:
        return way not in self._unable

    def _reflink(self, found: Found, target: Path) -> bool:
        with self._open(found) as source:
            try:
                with self._new(target, found) as new:
                    self.disk.clone(source, new)
            except OSError as error:
                if error.errno not in _UNABLE:
                    raise
                self._unable.add("reflink")
                self.disk.unlink(target)
                return False
        self.ways["reflink"] = None
        return True

    def _link(self, found: Found, target: Path) -> bool:
        with unless_gone(), beneath(self.root, found.path) as (parent, name):
            try:
                with folder(target.parent) as into:
                    self.disk.link_at(name, parent, target.name, into)
            except OSError as error:
                if error.errno not in _UNABLE:
                    raise
                self._unable.add("hard link")
                return False
        with folder(target.parent) as into:
            fd = open_file(into, target.name)
            try:
                if os.fstat(fd).st_ino != found.inode:
                    raise Unsettled(f"{found.path!a} was replaced while it was taken")
                self.disk.fsync(fd)
            finally:
                os.close(fd)
        self.ways["hard link"] = None
        return True

    @contextmanager
    def _open(self, found: Found) -> Iterator[int]:
        with unless_gone():
            fd = open_file(self.root, found.path)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def _new(self, target: Path, found: Found) -> Iterator[int]:
        """A new file, flushed when all is in it."""
        fd = self.disk.create(target)
        try:
            yield fd
            self.disk.set_time(fd, found.mtime_ns)
            self.disk.fsync(fd)
        finally:
            os.close(fd)

    def _copy(self, source: int, new: int) -> None:
        """By the kernel where it does that, else through memory."""
        copied = 0
        while self._may("copy by the kernel"):
            self.check()
            try:
                count = self.disk.copy(source, new, _CHUNK)
            except OSError as error:
                if copied or error.errno not in _UNABLE:
                    raise
                self._unable.add("copy by the kernel")
                break
            if not count:  # some mounts answer so of every file: what is missing is read
                break
            self.disk.write_back(new, copied, count)
            copied += count
        while chunk := os.read(source, 1 << 20):
            self.check()
            self.disk.write(new, chunk)

    def _refuse_too_large(self) -> None:
        room = os.statvfs(self.place)
        if self.bytes > room.f_bavail * room.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.place.parent))


@contextmanager
def beneath(root: int, path: str) -> Iterator[tuple[int, str]]:
    """The folder that `path` lies in, open, and its name there; through no link."""
    *parents, name = path.split("/")
    fd = os.dup(root)
    try:
        for part in parents:
            with folder(part, dir_fd=fd) as below:
                os.dup2(below, fd, inheritable=False)
        yield fd, name
    finally:
        os.close(fd)


@contextmanager
def unless_gone() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _GONE:
            raise Unsettled("it vanished while it was taken") from None
        raise
