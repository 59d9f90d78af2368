"""Handing a published checkpoint to its trainer in the form that it takes: RELAY_RESUME_FROM and RELAY_RESUME_ARGS.

Published ones are never changed. A trainer that wants other names finds them in `<run>/resume/e<epoch>/`, as links to
the published files or as copies; one that loads from the folder that it saves to finds copies there, put before it
starts.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from relay_agent.checkpoints import adapters
from relay_agent.checkpoints.adapters.base import Plan, Put, Saved
from relay_agent.checkpoints.bring import Bringer
from relay_agent.checkpoints.disk import SYSTEM, Disk, folder, make_folder, names, remove_tree, sync_folder, write_new
from relay_agent.checkpoints.manifest import OURS, Sealed, read
from relay_agent.checkpoints.tree import Check, Found, Torn, Unsettled, never, walk
from relay_agent.volume.volume import RunFolder


@dataclass(frozen=True)
class Handed:
    path: str = ""  # RELAY_RESUME_FROM; "" at a cold start
    args: str = ""  # RELAY_RESUME_ARGS
    there: tuple[str, ...] = ()  # what was to be put into the trainer's folder, where something else has its name


def hand_out(
    run: RunFolder, epoch: int, published: Path, output: Path, *, check: Check = never, disk: Disk = SYSTEM
) -> Handed:
    """What the trainer of `epoch` gets to go on from a published checkpoint. `output`: the folder that it saves to.
    Blocking: it may copy all of it. OSError where the volume refuses, or what is published is not there any more."""
    try:
        sealed = read(published, run.run_id)
    except Torn as torn:
        raise OSError(f"{published.name} cannot be handed out: {torn.reason}") from None
    saved = Saved(sealed.manifest.step, tuple(file.path for file in sealed.manifest.files))
    plan = adapters.for_resume(sealed.manifest.adapter).plan(saved)
    layout = resume_folder(run, epoch)
    _clear(run, epoch, disk)
    if plan.layout:
        _lay_out(sealed, plan, layout, check, disk)
    there = tuple(_seed(sealed, plan.seeds, output, check, disk))
    named = {"{ckpt}": str(published), "{layout}": str(layout), "{output}": str(output)}

    def fill(text: str) -> str:
        for name, value in named.items():
            text = text.replace(name, value)
        return text

    return Handed(fill(plan.path), shlex.join(map(fill, plan.args)), there)


def resume_folder(run: RunFolder, epoch: int) -> Path:
    """Where an attempt's trainer finds names of its own for what it resumes from."""
    return run.root / "resume" / f"e{epoch:08d}"


def _clear(run: RunFolder, epoch: int, disk: Disk) -> None:
    """Of this attempt and all before it: their trainers have loaded what they needed."""
    place = resume_folder(run, epoch).parent
    with suppress(FileNotFoundError):
        for name in names(place):
            if name <= resume_folder(run, epoch).name:
                with suppress(OSError):
                    remove_tree(disk, place / name)


def _lay_out(sealed: Sealed, plan: Plan, layout: Path, check: Check, disk: Disk) -> None:
    make_folder(disk, layout.parent)
    make_folder(disk, layout)
    for put in plan.layout:
        target = layout / put.target
        _make_parents(layout, target, disk)
        if put.text is not None:
            write_new(disk, target, put.text.encode())
            continue
        if not plan.copies:
            with suppress(OSError):  # no links on this volume
                disk.symlink(str(sealed.path / put.source if put.source else sealed.path), target)
                continue
        _copy(sealed, put.source, target, check, disk)


def _seed(sealed: Sealed, seeds: tuple[Put, ...], output: Path, check: Check, disk: Disk) -> Iterator[str]:
    """Puts them there, each whole or not at all, for the folder may outlast this pod; names those whose place is taken:
    nothing of the trainer's is ever replaced."""
    for put in seeds:
        target = output / put.target
        if os.path.lexists(target):
            yield put.target
            continue
        make_folder(disk, output)
        _make_parents(output, target, disk)
        between = target.with_name(f".{target.name}.relay")
        with suppress(FileNotFoundError):
            remove_tree(disk, between)
        if put.text is not None:
            write_new(disk, between, put.text.encode())
        else:
            _copy(sealed, put.source, between, check, disk)
        disk.rename(between, target)
        sync_folder(disk, target.parent)


def _make_parents(root: Path, target: Path, disk: Disk) -> None:
    for parent in reversed(target.relative_to(root).parents[:-1]):
        make_folder(disk, root / parent)


def _copy(sealed: Sealed, source: str, target: Path, check: Check, disk: Disk) -> None:
    """A file of the checkpoint, or a folder in it ("": all of it)."""
    with folder(sealed.path) as root:
        tree = walk(root, ignore=OURS, links=False)
        files = [found for found in tree.files if found.path == source]
        if files:
            _bring(root, target.parent, {target.name: files[0]}, check, disk)
            return
        prefix = f"{source}/" if source else ""
        make_folder(disk, target)
        for path in tree.folders:
            if path.startswith(prefix):
                make_folder(disk, target / path[len(prefix) :])
        inside = {found.path[len(prefix) :]: found for found in tree.files if found.path.startswith(prefix)}
        _bring(root, target, inside, check, disk)


def _bring(root: int, place: Path, files: dict[str, Found], check: Check, disk: Disk) -> None:
    bringer = Bringer(root, place, sum(found.size for found in files.values()), True, check, disk)
    for path, found in files.items():
        try:
            bringer.bring(path, found)
        except Unsettled as gone:
            raise OSError(str(gone)) from None
