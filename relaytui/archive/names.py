"""The names that may stand in an archive. Packing and extracting ask here alike: what goes in comes out."""

from __future__ import annotations

import unicodedata

MAX_FILES = 200_000
MAX_DEPTH = 32
MAX_PATH = 1000
"""Bytes. With a folder in front of it, it is still a path everywhere (macOS: 1,024)."""
MAX_PART = 255


class Names:
    """Every path told so far, in the order that an archive has.

    Names that some disks take for one (by case, by how an accent is written) are two: what saved them had both. Who
    extracts them finds out what its disk does.
    """

    def __init__(self) -> None:
        self._before = ""
        self._kept: dict[str, bool] = {}  # whether it is a folder

    def add(self, path: str) -> None:
        """Takes `path` as the next file's; ValueError with words where no archive may hold it there."""
        wrong = fault(path)
        if wrong:
            raise ValueError(f"{path[:200]!a} {wrong}")
        if path <= self._before:
            raise ValueError(f"{path[:200]!a} comes twice, or out of order")
        self._before = path
        cut = path.find("/")
        while cut > 0:
            self._keep(path[:cut], folder=True)
            cut = path.find("/", cut + 1)
        self._keep(path, folder=False)
        if len(self._kept) > 2 * MAX_FILES:
            raise ValueError(f"there are more than {MAX_FILES:,} files")

    def _keep(self, path: str, *, folder: bool) -> None:
        if self._kept.setdefault(path, folder) != folder:
            raise ValueError(f"{path[:200]!a} is both a file and a folder")


def fault(path: str) -> str:
    """What is wrong with a path in an archive; empty where nothing is."""
    try:
        length = len(path.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    if length > MAX_PATH:
        return f"is longer than {MAX_PATH} bytes"
    if any(unicodedata.category(letter) == "Cc" for letter in path) or "\\" in path:
        return "has control characters or backslashes in it"
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "is no path inside a folder"
    if any(len(part.encode()) > MAX_PART for part in parts):
        return f"has a part of more than {MAX_PART} bytes"
    return f"lies deeper than {MAX_DEPTH} folders" if len(parts) > MAX_DEPTH else ""
