"""Whether what a trainer saves is growing: a cheap look at names, sizes and times, never at content."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

MAX_ENTRIES, MAX_DEPTH = 4_000, 8
LOGS = (".log", ".jsonl", ".csv", ".txt", ".out", ".err", ".tsv", ".html", ".png", ".wandb")
"""What grows while nothing is saved."""
NOT_SAVED = ("events.out.tfevents", "wandb", "logs", "tensorboard", "runs", "tb", "__pycache__")
SAVES_AT_LEAST = 1 << 20
"""Bytes between two looks in a folder where other things lie, too: of more it is a save."""


class Size(NamedTuple):
    """Of a tree, as far as it was looked at."""

    entries: int = 0
    bytes: int = 0
    newest: int = 0  # nanoseconds on the clock of whoever wrote it


def measure(roots: Iterable[Path]) -> Size:
    """What lies in these folders, links not followed, logs left out. Blocking; never an error, and bounded."""
    entries = total = newest = 0
    waiting = [(str(root), 0) for root in roots]
    while waiting and entries < MAX_ENTRIES:
        at, depth = waiting.pop()
        try:
            with os.scandir(at) as found:
                for entry in found:
                    entries += 1
                    if entries >= MAX_ENTRIES:
                        break
                    name = entry.name
                    if name.endswith(LOGS) or name.startswith(NOT_SAVED):
                        continue
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        if depth < MAX_DEPTH:
                            waiting.append((entry.path, depth + 1))
                    elif stat.S_ISREG(status.st_mode):
                        total += status.st_size
                        newest = max(newest, status.st_mtime_ns)
        except OSError:
            continue
    return Size(entries, total, newest)


def grew(before: Size, after: Size, *, mixed: bool) -> bool:
    """Whether a save goes on. `mixed`: other things are written there, too, so that a few bytes mean nothing."""
    if mixed:
        return after.bytes - before.bytes >= SAVES_AT_LEAST
    return (after.bytes, after.entries, after.newest) != (before.bytes, before.entries, before.newest)
