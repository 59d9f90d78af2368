"""Putting a checkpoint of this run that was brought back from elsewhere into `ckpt`, as it is.

It keeps its name, its epoch, its place in the order and its manifest to the byte, so that it is what the commander and
the Hub know by that manifest's hash, and the claim that names it as its base puts it into the line. No claim is needed
to do so: of one and the same thing there is nothing that two holders could do differently.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from relay_agent.checkpoints import unfinished
from relay_agent.checkpoints.aside import throw_away
from relay_agent.checkpoints.disk import SYSTEM, Disk, folder, read_file, sync_folder, write_new
from relay_agent.checkpoints.manifest import MANIFEST, MAX_BYTES, SEALING, Sealed, Torn, read, sizes_match, verify
from relay_agent.checkpoints.publish import Fenced
from relay_agent.checkpoints.tree import Cancelled, Check, Tree, Unsettled, never, walk
from relay_agent.volume.volume import RunFolder


class Taken(Torn):
    """Another checkpoint has its name here."""


def place(
    run: RunFolder, received: Path, still_mine: Callable[[], bool], *, check: Check = never, disk: Disk = SYSTEM
) -> Sealed:
    """Every byte of what lies in `received` is read, then it is put into `ckpt`. Blocking.

    Torn: it is no whole checkpoint of this run. Taken: something else has its name. Fenced: `still_mine` said no.
    Cancelled by `check`. OSError: the volume refused. Each leaves the line as it was.
    """
    manifest = verify(received, run.run_id, check)
    sealed = Sealed(manifest, read(received, run.run_id).sha256, run.ckpt / manifest.name)
    if _is_there(run, sealed, check):
        throw_away(run, received, disk)
        return sealed
    with folder(received) as root:
        tree = walk(root, ignore=(MANIFEST,))
        for name in (*reversed(tree.folders), "."):
            with folder(name, dir_fd=root) as below:
                disk.fsync(below)
        if not still_mine():
            raise Fenced
        if run.atomic:
            _move(disk, received, sealed)
        else:
            _copy(disk, run, root, tree, sealed, still_mine, check)
    sync_folder(disk, run.ckpt)
    if read(sealed.path, run.run_id).sha256 != sealed.sha256 or not sizes_match(sealed):
        raise OSError(errno.EIO, "what was brought back reads back differently", str(sealed.path))
    if not run.atomic:
        with suppress(OSError):
            throw_away(run, received, disk)
    return sealed


def _is_there(run: RunFolder, sealed: Sealed, check: Check) -> bool:
    """Whole, under its name; Taken where something else is."""
    if not os.path.lexists(sealed.path) or unfinished.is_unfinished(sealed.path, MANIFEST, empty=not run.atomic):
        return False
    try:
        same = read(sealed.path, run.run_id).sha256 == sealed.sha256
        if same:
            verify(sealed.path, run.run_id, check)
    except Torn as torn:
        raise Taken(f"what has its name here cannot be moved: {torn.reason}") from None
    if not same:
        raise Taken(f"another checkpoint has its name on this volume: {sealed.path}")
    return True


def _move(disk: Disk, received: Path, sealed: Sealed) -> None:
    try:
        disk.rename(received, sealed.path)
    except OSError:
        if not os.path.lexists(sealed.path) or os.path.lexists(received):
            raise  # else a file server did it and lost the answer
    sync_folder(disk, received.parent)


def _copy(
    disk: Disk, run: RunFolder, root: int, tree: Tree, sealed: Sealed, still_mine: Callable[[], bool], check: Check
) -> None:
    """Where folders are not renamed in one step: the manifest comes last, and alone makes it one."""
    if os.path.lexists(sealed.path):
        unfinished.remove(disk, sealed.path, (MANIFEST, SEALING))
    disk.mkdir(sealed.path)
    try:
        unfinished.copy_in(disk, root, tree, {f.path: f.sha256 for f in sealed.manifest.files}, sealed.path, check)
        if not still_mine():
            raise Fenced
        with folder(sealed.path) as copied:
            write_new(disk, SEALING, read_file(root, MANIFEST, MAX_BYTES), dir_fd=copied)
            disk.rename(SEALING, MANIFEST, dir_fd=copied)
            disk.fsync(copied)
    except (Fenced, Cancelled, Unsettled, OSError):
        with suppress(OSError):
            throw_away(run, sealed.path, disk)
        raise
    unfinished.finish(disk, sealed.path)
