"""What makes a change of the state folder outlive a power cut, and how files that are set aside are named."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path


def sync_file(path: Path) -> None:
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Names in `path` as they are now: a rename alone may be undone."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def stamp(at: float | None = None) -> str:
    """A time as part of a file's name, UTC; such names sort by age."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))


def set_aside(path: Path, word: str, suffixes: tuple[str, ...] = ("",)) -> Path:
    """Renames the file, and those beside it with these suffixes, to NAME.WORD-STAMP; what has that name stays."""
    base = aside = path.with_name(f"{path.name}.{word}-{stamp()}")
    number = 1
    while aside.exists():
        number += 1
        aside = base.with_name(f"{base.name}-{number}")
    # The database itself last: until then a second try finds it, and takes what is left of the others.
    for suffix in sorted(suffixes, key=len, reverse=True):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    sync_folder(path.parent)
    return aside
