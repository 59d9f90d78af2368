"""Looks into the trainer's own folder again and again: which checkpoints lie there that are whole and not taken yet.

What lay there before the trainer started is not this attempt's and is never taken; nor is the same save twice, by
whichever agent of this attempt: what was seen to is noted in the staging folder, `.seen.json`. One that is whole by its
own marks is taken at once, one that has none once nothing in it changed for `settle` seconds in which somebody looked.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from relay_agent.checkpoints import adapters, take
from relay_agent.checkpoints.adapters.base import DEPTHS, MAX_STEP, Adapter, Candidate, Memory, NotYet
from relay_agent.checkpoints.adapters.kept import join
from relay_agent.checkpoints.adapters.view import View, view_of
from relay_agent.checkpoints.answers import There, goes_on
from relay_agent.checkpoints.disk import SYSTEM, Disk, folder, read_file, replace_file
from relay_agent.checkpoints.linked import LINKS_EVERY, linked
from relay_agent.checkpoints.misnamed import misnamed
from relay_agent.checkpoints.shrunk import shrunk
from relay_agent.checkpoints.staging import SHARE
from relay_agent.checkpoints.tree import Check, TooMany, Torn, Unsettled, never
from relay_agent.checkpoints.watching import Settling, Watching
from relaytui.wire.clock import Clock

SEEN = ".seen.json"
HEARD = ".heard.json"
"""Beside it: of those that tell no step and have yet to keep still, which was told last when each had changed last."""
MAX_SEEN = 4 << 20
T = TypeVar("T")
NOTHING = take.Source((), ())


class Key(NamedTuple):
    """Tells one save from the next under the same name."""

    mtime_ns: int
    size: int
    inode: int  # 0 on mounts that number their files anew whenever they forgot them


@dataclass(frozen=True)
class Ready:
    """One that can be taken."""

    adapter: Adapter
    candidate: Candidate
    key: Key
    sure: bool  # by its own marks; else because it kept still
    saved_at: int
    heard: int  # the step that was told last when it was seen to have changed last
    again: bool = False  # one of this name was seen to before
    inode: int = 0  # of what lies at its path


class _Still(NamedTuple):
    """`since`: seconds watched when it was seen first as it lies there. `heard`: the step that was told last then."""

    source: take.Source
    since: float
    heard: int


class _Noted(NamedTuple):
    """As it lay there."""

    saved_at: int
    bytes: int
    step: int


@dataclass(frozen=True)
class Doubt:
    """One that is not taken as it lies there, and why."""

    path: str
    why: str
    saved_at: int
    step: int = 0  # 0 where it tells none


class OutputWatch:
    """Of one attempt. `root`: the trainer's folder. `kinds`: those that are looked for. `step_now`: the step that the
    trainer told last, for a checkpoint that does not tell its own; `late_step`: for one that lay there already when
    this agent looked first, where the one before it noted none. Blocking."""

    def __init__(
        self,
        root: Path,
        staging: Path,
        settle: float,
        clock: Clock,
        *,
        kinds: tuple[Adapter, ...] = adapters.KINDS,
        step_now: Callable[[], int] = lambda: 0,
        late_step: Callable[[], int] = lambda: 0,
        atomic: bool = True,
        disk: Disk = SYSTEM,
    ) -> None:
        self.root = root
        self.copies = False
        """Whether its trainer is known to write to files that were whole: nothing is linked any more then."""
        self._staging = staging
        self._settle = settle
        self._clock = clock
        self._kinds = kinds
        self._step_now = step_now
        self._late_step = late_step
        self._late = False  # what lies there was saved before this agent looked
        self._noted: dict[str, _Noted] = {}
        self._atomic = atomic
        self._disk = disk
        self._memory = Memory()
        self._seen: dict[str, Key] | None = None
        self.watching = Watching()
        self._since: dict[tuple[str, str], _Still] = {}  # of those that have to keep still
        self._refused: dict[tuple[str, str], tuple[take.Source, str]] = {}  # by its path and its kind
        self._doubts: dict[str, Doubt] = {}
        self._elsewhere: list[Doubt] = []  # where nothing is found: what else lies there
        self._look_elsewhere = 0.0
        self._others: list[tuple[str, str]] = []  # of these what lay there before the trainer started
        self._not_before = 0.0
        self.waiting: list[str] = []
        """As of the last look: what is whole once it has kept still for `settle` seconds, by its path."""
        self.found = False
        """Whether anything was ever there that the trainer may have saved as one."""
        self.may_be_cut: Callable[[int], bool] = lambda step: False
        """Whether a save of that step may have been going on when the trainer exited with 0."""

    def begin(self) -> list[str]:
        """Right before the trainer starts: what lies there already, by its path, is not taken. An agent that goes on
        with an attempt finds what the one before it had noted."""
        if self._load():
            return []
        there: dict[str, Key] = {}
        with suppress(OSError), self._view() as view:
            for adapter, candidate in adapters.find(view, self._kinds, self._memory):
                if (key := self._key(view, candidate)) is not None:
                    there[candidate.path] = key
                    if not adapter.missing(view, candidate, self._memory):
                        adapter.learn(view, candidate, self._memory)
            self._others = list(misnamed(view, self._kinds))
        self._seen = there
        with suppress(OSError):
            self._note()
        return sorted(there)

    def scan(self, exited: int | None = None) -> list[Ready]:
        """What can be taken, in the order of saving. `exited`: the trainer's exit code once nothing of it is left."""
        now = self._clock.boot()
        self.watching.look(now, over=exited is not None, waits=bool(self._since))
        if self._kinds == () or (exited is None and now < self._not_before):
            return []
        if self._seen is None and not self._load():
            self._seen, self._late = {}, True
        try:
            with self._view() as view:
                found = self._look(view, now, exited)
        except OSError:  # it is not there yet, or any more
            found = []
        self._not_before = self._clock.boot() + SHARE * (self._clock.boot() - now)
        return sorted(found, key=lambda ready: (ready.saved_at, ready.candidate.step or 0, ready.candidate.path))

    def settling(self) -> list[Settling]:
        """What is `waiting`, since when."""
        now, waiting = self.watching.seconds, self.waiting
        return [
            Settling(path, still.source.saved_at, now - still.since, self._settle)
            for (path, _), still in list(self._since.items())
            if path in waiting
        ]

    @property
    def any(self) -> bool:
        """Whether one lay there at the last look that was not taken, whole or not."""
        return bool(self._since or self._doubts)

    def unproven(self) -> list[Doubt]:
        """As of the last look, what would be whole once it had kept still."""
        return [self._doubts[path] for path in self.waiting if path in self._doubts]

    def pending(self) -> There:
        """What lies there by now, whole or not, and is not taken: checkpoints by their paths; and what lies where one
        may be, as it may bear another name yet. Beside a look that goes on."""
        seen, there = self._seen or {}, There()
        with suppress(OSError), self._view() as view:
            for place in view.places(DEPTHS):
                there.names.update(join(place, name) for name in view.names(place) if goes_on(name))
                there.inodes.update(view.inodes(place) if self._atomic else ())
            for _, candidate in adapters.find(view, self._kinds, Memory()):
                key = self._key(view, candidate)
                if key is None or key != seen.get(candidate.path):
                    there.names.add(candidate.path)
                else:
                    there.inodes.discard(self._inode(view, candidate.path))
        return there

    def doubts(self) -> list[Doubt]:
        """Of the last look: what lies there and is not taken, and why."""
        return sorted([*self._elsewhere, *self._doubts.values()], key=lambda doubt: (doubt.saved_at, doubt.path))

    def refused(self) -> list[Doubt]:
        """Of these, those that were to be taken and are damaged, or are nothing that time mends."""
        paths = {path for path, _ in self._refused}
        return [doubt for doubt in self.doubts() if doubt.path in paths or doubt in self._elsewhere]

    def take(self, ready: Ready, check: Check = never, deep: bool = False) -> take.Taken:
        """As `take.take` does; what only kept still is read whole in any case. What is Torn is not offered again before
        something in it changes."""
        assert self._seen is not None
        # Saved again under its name: it is written over, and may be once more.
        again = ready.again or self.copies
        candidate = replace(ready.candidate, in_place=True) if again else ready.candidate
        with self._view() as view:
            source = take.gather(view.root, candidate)
            step = self._step(view, ready)
            try:
                taken = take.take(
                    view.root,
                    ready.adapter,
                    candidate,
                    min(ready.heard, MAX_STEP) if step is None else step,
                    self._staging,
                    atomic=self._atomic,
                    deep=deep or not ready.sure,
                    heard=step is None,
                    check=check,
                    disk=self._disk,
                )
            except Unsettled:
                raise
            except Torn as torn:
                self._refused[ready.candidate.path, ready.adapter.name] = (source, torn.reason)
                raise
            ready.adapter.learn(view, ready.candidate, self._memory)
        self._seen[ready.candidate.path] = ready.key
        with suppress(OSError):  # it is taken; a later agent of this attempt would take it once more
            self._note()
        return taken

    def _look(self, view: View, now: float, exited: int | None) -> list[Ready]:
        assert self._seen is not None
        ready: dict[str, Ready] = {}
        doubts: dict[str, Doubt] = {}
        damaged: set[str] = set()
        had: set[str] = set()  # whatever another kind misses in it
        still: dict[tuple[str, str], _Still] = {}
        for adapter, candidate in adapters.find(view, self._kinds, self._memory):
            path = candidate.path
            key = self._key(view, candidate)
            if key is not None and self._seen.get(path) == key:
                had.add(path)
                continue
            if path in ready and ready[path].sure:
                continue
            if why := view.crowded(path):
                doubts[path] = Doubt(path, why, key.mtime_ns if key else 0)
                self._refused[path, adapter.name] = (NOTHING, why)
                continue
            why = adapter.missing(view, candidate, self._memory)
            # Where folders are not renamed in one step their times mean nothing either.
            if key is not None and not why and self._atomic and (lost := shrunk(view, candidate)):
                why = NotYet(f"something was deleted from {lost}")
            if key is None or (why and not isinstance(why, NotYet)):
                doubts.setdefault(path, Doubt(path, why or "it vanished", key.mtime_ns if key else 0))
                continue
            try:
                source = take.gather(view.root, candidate)
            except Unsettled as changing:
                doubts.setdefault(path, Doubt(path, changing.reason, key.mtime_ns))
                continue
            except Torn as torn:  # it holds what none may
                doubts.setdefault(path, Doubt(path, torn.reason, key.mtime_ns))
                if not why or isinstance(torn, TooMany):  # which no mark to come mends
                    self._refused[path, adapter.name] = (NOTHING, torn.reason)
                continue
            refused, reason = self._refused.get((path, adapter.name), (NOTHING, ""))
            if refused == source:
                doubts[path] = Doubt(path, reason, source.saved_at)
                damaged.add(path)
                continue
            before = self._since.get((path, adapter.name))
            is_written = before is not None and before.source != source
            if before is None or is_written:
                before = _Still(source, self.watching.seconds, self._heard(path, source.saved_at, source.bytes))
            if why and candidate.step is None and not is_written:
                self._note_heard(path, before)
            still[path, adapter.name] = before
            found = Ready(
                adapter,
                candidate,
                key,
                not why,
                source.saved_at,
                before.heard,
                path in self._seen,
                self._inode(view, path),
            )
            if not why:
                ready[path] = found
            elif self.watching.seconds - before.since >= self._settle or (
                exited == 0 and not self.may_be_cut(candidate.step or 0)
            ):
                ready.setdefault(path, found)
            elif path not in damaged:  # else that says more
                doubts[path] = Doubt(path, why, source.saved_at, candidate.step or 0)
        self._since, self._late = still, False
        self.waiting = sorted({path for path, _ in still if path not in ready})
        self._refused = {key: each for key, each in self._refused.items() if key[0] in doubts or key[0] in ready}
        self._doubts = {path: doubt for path, doubt in doubts.items() if path not in ready and path not in had}
        if self._seen or ready:
            self._elsewhere = []
        elif now >= self._look_elsewhere or exited is not None:
            beside = [] if doubts else list(linked(self.root, self._kinds))
            beside += [each for each in misnamed(view, self._kinds) if each not in self._others]
            self._elsewhere = [Doubt(name, words, 0) for name, words in beside]
            self._look_elsewhere = now + LINKS_EVERY
        self.found = self.found or bool(ready or doubts or self._elsewhere)
        return list(ready.values())

    def _heard(self, path: str, saved_at: int, size: int) -> int:
        """The step that was told last when it had changed last."""
        noted = self._noted.get(path)
        if noted is not None and noted[:2] == (saved_at, size):
            return noted.step
        if not self._late:
            return self._step_now()
        return max(self._late_step(), noted.step if noted else 0)

    def _note_heard(self, path: str, still: _Still) -> None:
        """For a later agent."""
        noted = _Noted(still.source.saved_at, still.source.bytes, still.heard)
        if self._noted.get(path) != noted:
            self._noted = {each: self._noted[each] for each in self._noted if os.path.lexists(self.root / each)}
            self._noted[path] = noted
            with suppress(OSError):
                replace_file(self._disk, self._staging / HEARD, msgspec.json.encode(self._noted) + b"\n")

    def _step(self, view: View, ready: Ready) -> int | None:
        """None: the checkpoint does not tell, and the last that was heard of when it had changed last counts. That can
        be one too low, and a few off where steps are quick: no line says when it was printed, and some trainers print
        before they save, others after it. It is not asked for what was printed since: too low costs little, too high
        hides steps that are lost.
        """
        step = ready.adapter.step(view, ready.candidate)
        return step if step is not None and 0 <= step <= MAX_STEP else None

    def _view(self) -> AbstractContextManager[View]:
        return view_of(self.root, adapters.is_checkpoint)

    def _load(self) -> bool:
        """Whether this attempt has notes."""
        seen = self._read(SEEN, dict[str, Key])
        if seen is None:
            return False
        self._seen, self._late = seen, True
        self._noted = self._read(HEARD, dict[str, _Noted]) or {}
        return True

    def _read(self, name: str, of: type[T]) -> T | None:
        try:
            with folder(self._staging) as fd:
                return msgspec.json.decode(read_file(fd, name, MAX_SEEN), type=of)
        except (OSError, msgspec.DecodeError, RecursionError):
            return None

    def _note(self) -> None:
        """Only of what is still there: a trainer that deletes its own shortens it too."""
        assert self._seen is not None
        self._seen = {path: key for path, key in self._seen.items() if os.path.lexists(self.root / path)}
        replace_file(self._disk, self._staging / SEEN, msgspec.json.encode(self._seen) + b"\n")

    def _key(self, view: View, candidate: Candidate) -> Key | None:
        found = view.stat(candidate.marker or candidate.path)
        return Key(found.st_mtime_ns, found.st_size, found.st_ino if self._atomic else 0) if found else None

    def _inode(self, view: View, path: str) -> int:
        found = view.stat(path) if self._atomic else None
        return found.st_ino if found else 0
