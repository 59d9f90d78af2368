"""What a trainer printed, read again from its log on the volume, byte by byte where it was printed."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from relay_agent import guardian
from relay_agent.secret_words import scrub_all

VOLUME_ANSWERS = 5.0
"""Seconds that the volume has for the last of it."""


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


async def last_lines(path: Path, length: int = 64 << 10) -> list[str]:
    """The lines within the last `length` bytes, the states of a bar among them, without what is secret; none where the
    log cannot be read."""
    data = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(VOLUME_ANSWERS):
            data = await asyncio.to_thread(lambda: read(path, max(0, size(path) - length), length))
    return scrub_all(data.replace(b"\r", b"\n").decode("utf-8", "replace").split("\n"))


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
