"""Taking: a checkpoint in the trainer's own folder becomes one in our staging folder, from where it is published.

By the cheapest safe way: a reflink; a hard link where its trainer never writes to a file again; else a copy. What was
taken is looked at once more before it counts, for trainers delete and rewrite on their own schedule. It comes under a
hidden name, is flushed, marked and renamed: a crash in between leaves nothing but what `clear` takes away. Nothing in
the trainer's folder is created, written to or deleted.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from relay_agent.checkpoints import unfinished
from relay_agent.checkpoints.adapters.base import Adapter, Candidate
from relay_agent.checkpoints.bring import LINK, Bringer, beneath, unless_gone
from relay_agent.checkpoints.disk import (
    SYSTEM,
    Disk,
    folder,
    make_folder,
    names,
    read_file,
    remove_tree,
    sync_folder,
    write_new,
)
from relay_agent.checkpoints.formats import check_files
from relay_agent.checkpoints.manifest import MANIFEST, SEALING
from relay_agent.checkpoints.staging import MARKER, OURS, STEP, Mark, leave_mark
from relay_agent.checkpoints.tree import MAX_FILES, Cancelled, Check, Found, TooMany, Torn, Unsettled, never, walk
from relay_agent.checkpoints.unfinished import UNFINISHED

TAKING = ".taking"


class Occupied(Unsettled):
    """There is another of its step still, which is to be published first."""


@dataclass(frozen=True)
class Source:
    """What belongs to a candidate as it lay there. Two that are equal: nobody wrote to it in between."""

    files: tuple[tuple[str, Found], ...]  # by its path in the checkpoint; `Found.path` is that in the trainer's folder
    folders: tuple[str, ...]  # in the checkpoint, parents first

    @property
    def bytes(self) -> int:
        return sum(found.size for _, found in self.files)

    @property
    def saved_at(self) -> int:
        """When its last byte came, in nanoseconds on the trainer's clock."""
        return max((found.mtime_ns for _, found in self.files), default=0)


@dataclass(frozen=True)
class Taken:
    path: Path  # in the staging folder
    step: int
    bytes: int
    ways: tuple[str, ...]  # how its bytes came: "reflink", "hard link", "copy"


def gather(root: int, candidate: Candidate) -> Source:
    """All that belongs to it, below the trainer's folder open as `root`. Torn where something else than files and
    folders does; Unsettled where something is not there (any more)."""
    files: list[tuple[str, Found]] = []
    folders: list[str] = []
    for part in candidate.parts:
        above = part.target.split("/")[:-1]
        folders += ["/".join(above[: depth + 1]) for depth in range(len(above))]
        with unless_gone(), beneath(root, part.source) as (parent, name):
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                file = Found(part.source, found.st_size, found.st_mtime_ns, found.st_ino, 1)
                files.append((part.target or name, file))
                continue
            with folder(name, dir_fd=parent) as fd:
                tree = walk(fd, ignore=() if part.target else (MARKER,), links=False, most=MAX_FILES)
        inside = f"{part.target}/" if part.target else ""
        folders += [part.target] if part.target else []
        folders += [inside + path for path in tree.folders]
        files += [(inside + file.path, replace(file, path=f"{part.source}/{file.path}")) for file in tree.files]
        if len(files) + len(folders) + len(candidate.texts) > MAX_FILES:
            raise TooMany(MAX_FILES)
    return Source(tuple(sorted(files)), tuple(dict.fromkeys(folders)))


def clear(staging: Path, disk: Disk = SYSTEM) -> None:
    """Away with what an interrupted taking left; OSError where the volume refuses."""
    with suppress(FileNotFoundError):
        remove_tree(disk, staging / TAKING)
    for name in filter(STEP.match, names(staging)):
        if _is_half_taken(staging / name):
            unfinished.remove(disk, staging / name, OURS)


def _is_half_taken(path: Path) -> bool:
    """And not on its way elsewhere, which leaves such a mark as well, but an empty one."""
    try:
        with folder(path) as fd:
            return read_file(fd, UNFINISHED, len(TAKING)) == TAKING.encode() or names(fd) == [UNFINISHED]
    except OSError:
        return False


def take(
    root: int,
    adapter: Adapter,
    candidate: Candidate,
    step: int,
    staging: Path,
    *,
    atomic: bool = True,
    deep: bool = False,
    heard: bool = False,
    check: Check = never,
    disk: Disk = SYSTEM,
) -> Taken:
    """Bring it into `staging` as `step_<step>`, marked as whole. `root`: the trainer's folder, open. `atomic`: renaming
    a folder is one step there. `deep`: every byte that has a sum is read. `heard`: it does not tell that step.
    Blocking.

    Torn: it is none. Unsettled: it changed or vanished, or there is one of this step still; look again later. Cancelled
    by `check`. OSError: the volume refused, ENOSPC before the first byte where it has no room. Each leaves nothing.
    """
    source = gather(root, candidate)
    _refuse_names(source, candidate)
    check_files(root, [found for _, found in source.files], False, check)
    if not os.path.lexists(staging):  # the trainer removed it, and saves elsewhere
        make_folder(disk, staging)
    clear(staging, disk)
    target = staging / f"step_{step}"
    if os.path.lexists(target) and (atomic or not unfinished.is_unfinished(target, MANIFEST, empty=True)):
        raise Occupied(f"{target.name} still waits to be published")
    place = staging / TAKING if atomic else target
    try:
        make_folder(disk, place)
        if not atomic:  # there it lies in full view, until it is whole
            write_new(disk, place / UNFINISHED, TAKING.encode())
        bringer = Bringer(root, place, source.bytes, adapter.in_place or candidate.in_place, check, disk)
        for path in source.folders:
            make_folder(disk, place / path)
        for path, found in source.files:
            bringer.bring(path, found)
        for path, text in candidate.texts:
            write_new(disk, place / path, text.encode())
        if gather(root, candidate) != source:
            raise Unsettled("it changed while it was taken")
        _check_taken(place, source, candidate, adapter, deep, check)
        for path in (*reversed(source.folders), "."):
            sync_folder(disk, place / path)
        leave_mark(place, msgspec.json.encode(Mark(adapter.name, LINK in bringer.ways, heard)), disk)
        sync_folder(disk, place)
        if atomic:
            disk.rename(place, target)
        else:
            disk.unlink(place / UNFINISHED)
        sync_folder(disk, staging)
    except (Torn, Cancelled, OSError):
        with suppress(OSError):
            clear(staging, disk)
        raise
    return Taken(target, step, source.bytes, tuple(bringer.ways))


def _refuse_names(source: Source, candidate: Candidate) -> None:
    if not any(found.size for _, found in source.files):
        raise Unsettled("it holds no data yet")
    ours = {MARKER, MANIFEST, SEALING, UNFINISHED, *(path for path, _ in candidate.texts)}
    for path in (*(path for path, _ in source.files), *source.folders):
        if path in ours:
            raise Torn(f"the trainer saved a {path} of its own; that name is taken")


def _check_taken(place: Path, source: Source, candidate: Candidate, adapter: Adapter, deep: bool, check: Check) -> None:
    """It is all there, byte for byte as far as sizes tell, and its files are what they claim to be."""
    ours = {path for path, _ in candidate.texts}
    with folder(place) as fd:
        tree = walk(fd, ignore=(UNFINISHED,), links=False)
        came = [(file.path, file.size) for file in tree.files if file.path not in ours]
        if came != [(path, found.size) for path, found in source.files]:
            raise Unsettled("it changed while it was taken")
        check_files(fd, [file for file in tree.files if file.path not in ours], deep, check)
        adapter.check(fd, tree, deep)
