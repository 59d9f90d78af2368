"""For kinds whose checkpoints keep the path that they had in the trainer's folder: names that mean something to it."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from relay_agent.checkpoints.adapters.base import Saved
from relay_agent.checkpoints.adapters.view import View


def join(place: str, name: str) -> str:
    """A path below a folder of the trainer's, which may be the trainer's folder itself ("")."""
    return f"{place}/{name}" if place else name


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def unfinished(names: list[str], patterns: tuple[str, ...]) -> str:
    """The first name that a save has only while it goes on; "" where there is none."""
    return next((name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)), "")


def folder_named(saved: Saved, pattern: str) -> str:
    """The outermost folder of a published checkpoint whose name matches, relative to it; "" where none does."""
    for path in saved.files:
        parts = path.split("/")[:-1]
        for depth, part in enumerate(parts):
            if re.fullmatch(pattern, part):
                return "/".join(parts[: depth + 1])
    return ""


def folder_with(saved: Saved, name: str) -> str:
    """The folder in which a file of this name lies, relative to the published checkpoint; "" for its top."""
    return next((parent(path) for path in saved.files if name_of(path) == name), "")


def newer(view: View, path: str, names: list[str], mark: str) -> str:
    """The first of these files in a folder that was written after `mark` was: it is being written over."""
    last = view.stat(join(path, mark))
    if last is None:
        return ""
    for name in names:
        found = view.stat(join(path, name))
        if found is not None and found.st_mtime_ns > last.st_mtime_ns:
            return name
    return ""
