"""Files of ours where others can write too: through no link, without waiting, and never over what is not ours."""

from __future__ import annotations

# ruff: noqa: SIM105 - contextlib is not worth its memory here
import errno
import os
import stat

OURS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""For files of our own where others can write too: through no link, and without waiting for a FIFO's other end."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NOT_OURS = (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENODEV, errno.EOPNOTSUPP)


def open_parent(path: str) -> int:
    """The folder that `path` lies in; neither it nor the one above it may be a link."""
    parent = os.path.dirname(path)  # noqa: PTH120 - pathlib is not worth its memory here
    above = os.open(os.path.dirname(parent) or ".", _FOLDER | os.O_NOFOLLOW)  # noqa: PTH120
    try:
        return os.open(os.path.basename(parent) or ".", _FOLDER | os.O_NOFOLLOW, dir_fd=above)  # noqa: PTH119
    finally:
        os.close(above)


def is_plain(fd: int) -> bool:
    """A regular file that has no other name."""
    found = os.fstat(fd)
    return stat.S_ISREG(found.st_mode) and found.st_nlink <= 1


def open_own(path: str, flags: int) -> int:
    """Open a file of ours for writing, made if it is missing. Whatever else has its name is moved aside first."""
    name = os.path.basename(path)  # noqa: PTH119
    at = open_parent(path)
    try:
        for _ in range(8):
            try:
                fd = os.open(name, flags | os.O_CREAT | OURS, 0o644, dir_fd=at)
            except OSError as error:
                if error.errno not in _NOT_OURS:
                    raise
            else:
                if is_plain(fd):
                    return fd
                os.close(fd)
            move_aside(at, name)
        raise OSError(errno.EEXIST, "something else keeps coming back under this name", path)
    finally:
        os.close(at)


def move_aside(at: int, name: str) -> None:
    """To `NAME.foreign.N`: it is not ours, and not ours to delete."""
    for number in range(1, 1000):
        aside = f"{name}.foreign.{number}"
        try:
            os.stat(aside, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            try:
                os.rename(name, aside, src_dir_fd=at, dst_dir_fd=at)
            except FileNotFoundError:
                pass  # gone by itself
            return
    raise OSError(errno.EEXIST, "too much lies aside of it", name)
