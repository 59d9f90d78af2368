"""What an adapter may see of the trainer's folder: names, sizes and small files, and nothing through a link.

Each look makes a new one. It lists a folder once however many adapters ask, reads no more than it must, and answers
"nothing there" to all that vanished, cannot be read or is no plain file or folder.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from relay_agent.checkpoints.disk import open_file, open_folder, read_file
from relay_agent.checkpoints.formats.once import said_once
from relay_agent.checkpoints.tree import MAX_FILES, TooMany

MAX_NAMES = 100_000
"""Of one folder that are looked at. Of these as many files and as many folders are seen as one checkpoint may have."""
MAX_SEEN = 50_000
"""Files and folders that one look remembers of all it saw."""
MAX_PLACES = 64
"""Folders in which one look searches for checkpoints."""
MAX_TEXT = 8 << 20
_ZIP_END = 22


class Entry(NamedTuple):
    name: str
    is_folder: bool  # otherwise a plain file; links, FIFOs and devices are not shown


class View:
    """`root`: the trainer's folder, open. All paths are relative to it, `/` between parts, "" for itself. Blocking."""

    def __init__(self, root: int, is_checkpoint: Callable[[str], bool] = lambda name: False) -> None:
        self.root = root
        self._is_checkpoint = is_checkpoint
        self._listed: dict[str, dict[str, Entry]] = {}
        self._below: dict[str, list[tuple[str, bool]]] = {}
        self._found: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._left = MAX_SEEN
        self._crowded: dict[str, str] = {}

    def crowded(self, path: str) -> str:
        """Why not all of a folder is seen; "" where it is."""
        self.entries(path)
        return self._crowded.get(path, "")

    def entries(self, path: str = "") -> dict[str, Entry]:
        """What lies in a folder, by name; nothing where there is no such folder."""
        if path not in self._listed:
            self._listed[path] = self._list(path)
        return self._listed[path]

    def inodes(self, path: str = "") -> Iterator[int]:
        """Of all that lies in a folder."""
        with suppress(OSError, ValueError), self._open(path) as fd, os.scandir(fd) as entries:
            yield from (entry.inode() for entry in itertools.islice(entries, MAX_NAMES))

    def names(self, path: str = "") -> list[str]:
        """Of what lies in a folder, sorted."""
        return sorted(self.entries(path))

    def has(self, path: str) -> bool:
        """A plain file or a real folder."""
        parent, _, name = path.rpartition("/")
        return name in self.entries(parent)

    def matching(self, path: str, pattern: str) -> list[str]:
        """Names in a folder by a pattern of the shell, sorted."""
        return [name for name in self.names(path) if fnmatchcase(name, pattern)]

    def stat(self, path: str) -> os.stat_result | None:
        """Of a plain file or a real folder; it may be another by the time that it is opened."""
        parent, _, name = path.rpartition("/")
        with suppress(OSError, ValueError), self._open(parent) as fd:
            found = os.stat(name or ".", dir_fd=fd, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
                return found
        return None

    def read(self, path: str, limit: int = MAX_TEXT) -> bytes | None:
        """All of a small plain file; None where there is none or it is longer than `limit` bytes."""
        with suppress(OSError, ValueError):
            return read_file(self.root, path, limit)
        return None

    def text(self, path: str, limit: int = 4096) -> str:
        """Of a file of a line or two, stripped; "" where there is none."""
        return (self.read(path, limit) or b"").decode(errors="replace").strip("\0 \t\r\n")

    def number(self, path: str) -> int | None:
        """The whole number that a tracker file holds; None where it holds something else."""
        word = self.text(path, 64)
        return int(word) if word.isascii() and word.isdigit() else None

    def is_whole_zip(self, path: str) -> bool:
        """Whether a file begins as a zip archive and ends as one: its end is written last."""
        with suppress(OSError, ValueError), os.fdopen(open_file(self.root, path), "rb", buffering=0) as file:
            if file.read(4) != b"PK\x03\x04":
                return False
            file.seek(-_ZIP_END, os.SEEK_END)
            return file.read(4) == b"PK\x05\x06"
        return False

    def json(self, path: str, limit: int = MAX_TEXT, *, twice: bool = False) -> object:
        """None where it is not there, or not (yet) JSON. NaN and Infinity are taken, as trainers write them. `twice`:
        of keys that an object says twice the last counts; else it is none."""
        with suppress(ValueError, RecursionError):
            return json.loads(self.read(path, limit) or b"", object_pairs_hook=None if twice else said_once)
        return None

    def places(self, patterns: tuple[str, ...]) -> Iterable[str]:
        """Folders by patterns such as "", "*" or "*/checkpoints", in that order. A `*` never goes into what looks like
        a checkpoint or is hidden: the outermost one counts. Most adapters ask for the same ones."""
        if patterns not in self._found:
            found = (place for pattern in patterns for place in self._places("", pattern))
            self._found[patterns] = tuple(dict.fromkeys(itertools.islice(found, MAX_PLACES)))
        return self._found[patterns]

    def _places(self, at: str, pattern: str) -> Iterator[str]:
        if not pattern:
            yield at
            return
        first, _, rest = pattern.partition("/")
        for name, is_checkpoint in self._folders(at):
            if not fnmatchcase(name, first) or ("*" in first and is_checkpoint):
                continue
            yield from self._places(f"{at}/{name}" if at else name, rest)

    def _folders(self, at: str) -> list[tuple[str, bool]]:
        """Those in a folder that are not hidden, sorted, and whether each is a checkpoint. A folder may hold a hundred
        thousand files, and every adapter asks."""
        if at not in self._below:
            names = sorted(entry.name for entry in self.entries(at).values() if entry.is_folder)
            self._below[at] = [
                (name, self._is_checkpoint(name)) for name in names if name[0] != "." and name != "__pycache__"
            ]
        return self._below[at]

    @contextmanager
    def _open(self, path: str) -> Iterator[int]:
        fd = os.dup(self.root)
        try:
            for part in filter(None, path.split("/")):
                below = open_folder(part, dir_fd=fd)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    def _list(self, path: str) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        left = {True: MAX_FILES, False: MAX_FILES}
        with suppress(OSError, ValueError), self._open(path) as fd, os.scandir(fd) as entries:
            for entry in itertools.islice(entries, MAX_NAMES):
                is_folder = entry.is_dir(follow_symlinks=False)
                if not (is_folder or entry.is_file(follow_symlinks=False)) or not _is_text(entry.name):
                    continue
                if not left[is_folder]:
                    self._crowded[path] = TooMany(MAX_FILES).reason
                elif len(found) >= self._left:
                    self._crowded[path] = "too much lies around it for a look to see all of it"
                else:
                    left[is_folder] -= 1
                    found[entry.name] = Entry(entry.name, is_folder)
        self._left -= len(found)
        return found


@contextmanager
def view_of(path: Path, is_checkpoint: Callable[[str], bool] = lambda name: False) -> Iterator[View]:
    """OSError where there is no such folder. It may be reached through a link: an operator may have named it so."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield View(fd, is_checkpoint)
    finally:
        os.close(fd)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
