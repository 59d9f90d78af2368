"""What a trainer printed, read again from its log on the volume, byte by byte where it was printed."""

from __future__ import annotations

import os
from pathlib import Path

from relay_agent import guardian


def read(path: Path, offset: int, length: int) -> bytes:
    """What the log has there. Whatever else lies under its name has nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | guardian.OURS)
        try:
            return os.pread(fd, length, offset) if guardian.is_plain(fd) else b""
        finally:
            os.close(fd)
    except OSError:
        return b""


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def count_lines(path: Path, start: int, end: int) -> int:
    lines = 0
    while start < end and (data := read(path, start, min(1 << 20, end - start))):
        lines += data.count(b"\n")
        start += len(data)
    return lines
