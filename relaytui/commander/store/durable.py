"""What makes a change of the state folder outlive a power cut, and how files that are set aside are named."""

from __future__ import annotations

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
