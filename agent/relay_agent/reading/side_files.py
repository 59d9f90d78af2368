"""Files in which a trainer itself says how far it is: read as they grow, bounded, and nothing else than plain files.

- `trainer_state.json` (Hugging Face's Trainer, in each checkpoint): `log_history`, `max_steps`. It may hold NaN, and be
  large: of its end only so much is read as holds the newest entries.
- `trainer_log.jsonl` (LLaMA-Factory): a line for each log, with step and total.
- `results.csv` (Ultralytics): a row for each epoch.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from relay_agent.reading import mappings
from relay_agent.reading.sight import MAX_METRICS, Sight, evaluated, named, whole

MAX_ENTRIES, MAX_DEPTH = 2_000, 4
"""Of the trainer's folder that are looked at."""
MAX_FILES, MAX_KNOWN = 16, 10_000
"""Of these, that are read at one look, and that are known in all."""
CHUNK = 256 << 10
"""Bytes of a file that are read at one look."""
MAX_ENTRY = 8_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_ENTRY = re.compile(rb"\{[^{}]{2,%d}\}" % MAX_ENTRY)
_MAX_STEPS = re.compile(rb'"max_steps":\s*(\d{1,16})\b')


class SideFiles:
    """Below `folder`. What is told of steps up to `start` belongs to earlier attempts."""

    def __init__(self, folder: Path, start: int = 0) -> None:
        self._folder = folder
        self._start = start
        self._files: dict[tuple[int, int], _File] = {}  # by device and inode
        self._last = -1  # the last step that any trainer_state.json told: each of them repeats those before it

    def look(self) -> list[Sight]:
        """What is new, by step. Blocking; whatever lies there, it is no error."""
        sights: list[Sight] = []
        with suppress(OSError):
            for parent, name in self._found():
                with suppress(OSError):
                    sights += self._read(parent, name)
        own = [sight for sight in sights if sight.step is not None and sight.step > self._start]
        return sorted(own, key=lambda sight: sight.step or 0)

    def _found(self) -> Iterator[tuple[int, str]]:
        """A descriptor of the folder, and the name, of each file that is one of ours by its name."""
        entries = files = 0
        waiting = [(os.open(self._folder, _FOLDER), 0)]
        try:
            while waiting:
                at, depth = waiting.pop()
                try:
                    inner: list[str] = []
                    with os.scandir(at) as found:
                        for entry in found:
                            entries += 1
                            if entries > MAX_ENTRIES:
                                break
                            if entry.name in READERS:
                                if files < MAX_FILES and self._is_new(entry):
                                    files += 1
                                    yield at, entry.name
                            elif depth < MAX_DEPTH and entry.is_dir(follow_symlinks=False):
                                inner.append(entry.name)
                    for name in inner:
                        if len(waiting) < MAX_FILES * 4:
                            with suppress(OSError):
                                waiting.append((os.open(name, _FOLDER, dir_fd=at), depth + 1))
                finally:
                    os.close(at)
        finally:
            for at, _ in waiting:
                os.close(at)

    def _is_new(self, entry: os.DirEntry[str]) -> bool:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return False
        file = self._files.get((status.st_dev, status.st_ino))
        return stat.S_ISREG(status.st_mode) and (
            len(self._files) < MAX_KNOWN if file is None else file.seen != (status.st_size, status.st_mtime_ns)
        )

    def _read(self, parent: int, name: str) -> list[Sight]:
        fd = os.open(name, _FILE, dir_fd=parent)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return []
            file = self._files.setdefault((status.st_dev, status.st_ino), _File())
            file.last = self._last
            sights = READERS[name](file, fd, status.st_size)
            self._last = file.last
            if file.offset >= status.st_size or not file.more:
                file.seen = status.st_size, status.st_mtime_ns
            return sights
        finally:
            os.close(fd)


class _File:
    """How far one was read."""

    def __init__(self) -> None:
        self.seen = (-1, -1)  # size and time when it was read to its end
        self.offset = 0
        self.more = False  # there was more than is read at one look
        self.last = -1  # the last step told, of any
        self.names: tuple[str, ...] = ()

    def lines(self, fd: int, size: int) -> list[str]:
        """Whole lines from where it was read to."""
        if size < self.offset:  # it was begun anew
            self.offset, self.names = 0, ()
        data = os.pread(fd, CHUNK, self.offset)
        self.more = self.offset + len(data) < size
        block, end, _ = data.rpartition(b"\n")
        if not end:
            if len(data) == CHUNK:
                self.offset += CHUNK  # no line of ours is so long
            return []
        self.offset += len(block) + 1
        return block.decode("utf-8", "replace").split("\n")


def _state(file: _File, fd: int, size: int) -> list[Sight]:
    """Of trainer_state.json, once it is whole."""
    data = os.pread(fd, CHUNK, max(0, size - CHUNK))
    file.offset, file.more = size, False
    if not data.rstrip().endswith(b"}"):
        return []  # it is being written, and will have another time
    found = _MAX_STEPS.search(data)
    total = whole(float(found[1]), 1) if found else None
    sights = []
    for entry in _ENTRY.finditer(data):
        try:
            values = json.loads(entry[0])
        except (ValueError, RecursionError):
            continue
        step = whole(_number(values.pop("step", None)))
        if step is None or "train_runtime" in values:
            continue
        numbers = ((name, _number(value)) for name, value in list(values.items())[: 2 * MAX_METRICS])
        metrics = named((name, value) for name, value in numbers if value is not None)
        if metrics and step > file.last:
            sights.append(Sight(step, total, metrics, sure=True))
    file.last = max([file.last, *(sight.step for sight in sights if sight.step is not None)])
    return sights


def _log(file: _File, fd: int, size: int) -> list[Sight]:
    """Of trainer_log.jsonl."""
    sights = [mappings.read(line) for line in file.lines(fd, size) if len(line) <= MAX_ENTRY]
    return [replace(sight, sure=True) for sight in sights if sight is not None and sight.step is not None]


def _results(file: _File, fd: int, size: int) -> list[Sight]:
    """Of results.csv. The loss is the sum of those that are trained on."""
    sights: list[Sight] = []
    for line in file.lines(fd, size):
        cells = [cell.strip() for cell in line.split(",")]
        if not file.names or cells[0] == "epoch":
            if cells[0] != "epoch" or len(cells) > 2 * MAX_METRICS:
                return sights
            file.names = tuple(cells)
            continue
        if len(cells) != len(file.names):
            continue
        values = {name: _number(cell) for name, cell in zip(file.names, cells, strict=True)}
        step = whole(values.pop("epoch"))
        if step is None:
            continue
        numbers = {name: value for name, value in values.items() if value is not None}
        losses = [value for name, value in numbers.items() if name.startswith("train/") and name.endswith("loss")]
        metrics = named((name.removeprefix("train/").replace("lr/pg0", "lr"), value) for name, value in numbers.items())
        if losses:
            metrics["loss"] = sum(losses)
        if metrics and not evaluated(metrics):
            sights.append(Sight(step, None, metrics, sure=True))
    return sights


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


READERS: dict[str, Callable[[_File, int, int], list[Sight]]] = {
    "trainer_state.json": _state,
    "trainer_log.jsonl": _log,
    "results.csv": _results,
}
