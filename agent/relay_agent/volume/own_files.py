"""Writing files of Relay's on the volume where others can write, too: through no link, and never half."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from relay_agent import guardian


def append(path: Path, data: bytes) -> None:
    """At the end of a file of ours, which is made if it is missing. OSError, and then nothing of it is there: the next
    line would be glued to half of this one."""
    fd = guardian.open_own(str(path), os.O_RDWR | os.O_APPEND)
    try:
        before = os.fstat(fd).st_size
        try:
            _write(fd, data)  # in one where the disk has room: lines of two agents do not mix
        except OSError:
            if data.startswith(os.pread(fd, len(data), before)):  # else another agent's follows it
                os.ftruncate(fd, before)
            raise
    finally:
        os.close(fd)


def replace(path: Path, data: bytes) -> None:
    """The file holds what it held or `data`, whenever one looks. OSError."""
    at = guardian.open_parent(str(path))
    try:
        temporary = f".{path.name}.{os.urandom(8).hex()}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | guardian.OURS, 0o644, dir_fd=at)
        try:
            try:
                _write(fd, data)
            finally:
                os.close(fd)
            try:
                os.replace(temporary, path.name, src_dir_fd=at, dst_dir_fd=at)
            except IsADirectoryError:
                guardian.move_aside(at, path.name)
                os.replace(temporary, path.name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=at)
            raise
    finally:
        os.close(at)


def _write(fd: int, data: bytes) -> None:
    """All of it: a disk that is nearly full takes a part and says nothing."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read(path: Path, limit: int) -> bytes | None:
    """A small file of ours; None where there is none, or something else has its name."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | guardian.OURS)
        with os.fdopen(fd, "rb") as file:
            if guardian.is_plain(fd):
                data = file.read(limit + 1)
                return data if len(data) <= limit else None
    return None
