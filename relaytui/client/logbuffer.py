"""The newest log lines of one run, in order, each once, bounded."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relaytui.wire.rows import LogLine

MAX_LINES = 5_000

Key = tuple[int, int]
"""(epoch, n): what tells a line from every other of its run."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line, or (`missing` > 0) a stretch of lines that gave way, numbered from `n`."""

    epoch: int
    n: int
    t: float
    text: str
    missing: int = 0

    @property
    def key(self) -> Key:
        return (self.epoch, self.n)


class LogBuffer:
    """A ring ordered by (epoch, n).

    A view that keeps its own rows follows with three counters: `appended` ever, `dropped` from the front ever, and
    `generation`, which grows when the middle or the front changed in another way and the view must read it all anew.
    """

    def __init__(self, limit: int = MAX_LINES) -> None:
        self.limit = limit
        self.entries: list[Entry] = []
        self._keys: list[Key] = []
        self.appended = 0
        self.dropped = 0
        self.generation = 0

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, epoch: int, n: int, t: float, lines: Sequence[str]) -> int:
        """Take in lines numbered from `n`; returns how many were new."""
        return self._take(Entry(epoch, n + i, t, text) for i, text in enumerate(lines))

    def add_lines(self, lines: Iterable[LogLine]) -> int:
        return self._take(Entry(line.epoch, line.n, line.t, line.text) for line in lines)

    def add_gap(self, epoch: int, n: int, count: int) -> None:
        self._take([Entry(epoch, n, 0.0, "", max(1, count))])

    def _take(self, entries: Iterable[Entry]) -> int:
        new = 0
        for entry in entries:
            key = entry.key
            if not self._keys or key > self._keys[-1]:
                self._keys.append(key)
                self.entries.append(entry)
                self.appended += 1
                new += 1
                continue
            at = bisect_left(self._keys, key)
            if self._keys[at] == key:
                if self.entries[at].missing and not entry.missing:  # found after all
                    self.entries[at] = entry
                    self.generation += 1
                continue
            if at == 0 and len(self._keys) >= self.limit:
                continue  # older than all that is kept, and there is no room
            self._keys.insert(at, key)
            self.entries.insert(at, entry)
            self.generation += 1
            new += 1
        self._trim()
        return new

    def _trim(self) -> None:
        over = len(self.entries) - self.limit
        if over > 0:
            del self.entries[:over]
            del self._keys[:over]
            self.dropped += over
