"""What an attempt saved that is not on the volume although it should be: which, why, and whether it can still come.

One that was published later makes up for those before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum


class Miss(Enum):
    """Why a checkpoint is not on the volume."""

    NO_ROOM = "no room"  # it is whole and waits where it was saved
    REFUSED = "refused"  # it is there still
    ASIDE = "aside"  # it lies in `ckpt/.bad`


class Missed:
    """Since the last that was published. `why`: in words, of the latest."""

    def __init__(self) -> None:
        self._misses: dict[str, Miss] = {}
        self.why = ""

    def __len__(self) -> int:
        return len(self._misses)

    @property
    def names(self) -> list[str]:
        return sorted(self._misses)

    @property
    def only_room(self) -> bool:
        """Whether there are some, and all of them lack but room."""
        return set(self._misses.values()) == {Miss.NO_ROOM}

    def add(self, names: Iterable[str], why: str, miss: Miss = Miss.REFUSED) -> None:
        self._misses |= dict.fromkeys(names, miss)
        self.why = why

    def add_new(self, names: Iterable[str]) -> None:
        """Of those that are known already it stays as it was."""
        for name in names:
            self._misses.setdefault(name, Miss.REFUSED)

    def keep(self, there: Collection[str]) -> None:
        """What is no longer in the staging folder was taken away, unless it was by us."""
        self._misses = {name: miss for name, miss in self._misses.items() if miss is Miss.ASIDE or name in there}

    def clear(self) -> None:
        self._misses.clear()
