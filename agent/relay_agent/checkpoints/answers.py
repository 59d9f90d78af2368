"""Which of an attempt's saves answer an order to save: those that were begun after it.

One that was begun before may become whole only then. Taken for the answer it would have the trainer stopped in the
middle of the real one. It shows by its name, or another that it had; by its inode, which a new name leaves as it is;
and by what of it is older than the order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

COPIED = 0.1
"""Of a save's bytes, what may be older than the order: a trainer's own log, say, copied with its times."""
_GOES_ON = re.compile(r"\.|.*(?:tmp|partial|incomplete)", re.DOTALL)
"""Names of saves that go on."""


def goes_on(name: str) -> bool:
    return _GOES_ON.match(name) is not None


@dataclass(frozen=True)
class There:
    """What lies in a folder and is not known to have been saved to its end. No inodes where they tell nothing."""

    names: set[str] = field(default_factory=set)
    inodes: set[int] = field(default_factory=set)


class Answers:
    """`count`: how many were published."""

    def __init__(self) -> None:
        self.count = 0
        self._own: There | None = None  # in the trainer's own folder, names are paths there
        self._staged: There | None = None  # in the staging folder; None: it is not known which had begun
        self._at = 0  # when it was asked, by the volume's clock

    @property
    def wanted(self) -> bool:
        """Whether there was an order, and it is known what had begun by then."""
        return self._own is not None and self._staged is not None

    def asked(self) -> None:
        """Nothing counts until it is known what had begun."""
        self._own = self._staged = None

    def begun(self, own: There, staged: There, at: int) -> None:
        """What had by then, and is not published. `at`: the time by the volume's clock, 0 where that is not known."""
        self._own, self._staged, self._at = own, staged, at

    def is_new(self, name: str) -> bool:
        """Whether that save, in either folder, was begun after the order, as far as its name tells."""
        own, staged = self._own, self._staged
        return own is not None and staged is not None and not (_has(own.names, name) or _has(staged.names, name))

    def is_older(self, inode: int, files: Iterable[tuple[int, int]], since: int) -> bool:
        """Whether what is staged was begun before it by other signs. `files`: when each was written to, and its bytes;
        `since`: what is older than that it did not write."""
        early = whole = 0
        for at, size in files:
            whole += size
            early += size if since < at < self._at else 0
        return early > COPIED * whole or (self._staged is not None and inode in self._staged.inodes)

    def taken(self, path: str, inode: int, name: str) -> None:
        """From the trainer's own folder into the staging folder, as `name`. `inode`: of what lies at `path`."""
        if self._own is None or self._staged is None:
            return
        if (begun := _has(self._own.names, path)) or inode in self._own.inodes:
            self._own.names.difference_update(begun)
            self._own.inodes.discard(inode)
            self._staged.names.add(name)

    def published(self, name: str, older: bool = False) -> None:
        """From the staging folder, where another of that name may come now. `older`: it was begun before the order,
        whatever its name."""
        if self._staged is None:
            return
        if begun := _has(self._staged.names, name):
            self._staged.names.difference_update(begun)
        elif not older:
            self.count += 1


def _has(names: set[str], name: str) -> set[str]:
    """Of these, itself and what it can have been called before: the same and something that says that it goes on."""
    place, _, last = name.rpartition("/")
    within = re.compile(rf"(?<![0-9A-Za-z]){re.escape(last)}(?![0-9A-Za-z])")

    def before(other: str) -> bool:
        where, _, half = other.rpartition("/")
        return where == place and goes_on(half) and within.search(half) is not None

    return {other for other in names if other == name or before(other)}
