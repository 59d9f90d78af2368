"""What a trainer saves into its staging folder under another name than `step_<N>`: nothing of it is taken, so its
operator should hear of it while it can be put right, and nobody deletes it.

Names that begin with `.` or end in `.tmp` are those of saves that go on: they are left alone.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from relay_agent.checkpoints.disk import names

SAID_MOST = 20
"""Strays of one attempt that are said each by itself."""
LOOKED_MOST = 500
"""That one look asks whether they keep still."""
AND_OTHERS = "and so it is with whatever else has no name step_<N>"
_NUMBER = re.compile(r"[0-9]{1,15}")


def is_half(name: str) -> bool:
    """By its name it is nothing that was saved to the end."""
    return name.startswith(".") or name.endswith(".tmp")


def only_halves(path: Path) -> bool:
    """Nothing else lies in a folder; False where it cannot be read."""
    try:
        return all(map(is_half, names(path)))
    except OSError:
        return False


def holds_data(path: Path) -> bool:
    """Whether anything would be lost with it: a byte, a link. OSError where that cannot be seen."""
    left = [path]
    while left:
        at = left.pop()
        found = os.lstat(at)
        if stat.S_ISDIR(found.st_mode):
            left += [at / name for name in names(at)]
        elif not stat.S_ISREG(found.st_mode) or found.st_size:
            return True
    return False


class Strays:
    """Of one attempt. `settle`: seconds that one without a mark has to keep still, as it may get another name yet."""

    def __init__(self, settle: float, mark: str) -> None:
        self._settle = settle
        self._mark = mark
        self._since: dict[str, tuple[int, float]] = {}  # when each was written to last, and since when it is so
        self._said: set[str] = set()
        self._more = False

    @property
    def any(self) -> bool:
        """Whether one was ever said."""
        return bool(self._said)

    def look(self, root: Path, found: list[str], watched: float, over: bool) -> list[tuple[str, str]]:
        """What is to be said now: the name, and how it should be called. `found`: names that are no `step_<N>`;
        `watched`: seconds that somebody looked on; `over`: none of them changes any more. Blocking."""
        if self._more:
            return []
        new = {name for name in found if not is_half(name)} - self._said
        self._since = {name: each for name, each in self._since.items() if name in new}
        words: list[tuple[str, str]] = []
        for name in sorted(new)[:LOOKED_MOST]:
            with suppress(OSError):  # it went while we looked
                if over or self._keeps_still(root / name, watched):
                    if len(self._said) >= SAID_MOST:
                        self._more, self._since = True, {}
                        words.append(("", AND_OTHERS))
                        break
                    self._said.add(name)
                    words.append((name, _words(root / name)))
        return words

    def _keeps_still(self, path: Path, watched: float) -> bool:
        own = os.lstat(path)
        written = own.st_mtime_ns
        if stat.S_ISDIR(own.st_mode):
            if os.path.lexists(path / self._mark):
                return True
            with os.scandir(path) as entries:
                written = max([written, *(entry.stat(follow_symlinks=False).st_mtime_ns for entry in entries)])
        before, since = self._since.setdefault(path.name, (written, watched))
        if before != written:
            self._since[path.name] = (written, since := watched)
        return watched - since >= self._settle


def _words(path: Path) -> str:
    numbers = _NUMBER.findall(path.name)
    name = f"step_{numbers[0]}" if len(numbers) == 1 else "step_<N>"
    what = "call it" if stat.S_ISDIR(os.lstat(path).st_mode) else "save it into a folder"
    return f"{path.name} is not taken: {what} {name}"
