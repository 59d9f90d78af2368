"""The system calls that change the volume, in one thin place, and the safe way to open what lies on it.

Every change to checkpoints goes through a `Disk`, so that tests can end the world before or after any single call.
Names are opened relative to a folder's descriptor and never through a symbolic link: what is read is what was checked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO that a pod planted must not wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FICLONE = 0x40049409
_PIECE = 1 << 16
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a volume that has no room: some may be made."""
_SPOILT = (errno.EIO, errno.EREMOTEIO, errno.ENODATA, errno.EUCLEAN, errno.EBADMSG)
"""Errors of a device that lost bytes."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Disk:
    """The real one. Each method is one system call (`write` loops over short ones)."""

    def create(self, name: str | Path, *, dir_fd: int | None = None, mode: int = 0o644) -> int:
        """A new file, open for writing; FileExistsError where anything has that name."""
        return os.open(name, _NEW, mode, dir_fd=dir_fd)

    def write(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def rename(self, source: str | Path, target: str | Path, *, dir_fd: int | None = None) -> None:
        os.rename(source, target, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def link(self, source: str | Path, target: str | Path, *, dir_fd: int | None = None) -> None:
        os.link(source, target, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)

    def link_at(self, source: str, source_fd: int, target: str, target_fd: int) -> None:
        """A second name, in another folder."""
        os.link(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd, follow_symlinks=False)

    def symlink(self, target: str, name: str | Path, *, dir_fd: int | None = None) -> None:
        os.symlink(target, name, dir_fd=dir_fd)

    def clone(self, source: int, target: int) -> None:
        """The file open as `target` shares what is in `source` until one of them is written to; OSError where the
        filesystem cannot, or they are on two."""
        fcntl.ioctl(target, _FICLONE, source)

    def copy(self, source: int, target: int, count: int) -> int:
        """Up to `count` bytes from where `source` stands to where `target` does, by the kernel; how many it were, 0 at
        the end. OSError where it does not do that for such files."""
        return os.copy_file_range(source, target, count)

    def write_back(self, fd: int, start: int, count: int) -> None:
        """Begin to bring these bytes to the disk, and do not wait for it: what follows goes on beside it. Advice only:
        what was promised is for `fsync` to keep."""
        with suppress(OSError):  # a filesystem may know no advice
            # Dirty pages are not dropped by it but sent on their way: generic_fadvise in mm/fadvise.c of Linux.
            os.posix_fadvise(fd, start, count, os.POSIX_FADV_DONTNEED)

    def set_time(self, fd: int, mtime_ns: int) -> None:
        """When it was written last."""
        os.utime(fd, ns=(mtime_ns, mtime_ns))

    def mkdir(self, name: str | Path, mode: int = 0o755) -> None:
        Path(name).mkdir(mode)

    def unlink(self, name: str | Path, *, dir_fd: int | None = None) -> None:
        os.unlink(name, dir_fd=dir_fd)

    def rmdir(self, name: str | Path, *, dir_fd: int | None = None) -> None:
        os.rmdir(name, dir_fd=dir_fd)


SYSTEM = Disk()


class Unflushed(OSError):  # noqa: N818 - it says what happened
    """A flush of what was saved failed: the next one may succeed without those bytes, whatever the error was."""


def flush_saved(disk: Disk, fd: int) -> None:
    try:
        disk.fsync(fd)
    except OSError as error:
        if error.errno in FULL:
            raise
        raise Unflushed(error.errno, error.strerror or str(error)) from error


def is_spoilt(error: OSError) -> bool:
    """Nobody can vouch for what was saved any more; whatever else the volume refuses can be tried again."""
    return isinstance(error, Unflushed) or error.errno in _SPOILT


def refusal(error: OSError, path: Path) -> str:
    """Why the volume refuses what can be tried again, and where, in words. `path`: of what it refuses."""
    return f"the volume refuses it: {error.strerror or error} ({error.filename2 or error.filename or path})"


def is_full(error: BaseException | None) -> bool:
    """There is no room on the volume, as the system or one of our own errors that came of it says."""
    return error is not None and (getattr(error, "errno", None) in FULL or is_full(error.__cause__))


def open_folder(name: str | Path, *, dir_fd: int | None = None) -> int:
    """As `folder`, for whoever closes it."""
    return os.open(name, _FOLDER, dir_fd=dir_fd)


@contextmanager
def folder(name: str | Path, *, dir_fd: int | None = None) -> Iterator[int]:
    """A descriptor of a real folder; OSError where it is a link or no folder."""
    fd = open_folder(name, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def names(at: int | Path) -> list[str]:
    """What lies in a folder, in no order."""
    with os.scandir(at) as entries:
        return [entry.name for entry in entries]


def open_file(root: int, path: str) -> int:
    """A regular file `path` (relative, `/` between parts) beneath `root`, open for reading; OSError otherwise."""
    *parents, name = path.split("/")
    at = os.dup(root)
    try:
        for part in parents:
            below = open_folder(part, dir_fd=at)
            os.close(at)
            at = below
        fd = os.open(name, _FILE, dir_fd=at)
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"not a regular file: {path!a}")
    return fd


def read_file(root: int, path: str, limit: int) -> bytes:
    """All of a small file beneath `root`; OSError where it is longer than `limit` bytes."""
    data = bytearray()
    with os.fdopen(open_file(root, path), "rb", buffering=0) as file:
        while more := file.read(min(_PIECE, limit + 1 - len(data))):  # never room for `limit` bytes that are not there
            data += more
    if len(data) > limit:
        raise OSError(f"{path!a} is over {limit} bytes")
    return bytes(data)


def write_new(disk: Disk, name: str | Path, data: bytes, *, dir_fd: int | None = None, mode: int = 0o644) -> None:
    """A new file with these bytes, on the disk when this returns."""
    fd = disk.create(name, dir_fd=dir_fd, mode=mode)
    try:
        disk.write(fd, data)
        disk.fsync(fd)
    finally:
        os.close(fd)


def replace_file(disk: Disk, path: Path, data: bytes) -> None:
    """`path` holds the old bytes or these, whenever one looks."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with suppress(FileNotFoundError):
        disk.unlink(temporary)
    write_new(disk, temporary, data)
    disk.rename(temporary, path)
    sync_folder(disk, path.parent)


def sync_folder(disk: Disk, path: Path) -> None:
    with folder(path) as fd:
        disk.fsync(fd)


def make_folder(disk: Disk, path: Path) -> None:
    """`path` is a real folder afterwards; OSError where something else has its name."""
    with suppress(FileExistsError):
        disk.mkdir(path)
    with folder(path):
        pass


def remove_tree(disk: Disk, name: str | Path, *, dir_fd: int | None = None) -> None:
    """Delete a file, a link (never what it points to) or a folder with all that lies in it."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
        disk.unlink(name, dir_fd=dir_fd)
        return
    with folder(name, dir_fd=dir_fd) as fd:
        for inner in names(fd):
            remove_tree(disk, inner, dir_fd=fd)
    disk.rmdir(name, dir_fd=dir_fd)
