"""What Relay must know of a kind of trainer to take its checkpoints and to hand them back: an adapter.

Most kinds are a row of facts: `Adapter(name, pattern, marker=…)`. What a row cannot say is a method that a subclass
overrides: `find` (what belongs to a checkpoint), `missing` (why it is not whole), `check` (whether its bytes can be
what they claim to be) and `plan` (what the trainer is handed). Adapters only look, through a `View`; taking and handing
out is the same for all (`take.py`, `handing.py`). How to add one: CONTRIBUTING, "How to add an adapter".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

from relay_agent.checkpoints.adapters.view import View
from relay_agent.checkpoints.tree import Tree

WHOLE = ""
"""What `missing` answers of one that is whole by its own marks."""
UNFINISHED = ("*.tmp", ".tmp*", "*.incomplete", "*.partial")
DEPTHS = ("", "*", "*/*", "*/*/*")
"""Where trainers put their folder of checkpoints, as their users name it: `run-1`, `saves/llama/sft`."""
MAX_STEP = 10**15 - 1
"""As staged folders can be named."""


@dataclass(frozen=True)
class Part:
    """What belongs to a checkpoint: a file, or a folder with all that lies in it."""

    source: str  # in the trainer's folder
    target: str = ""  # in the checkpoint; "": what lies in the folder `source` lies at its top


@dataclass(frozen=True)
class Candidate:
    """One checkpoint as it lies in the trainer's folder, whole or not."""

    path: str  # of what gives it its name, in the trainer's folder: `checkpoint-500`
    step: int | None  # None: nothing in it says; the step that the trainer told last counts then
    parts: tuple[Part, ...]
    marker: str = ""
    """What is written to it last, in the trainer's folder: the file that tells one save from the next of the same name.
    "": nothing is, all that belongs to it has to be looked at."""
    texts: tuple[tuple[str, str], ...] = ()
    """Small files that Relay writes beside them: a tracker that names this one, whatever the trainer's says by then."""
    in_place: bool = False
    """Its files are written again under the same names, though those of others of its kind are not."""


class NotYet(str):
    """Why one is not whole that may be so once nothing in it changes for a while: its marks are there, but others that
    nobody can count may follow."""


@dataclass(frozen=True)
class Ranks:
    """Files of which each rank writes its own: all of 0 … W-1 must be there. `pattern` (of names in the checkpoint)
    has a group `rank`, and a group `world` where names tell W."""

    pattern: re.Pattern[str]
    first: int = 0


@dataclass(frozen=True)
class Put:
    """A name in a folder that is made for a resume, and what stands there."""

    target: str
    source: str = ""  # in the checkpoint; "": all of it
    text: str | None = None  # instead: a small file with these words


@dataclass(frozen=True)
class Plan:
    """What a trainer is handed. In `path` and `args`: `{ckpt}` is the published checkpoint, which nobody may write to,
    `{layout}` a folder of Relay's own with what `layout` names, `{output}` RELAY_OUTPUT_DIR."""

    path: str = "{ckpt}"  # RELAY_RESUME_FROM
    args: tuple[str, ...] = ()  # RELAY_RESUME_ARGS
    layout: tuple[Put, ...] = ()  # for trainers that want names; links into the published checkpoint …
    copies: bool = False  # … or copies (reflinks where they can be had): the trainer may write to what it loads
    seeds: tuple[Put, ...] = ()  # copies in the trainer's own folder, for one that loads from where it saves


@dataclass(frozen=True)
class Saved:
    """What is known of a published checkpoint when a trainer is to go on from it."""

    step: int
    files: tuple[str, ...]  # relative to it

    @property
    def top(self) -> tuple[str, ...]:
        """Names at its top."""
        return tuple(dict.fromkeys(path.split("/")[0] for path in self.files))


@dataclass
class Memory:
    """What an adapter learns in one attempt: of one folder, by whatever key it likes."""

    numbers: dict[str, int] = field(default_factory=dict)

    def most(self, key: str, seen: int) -> int:
        """The most of `key` that was ever seen, `seen` included."""
        self.numbers[key] = max(seen, self.numbers.get(key, seen))
        return self.numbers[key]


@dataclass(frozen=True)
class Adapter:
    """One kind. Patterns of names are matched from end to end."""

    name: str
    pattern: str
    """Regular expression of the names of its checkpoints, with a group `step` where they tell."""
    places: tuple[str, ...] = DEPTHS
    """Folders in which they lie, in the trainer's folder."""
    is_file: bool = False
    """One file is the checkpoint, not a folder. It keeps its place in the published one."""
    end_tells: bool = False
    """Of a file: what it ends with is written last, as it is of a zip archive (torch, keras)."""
    marker: str = ""
    """The file in it that is written last. Where no file is, nothing says that one is whole: it has to keep still."""
    needs: tuple[str, ...] = ()
    """Further files that must be there: patterns of the shell, `|` between alternatives, of names at its top."""
    ranks: tuple[Ranks, ...] = ()
    unfinished: tuple[str, ...] = UNFINISHED
    """Names at its top that a save has only while it goes on."""
    owns: str = ""
    """Regular expression of further names of this kind that are no checkpoints, such as those of half-made ones: nobody
    looks for checkpoints inside."""
    in_place: bool = False
    """Whether files are written again under the same name: a hard link of such a file is no snapshot."""
    resume: Plan = Plan()

    @cached_property
    def named(self) -> re.Pattern[str]:
        """`pattern`: each look asks for every name."""
        return re.compile(self.pattern)

    def is_mine(self, name: str) -> bool:
        """Whether a folder of this name is a checkpoint of this kind, or on its way to be one."""
        return bool((not self.is_file and self.named.fullmatch(name)) or (self.owns and re.fullmatch(self.owns, name)))

    def find(self, view: View, memory: Memory) -> Iterator[Candidate]:
        """All that lie there by their names, whole or not, in any order."""
        for place in view.places(self.places):
            for name, entry in view.entries(place).items():
                if entry.is_folder is self.is_file or not (match := self.named.fullmatch(name)):
                    continue
                path = f"{place}/{name}" if place else name
                step = step_in(match)
                if step is not None and step > MAX_STEP:
                    continue
                part = Part(path, path if self.is_file else "")
                marker = path if self.is_file else f"{path}/{self.marker}" if self.marker else ""
                yield Candidate(path, step, (part,), marker)

    def missing(self, view: View, candidate: Candidate, memory: Memory) -> str:
        """Why it is not whole: WHOLE (""), a reason, or NotYet(reason) where it is once nothing in it changes for a
        while. Asked in each look until it was taken; reads no more than names and small files."""
        if self.is_file:
            return WHOLE if self.end_tells and view.is_whole_zip(candidate.path) else NotYet("nothing marks its end")
        path = candidate.path
        if self.marker and not view.has(f"{path}/{self.marker}"):
            return f"{self.marker} is not there yet"
        names = view.names(path)
        for unfinished in self.unfinished:
            if any(fnmatchcase(name, unfinished) for name in names):
                return f"{unfinished} is still there"
        for need in self.needs:
            if not any(fnmatchcase(name, choice) for choice in need.split("|") for name in names):
                return f"{need} is not there yet"
        unsure = WHOLE if self.marker else NotYet("nothing marks its end")
        for ranks in self.ranks:
            ask_older(view, path, self.marker, ranks, memory)
            why = missing_rank(names, ranks, memory)
            if why and not isinstance(why, NotYet):
                return why
            unsure = unsure or why
        return unsure

    def learn(self, view: View, candidate: Candidate, memory: Memory) -> None:
        """It turned out to be whole: later ones have as many ranks."""
        for ranks in self.ranks:
            remember_ranks(view.names(candidate.path), ranks, memory)

    def step(self, view: View, candidate: Candidate) -> int | None:
        """Of one that is about to be taken, where it takes more than its name to tell."""
        return candidate.step

    def check(self, root: int, tree: Tree, deep: bool) -> None:
        """Torn where the files of what was taken (open as `root`, `tree` lists them) cannot be what they claim to be.
        Every known format has been checked by then; this is for what a kind knows besides. `deep`: read all."""

    def plan(self, saved: Saved) -> Plan:
        """What the trainer is handed to go on from a published checkpoint of this kind."""
        return self.resume


def step_in(match: re.Match[str]) -> int | None:
    text = match.groupdict().get("step")
    return int(text) if text is not None and len(text) <= 20 else None


def missing_rank(names: list[str], ranks: Ranks, memory: Memory) -> str:
    """Which rank's file is not there. WHOLE where all are, as names or earlier checkpoints tell; NotYet where more may
    follow. Where there is none at all no rank is missing: `needs` says what must be there."""
    found, told = _found(names, ranks)
    if not found:
        return WHOLE
    expected = told or memory.numbers.get(ranks.pattern.pattern, 0)
    lacking = next(
        (rank for rank in range(ranks.first, ranks.first + max(len(found), expected)) if rank not in found), None
    )
    if lacking is not None:
        return f"the file of rank {lacking} is not there yet"
    return WHOLE if expected else NotYet("further ranks may still write theirs")


def remember_ranks(names: list[str], ranks: Ranks, memory: Memory) -> None:
    """A checkpoint turned out to be whole: later ones have as many."""
    found, _ = _found(names, ranks)
    if found:
        memory.most(ranks.pattern.pattern, len(found))


def older(view: View, path: str, marker: str) -> Iterator[str]:
    """Folders beside `path` in which `marker` is older than there: their trainer went on after it had saved them."""
    place, _, own = path.rpartition("/")
    mine = view.stat(f"{path}/{marker}")
    for name, entry in view.entries(place).items() if marker and mine is not None else ():
        beside = f"{place}/{name}" if place else name
        if entry.is_folder and name != own and view.has(f"{beside}/{marker}"):
            theirs = view.stat(f"{beside}/{marker}")
            if theirs is not None and mine is not None and theirs.st_mtime_ns < mine.st_mtime_ns:
                yield beside


def ask_older(view: View, path: str, marker: str, ranks: Ranks, memory: Memory) -> None:
    """How many ranks there are the older ones tell, to who has seen none of them being saved."""
    if ranks.pattern.pattern not in memory.numbers:
        for beside in older(view, path, marker):
            remember_ranks(view.names(beside), ranks, memory)


def _found(names: list[str], ranks: Ranks) -> tuple[set[int], int]:
    """Ranks that have a file, and how many there are as names tell (0: they do not)."""
    matches = [match for name in names if (match := ranks.pattern.fullmatch(name))]
    worlds = (int((match.groupdict().get("world") or "0")[:6]) for match in matches)
    return {int(match["rank"][:6]) for match in matches}, max(worlds, default=0)
