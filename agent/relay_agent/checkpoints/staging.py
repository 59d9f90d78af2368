"""What the trainer saved into its staging folder, and whether it is whole.

A trainer saves into `step_<N>/`. An empty file `COMPLETE` written last makes it whole at once. Without it, it is whole
when the trainer has come to its end and exited with 0, or when nothing in it changed for a while, and how long that is
depends on what is known of the trainer:

- it marks its checkpoints: for ever, however it exits. One without a mark is one that it has not saved to the end,
- it does not: `settle` seconds, during which somebody looked on,
- nobody knows yet: FIRST times as long. Two saves without a mark, of which the second began once the first had kept
  still, ended without one.

An exit with 0 says nothing of a save that had begun before the trainer was asked to stop (whoever handles SIGTERM by
`sys.exit(0)` leaves it half), nor of any where processes of it had to be stopped or it had not come to its last step.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from relay_agent.checkpoints.disk import SYSTEM, Disk, folder, names, read_file
from relay_agent.checkpoints.manifest import MANIFEST, MAX_BYTES, SEALING, Manifest, decode
from relay_agent.checkpoints.strays import Strays
from relay_agent.checkpoints.tree import MAX_DEPTH, MAX_FILES, TooMany, Torn, Tree, walk
from relay_agent.checkpoints.unfinished import UNFINISHED
from relay_agent.checkpoints.watching import Settling, Watching
from relaytui.wire.clock import Clock
from relaytui.wire.ids import Id, is_id

MARKER = "COMPLETE"
MAX_MARK = 1024
OURS = (MARKER, MANIFEST, SEALING)
"""Top-level names in a staged folder that are not part of what was saved."""
STAGING = "staging"
"""The adapter of what a trainer stages itself."""
STEP = re.compile(r"step_([0-9]{1,15})\Z")
FIRST = 12
"""Times the settle time that the first checkpoint of a run is given: the mark may be still to come."""
DEMANDED = "which COMPLETE_MARKER=always wants"
NO_DATA = "it holds no data"
EARLY = "before its last step, maybe in the middle of a save"
SHARE = 20
"""A look that took a second is the last one at the same for this many."""
UNKNOWN_END = 256
"""In place of an exit code where nobody knows how the trainer ended."""


@dataclass(frozen=True)
class Staged:
    """A whole checkpoint that waits to be published."""

    step: int
    path: Path
    saved_at: int = 0  # when its last byte came (nanoseconds on the trainer's clock): the order of saving
    marks: bool | None = None  # whether its trainer marks what is whole; None: nobody knows
    settled: bool = False  # nobody said that it is whole: it only did not change for a while
    adapter: str = STAGING  # the kind of trainer whose it is
    heard: bool = False  # it tells no step itself
    linked: bool = False  # its files have a second name in the trainer's folder, which is known not to be written to

    @property
    def saved(self) -> tuple[int, int]:
        """What tells the order of saving."""
        return self.saved_at, self.step


@dataclass(frozen=True)
class TornStaged:
    """One that will never be whole, and why."""

    name: str
    path: Path
    reason: str
    saved_at: int = 0


class Mark(Struct, frozen=True):
    """In COMPLETE, of what an agent took from the trainer's own folder. A trainer's mark is empty."""

    adapter: Id
    linked: bool = False
    heard: bool = False


@dataclass(frozen=True)
class _Look:
    """`shape`: of all that lies there, equal where nothing changed."""

    shape: bytes
    marked: bool
    empty: bool
    problem: str  # why it cannot be a checkpoint as it lies there, or nothing
    saved_at: int = 0  # when the last byte of the trainer's came
    marker: bool = False  # the trainer's own
    taken: Mark | None = None  # by an agent


class StagingWatch:
    """Looks at one epoch's staging folder again and again. Blocking, but reads only names, sizes and times."""

    def __init__(self, root: Path, settle: float, clock: Clock, marks: bool | None = False) -> None:
        self.marks = marks
        """Whether the trainer marks its checkpoints, as far as is known: what it saves tells where that is None, and a
        mark tells in any case."""
        self.demanded = False
        """COMPLETE_MARKER=always says that it does; else others of the run were marked."""
        self.may_be_cut: Callable[[str], bool] = lambda name: False
        """Whether that save may have been going on when the trainer exited with 0."""
        self.why_cut = "may have been saving still"
        """In words."""
        self._root = root
        self._settle = settle
        self._clock = clock
        self.watching = Watching()
        self.strays: list[tuple[str, str]] = []
        """Of the last look: what lies there under other names and was not said yet, and what to say of it."""
        self._strays = Strays(settle, MARKER)
        self._since: dict[str, tuple[_Look, float]] = {}  # what each looked like, and since when, by that
        self._first: dict[str, float] = {}  # when each was there for the first time, by the same
        self._not_before: dict[str, float] = {}  # of those that took long to look at
        self._whole: set[str] = set()
        self._exited: int | None = None

    def scan(self, now: float | None = None, trainer_exited: int | None = None) -> list[Staged]:
        """The whole ones, oldest first, each time until it is moved away. `now`: seconds on the boot clock.

        `trainer_exited`: its exit code (negative for a signal) once it and its children are gone. The first look with
        it decides: nothing settles any more after that, and what is whole stays so.
        """
        over = trainer_exited is not None or self._exited is not None
        waits = not self.marks and bool(self._since.keys() - self._whole)
        watched = self.watching.look(self._clock.boot() if now is None else now, over=over, waits=waits)
        looks, seen = self._look(over, watched)
        for name, look in looks.items():
            self._first.setdefault(name, watched)
            before = self._since.get(name)
            if before is None or before[0] != look:
                self._since[name] = (look, watched)
                if self._exited is None:  # afterwards it is ourselves: a publish that failed can leave its traces
                    self._whole.discard(name)
        self._learn(looks, seen, watched)
        for name in seen:
            look, since = self._since[name]
            by_agent = look.taken and not (look.problem or look.empty)  # which may be when the trainer is gone
            if by_agent or (self._exited is None and self._is_whole(name, look, watched - since, trainer_exited)):
                self._whole.add(name)
        for name in self._since.keys() - looks.keys():
            del self._since[name], self._first[name]
            self._whole.discard(name)
        if self._exited is None:
            self._exited = trainer_exited
        whole = sorted(self._whole, key=lambda name: (looks[name].saved_at, step_of(name), name))
        return [self._staged(name, looks[name]) for name in whole]

    def _staged(self, name: str, look: _Look) -> Staged:
        step, path = step_of(name), self._root / name
        if look.taken:
            taken = look.taken
            return Staged(step, path, look.saved_at, adapter=taken.adapter, heard=taken.heard, linked=taken.linked)
        return Staged(step, path, look.saved_at, self.marks, self._exited is None and not look.marked)

    def doubt(self, name: str) -> None:
        """It was seen to change where no look shows it: it has to keep still once more."""
        if name in self._since and self._exited is None:
            self._since[name] = (self._since[name][0], self.watching.seconds)
            self._whole.discard(name)

    def _learn(self, looks: dict[str, _Look], seen: set[str], watched: float) -> None:
        if any(look.marker for look in looks.values()):
            self.marks = True
        elif self.marks is None:
            still = {
                name: self._since[name][1]
                for name in seen
                if not (looks[name].marked or looks[name].empty) and watched - self._since[name][1] >= self._settle
            }
            first = min(still.values(), default=watched) + self._settle
            if any(self._first[name] >= first for name in still):
                self.marks = False

    @property
    def found(self) -> bool:
        """Whether anything of a checkpoint, or what should be one, is there."""
        return bool(self._since) or self._strays.any

    @property
    def any(self) -> bool:
        """Whether one lay there at the last look, whole or not."""
        return bool(self._since)

    @property
    def waiting(self) -> list[str]:
        """What is whole once it has kept still for `stillness`, as of the last look."""
        if self.marks:
            return []
        return [
            name
            for name, (look, _) in sorted(self._since.items())
            if name not in self._whole and not (look.empty or look.problem)
        ]

    def settling(self) -> list[Settling]:
        """Of these, since when."""
        since, now, still = dict(self._since), self.watching.seconds, self.stillness
        there = [(name, *since[name]) for name in self.waiting if name in since]
        return [Settling(name, look.saved_at, now - at, still) for name, look, at in there]

    @property
    def stillness(self) -> float:
        """Seconds that nothing in one without a mark may change before it is whole."""
        return self._settle * (FIRST if self.marks is None else 1)

    @property
    def unmarked(self) -> list[str]:
        """What would be whole if its trainer did not mark others."""
        watched = self.watching.seconds
        return [
            name
            for name, (look, since) in sorted(self._since.items())
            if self.marks and not (look.marked or look.empty or look.problem) and watched - since >= self._settle
        ]

    def torn(self) -> list[TornStaged]:
        """After a scan that was told of the exit: what will never be whole. Before it: what can never become so."""
        return [
            TornStaged(
                name,
                self._root / name,
                look.problem or (look.empty and NO_DATA) or self._why_torn(since),
                look.saved_at,
            )
            for name, (look, since) in sorted(self._since.items())
            if name not in self._whole and (look.problem or self._exited is not None)
        ]

    def _why_torn(self, since: float) -> str:
        code = self._exited or 0
        how = f"exited{f' with {code}' * (code != 0)}" if code >= 0 else f"died by signal {-code}"
        if code != UNKNOWN_END and self.marks:
            why = DEMANDED if self.demanded else "as it does into what is whole"
            return f"the trainer {how} and had not written {MARKER} into it, {why}"
        kept = f"{int(self.watching.seconds - since)} s"
        why = f"the trainer {how} before it had kept still for {self.stillness:g} s (it had for {kept})"
        if code == UNKNOWN_END:
            why = "its agent died before anybody saw that it was whole"
        elif code == 0:
            why = f"the trainer exited with 0, but {self.why_cut}"
        return f"{why}; {MARKER} in it would say that it is whole"

    def _is_whole(self, name: str, look: _Look, unchanged: float, trainer_exited: int | None) -> bool:
        if look.problem or look.empty:
            return False
        if look.marked:
            return True
        if self.marks:
            return False
        if trainer_exited == 0 and not self.may_be_cut(name):
            return True
        return unchanged >= self.stillness

    def _look(self, at_once: bool, watched: float) -> tuple[dict[str, _Look], set[str]]:
        """One that took long is not looked at again soon: it is as it was for as long. The names of those that were
        looked at, too: what is only remembered shows nothing of how they kept."""
        looks: dict[str, _Look] = {}
        seen: set[str] = set()
        self.strays = []
        with suppress(FileNotFoundError), folder(self._root) as root:
            found = names(root)
            others = [name for name in found if not STEP.match(name)]
            self.strays = self._strays.look(self._root, others, watched, at_once)
            for name in filter(STEP.match, found):
                began = self._clock.boot()
                if name in self._since and began < self._not_before.get(name, 0.0) and not at_once:
                    looks[name] = self._since[name][0]
                    continue
                with suppress(FileNotFoundError):  # it went while we looked; so it was not whole
                    looks[name] = _look_at(root, name)
                    seen.add(name)
                self._not_before[name] = self._clock.boot() + SHARE * (self._clock.boot() - began)
        self._not_before = {name: at for name, at in self._not_before.items() if name in looks}
        return looks, seen

    def unfit(self) -> list[TornStaged]:
        """What is no checkpoint as it lies there, and has kept still so. Its trainer may be writing to it yet; an empty
        one may have been made ahead of a long gathering."""
        watched = self.watching.seconds
        return [
            TornStaged(name, self._root / name, look.problem or NO_DATA, look.saved_at)
            for name, (look, since) in sorted(self._since.items())
            if (look.problem or look.empty) and watched - since >= self._settle * (1 if look.problem else FIRST)
        ]


def step_of(name: str) -> int:
    """Of a name that STEP matches."""
    match = STEP.match(name)
    assert match is not None
    return int(match[1])


def _sealed(root: int, name: str, tree: Tree) -> Manifest | None:
    """Its manifest, if it was found whole before: publishing takes the marker away once the manifest is written, and
    can end there."""
    if not any(file.path == MANIFEST for file in tree.files):
        return None
    try:
        with folder(name, dir_fd=root) as fd:
            manifest = decode(read_file(fd, MANIFEST, MAX_BYTES))
    except (Torn, OSError):
        return None
    listed = [(file.path, file.size) for file in manifest.files]
    return manifest if listed == [(f.path, f.size) for f in tree.files if f.path not in OURS] else None


def _taken(root: int, name: str, tree: Tree, sealed: Manifest | None) -> Mark | None:
    """Whose it is where an agent took it, by the mark or by what publishing had begun to make of it."""
    if any(file.path == MARKER and file.size for file in tree.files):
        with suppress(OSError, msgspec.DecodeError), folder(name, dir_fd=root) as fd:
            return msgspec.json.decode(read_file(fd, MARKER, MAX_MARK), type=Mark)
    if sealed and sealed.adapter != STAGING and is_id(sealed.adapter):
        return Mark(sealed.adapter, heard=sealed.heard)
    return None


def leave_mark(staged: Path, content: bytes = b"", disk: Disk = SYSTEM) -> None:
    """An agent's own: it is whole. Without a time, for it says nothing of the trainer, nor of the order of saving; an
    empty one takes no room. OSError where it is marked already, or the volume refuses."""
    fd = disk.create(staged / MARKER)
    try:
        if content:
            disk.write(fd, content)
        disk.set_time(fd, 0)
        disk.fsync(fd)
    finally:
        os.close(fd)


def saved_at(path: str | Path, *, dir_fd: int | None = None) -> int:
    """When what lies there was saved, whatever it is, as a look has it; 0 where nobody can tell. Files tell before
    their folders do, whose time is any time on some volumes."""
    try:
        own = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
        if not stat.S_ISDIR(own.st_mode):
            return own.st_mtime_ns
        with folder(path, dir_fd=dir_fd) as fd:
            return max(itertools.islice(_times(fd, OURS[1:]), MAX_FILES), default=own.st_mtime_ns)
    except (Torn, OSError):
        return 0


def _times(fd: int, ignore: tuple[str, ...] = (), depth: int = 0) -> Iterator[int]:
    """Of all that lies below and is no folder, as far as it can be seen."""
    with suppress(Torn, OSError), os.scandir(fd) as entries:
        for entry in entries:
            if entry.name in ignore:
                continue
            if not entry.is_dir(follow_symlinks=False):
                yield entry.stat(follow_symlinks=False).st_mtime_ns
            elif depth < MAX_DEPTH:
                with suppress(Torn, OSError), folder(entry.name, dir_fd=fd) as below:
                    yield from _times(below, (), depth + 1)


def _look_at(root: int, name: str) -> _Look:
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=root, follow_symlinks=False).st_mode):
            raise Torn("it is not a folder")
        with folder(name, dir_fd=root) as fd:
            tree = walk(fd, most=MAX_FILES + len(OURS))
            if len(tree.files) + len(tree.folders) - sum(file.path in OURS for file in tree.files) > MAX_FILES:
                raise TooMany(MAX_FILES)
    except FileNotFoundError:
        raise
    except TooMany:
        return _unfit(root, name, TooMany(MAX_FILES).reason)
    except Torn as torn:
        return _unfit(root, name, torn.reason)
    except OSError as error:
        return _unfit(root, name, f"it cannot be read: {error.strerror or error}")
    if any(file.path == UNFINISHED for file in tree.files):
        return _unfit(root, name, "somebody had begun to take it away")
    sealed = _sealed(root, name, tree)
    marks = [file for file in tree.files if file.path == MARKER]
    taken = _taken(root, name, tree, sealed)
    empty = not any(file.size for file in tree.files if file.path != MARKER)
    marked = bool(marks) or sealed is not None
    # What publishing wrote says nothing about the order of saving.
    times = [file.mtime_ns for file in tree.files if file.path not in OURS[1:]]
    return _Look(
        tree.shape,
        marked,
        empty,
        NO_DATA if marked and empty else "",  # a folder just made is empty for a moment
        max(times) if times else saved_at(name, dir_fd=root),
        taken is None and any(mark.mtime_ns for mark in marks),  # an agent's has no time
        taken,
    )


def _unfit(root: int, name: str, why: str) -> _Look:
    return _Look(b"", False, True, why, saved_at(name, dir_fd=root))
