"""What an attempt saved that is not on the volume although it should be: which, why, and whether it can still come.

One that was published later makes up for those before it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

from relaytui.wire.text import counted

Saved = tuple[int, int]
"""When a checkpoint was saved, in nanoseconds on its trainer's clock, and its step: the order of saving."""


class Miss(Enum):
    """Why a checkpoint is not on the volume."""

    NO_ROOM = "no room"  # it is whole and waits where it was saved
    HELD = "held"  # so it does: the volume refuses it for another reason
    REFUSED = "refused"  # it is there still
    ASIDE = "aside"  # it lies in `ckpt/.bad`


IF_WHOLE = ": if you know that it is whole, docs/agent.md (What a dead attempt leaves) says how to have it published"
NAMED = 3
"""Checkpoints of one reason that are named."""


class Missed:
    """Since the last that was published."""

    def __init__(self) -> None:
        self._misses: dict[str, tuple[Miss, str, Saved]] = {}  # by name: and why, in words
        self._last: Saved = (0, 0)  # what was saved last of all that is published
        self._step = 0  # the highest of those
        self._where: dict[str, str] = {}  # paths of what was set aside, by name
        self._behind: set[str] = set()  # of these what was saved after what its time says is later

    def __len__(self) -> int:
        return len(self._misses)

    @property
    def last_saved(self) -> int:
        """When what was saved last of all that is published was saved; 0: nothing is."""
        return self._last[0]

    @property
    def names(self) -> list[str]:
        return sorted(self._misses)

    @property
    def only_room(self) -> bool:
        """Whether there are some, and all of them lack but room."""
        return self._kinds == {Miss.NO_ROOM}

    @property
    def only_waits(self) -> bool:
        """Whether there are some, and all of them are published once the volume takes them."""
        return bool(self._misses) and self._kinds <= {Miss.NO_ROOM, Miss.HELD}

    @property
    def only_aside(self) -> bool:
        """Whether there are some, and none of them can be published any more."""
        return self._kinds == {Miss.ASIDE}

    @property
    def _kinds(self) -> set[Miss]:
        return {miss for miss, *_ in self._misses.values()}

    def why(self, otherwise: str) -> str:
        """In words: each reason with the checkpoints that it is of, where there are several. That there is no room
        comes first, as others may come of it. `otherwise`: of those that none is known of."""
        reasons: dict[str, list[str]] = {}
        for name in sorted(self._misses, key=lambda name: (self._misses[name][0] is not Miss.NO_ROOM, *_key(name))):
            reasons.setdefault(self._misses[name][1] or otherwise, []).append(name)
        if len(reasons) == 1:
            return next(iter(reasons))
        full = {words for miss, words, _ in self._misses.values() if miss is Miss.NO_ROOM}
        said = [
            f"{'the volume is full: ' * (words in full)}{words} ({listed(names)})" for words, names in reasons.items()
        ]
        return "; ".join(said)

    def add(self, saves: Mapping[str, Saved], why: str, miss: Miss = Miss.REFUSED) -> None:
        """Those that nothing saved later makes up for."""
        self._misses |= {n: (miss, why, saved) for n, saved in saves.items() if self._is_missed(n, miss, saved)}

    def add_new(self, names: Iterable[str]) -> None:
        """When these were saved nobody knows. Of those that are known already it stays as it was."""
        for name in names:
            self._misses.setdefault(name, (Miss.REFUSED, "", (sys.maxsize, 0)))

    def keep(self, there: Collection[str]) -> None:
        """What is no longer in the staging folder was taken away, unless it was by us."""
        self._misses = {name: of for name, of in self._misses.items() if of[0] is Miss.ASIDE or name in there}

    def add_aside(self, name: str, why: str, saved: Saved, where: str, *, before: bool = False) -> None:
        """`where` it lies now, in the run's folder, or nothing. `before`: an agent before this one did, so that it may
        be older than what is published; else its clock was set back where its time says so."""
        self._misses.pop(name, None)
        self._where[name] = where
        if not before and saved < self._last:
            self._behind.add(name)
        if self._is_missed(name, Miss.ASIDE, saved):
            self._misses[name] = Miss.ASIDE, why, saved

    def published(self, saved_at: int, step: int) -> None:
        """That makes up for what was saved before it."""
        self._last, self._step = max(self._last, (saved_at, step)), max(self._step, step)
        self._misses = {name: of for name, of in self._misses.items() if self._is_missed(name, of[0], of[2])}

    def _is_missed(self, name: str, miss: Miss, saved: Saved) -> bool:
        """By its time; or by its step, as a copy keeps the times of its origin, and a clock can have been set back."""
        by_step = miss is not Miss.ASIDE or name in self._behind
        return saved > self._last or (by_step and saved[1] > self._step)

    def words(self, lost: str, newest: int | None, step: int) -> str:
        """Which did not come onto the volume although they should have, why, and what can be done; or nothing. `lost`:
        what is missing of the volume; `newest`: the step of the last published; `step`: where the trainer ended."""
        if count := len(self):
            words = f"{counted(count, 'checkpoint')} could not be published: {self.why(lost)}"
            last = max(self._misses, key=lambda name: self._misses[name][2])
            where = self._where.get(last) if self.only_aside and not lost else ""
            which = "it" if count == 1 else "the newest of them"
            return f"{words}; {which} lies in {where}{IF_WHOLE}" if where else words
        if lost and newest is not None and newest < step:
            return f"what it saved after step {newest} could not be published: {lost}"
        return ""


def _key(name: str) -> tuple[int, str]:
    """In the order of the steps, however many digits their names have."""
    return len(name), name


def listed(names: Sequence[str]) -> str:
    """The first ones, and how many more."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
