"""Where what must not be used is kept: `ckpt/.bad` and `ckpt/.orphans` for a person to look at, `ckpt/.trash` on its
way out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from relay_agent.checkpoints import unfinished
from relay_agent.checkpoints.disk import SYSTEM, Disk, make_folder, names, remove_tree, sync_folder
from relay_agent.checkpoints.manifest import MANIFEST, NAME
from relay_agent.checkpoints.staging import OURS
from relay_agent.checkpoints.strays import only_halves
from relay_agent.volume.volume import RunFolder

KEPT_ASIDE = 2
"""Staged folders that are kept in each of `.bad` and `.orphans`: those of the latest attempts, of these the furthest.
Every preempted pod can leave one behind, and one can be as big as any checkpoint."""

_FOLDER = re.compile(r"e([0-9]{8,16})(?:\.([0-9]{1,9}))?\Z")
"""A whole staging folder: what lay in it under other names."""
_STAGED = re.compile(r"e([0-9]{8,16})\.step_([0-9]{1,15})(?:\.([0-9]{1,9}))?\Z")


def set_aside(run: RunFolder, path: Path, disk: Disk = SYSTEM) -> Path:
    """Move `path` into `ckpt/.bad` under a name that is free there, and say where it lies now."""
    return _move(run, disk, path, run.bad)


def orphan(run: RunFolder, path: Path, disk: Disk = SYSTEM) -> Path:
    """Move what an attempt saved beside the line into `ckpt/.orphans`, and say where it lies now."""
    return _move(run, disk, path, run.orphans)


def staged_aside(run: RunFolder, epoch: int) -> list[tuple[int, Path]]:
    """What was staged in that epoch and lies in `ckpt/.bad`, with its step, in no order."""
    with suppress(FileNotFoundError):
        found = [match for match in map(_STAGED.match, names(run.bad)) if match is not None]
        return [(int(match[2]), run.bad / match[0]) for match in found if int(match[1]) == epoch]
    return []


def trim(run: RunFolder, still_mine: Callable[[], bool], disk: Disk = SYSTEM) -> None:
    """Delete what was staged and lies aside beyond `KEPT_ASIDE`. Published ones found damaged stay: they are missed. So
    does what was saved under other names than Relay takes, unless by these it was not saved to the end."""
    for place, kind in ((run.bad, _STAGED), (run.orphans, _STAGED), (run.bad, _FOLDER)):
        found: dict[tuple[int, ...], str] = {}
        with suppress(FileNotFoundError):
            for match in filter(None, map(kind.match, names(place))):
                if kind is _STAGED or only_halves(place / match[0]):
                    found[tuple(int(number or 0) for number in match.groups())] = match[0]
        for _, name in sorted(found.items(), reverse=True)[KEPT_ASIDE:]:
            if not still_mine():
                return
            throw_away(run, place / name, disk)


def throw_away(run: RunFolder, path: Path, disk: Disk = SYSTEM) -> None:
    """Out of sight in one step, then deleted. A crash in between leaves work for `empty_trash`, never half of it."""
    if not run.atomic:
        unfinished.remove(disk, path, OURS)
        return
    thrown = _move(run, disk, path, run.trash)
    with suppress(OSError):  # whatever hinders now (space, a mount that hangs on) is tried again next time
        remove_tree(disk, thrown)


def empty_trash(run: RunFolder, disk: Disk = SYSTEM) -> None:
    """Delete what earlier, interrupted deletions left, and publishes that were never committed."""
    with suppress(FileNotFoundError):
        for name in names(run.trash):
            with suppress(OSError):
                remove_tree(disk, run.trash / name)
    with suppress(FileNotFoundError):
        for name in filter(NAME.match, names(run.ckpt)):
            if unfinished.is_unfinished(run.ckpt / name, MANIFEST, empty=not run.atomic):
                with suppress(OSError):
                    unfinished.remove(disk, run.ckpt / name, OURS)


def _move(run: RunFolder, disk: Disk, path: Path, folder: Path) -> Path:
    make_folder(disk, folder)
    # Staged folders of different epochs bear the same names: say which one it was.
    owner = "" if path.parent in (folder.parent, run.staging(0).parent) else f"{path.parent.name}."
    target = folder / (owner + path.name)
    number = 2
    while os.path.lexists(target):
        target = folder / f"{owner}{path.name}.{number}"
        number += 1
    marked = not run.atomic and path.is_dir() and not path.is_symlink()
    if marked:  # half of it may stay behind
        unfinished.mark(disk, path)
    disk.rename(path, target)
    if marked:
        unfinished.finish(disk, target)
    sync_folder(disk, folder)
    sync_folder(disk, path.parent)
    return target


def was_taken_away(staged: Path) -> bool:
    """By the trainer, alone or with what it lay in: what that lies in is still there."""
    if os.path.lexists(staged) or staged.parent.is_symlink():
        return False
    return staged.parent.is_dir() or (not os.path.lexists(staged.parent) and staged.parent.parent.is_dir())
