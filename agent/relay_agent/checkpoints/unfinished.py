"""For volumes where renaming a folder is no single step (object stores mounted as one): the manifest alone commits.

A folder with a manifest that verifies is a checkpoint; one without a manifest that bears the mark `UNFINISHED`, or
holds nothing, is on its way in or out and nobody's. The mark is made before anything else is and goes last, so that no
crash leaves a folder that could be taken for a damaged checkpoint, or for a whole one.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path

from relay_agent.checkpoints.disk import Disk, folder, names, open_file, remove_tree, sync_folder, write_new
from relay_agent.checkpoints.tree import Check, Tree, Unsettled

UNFINISHED = ".relay-unfinished"
_CHUNK = 1 << 20


def is_unfinished(path: Path, commit: str, empty: bool) -> bool:
    """Whether the folder is on its way in or out: it has no file `commit`. `empty`: so is one that holds nothing."""
    try:
        with folder(path) as fd:
            found = names(fd)
    except OSError:
        return False
    return commit not in found and (UNFINISHED in found or (empty and not found))


def copy_in(disk: Disk, root: int, tree: Tree, hashes: dict[str, str], target: Path, check: Check) -> None:
    """What lies in the folder open as `root`, byte for byte, into the new folder `target`; flushed. Unsettled where a
    file is not what was hashed."""
    write_new(disk, target / UNFINISHED, b"")
    for name in tree.folders:
        disk.mkdir(target / name)
    for found in tree.files:
        digest = hashlib.sha256()
        with os.fdopen(open_file(root, found.path), "rb", buffering=0) as reader:
            fd = disk.create(target / found.path)
            try:
                while chunk := reader.read(_CHUNK):
                    check()
                    digest.update(chunk)
                    disk.write(fd, chunk)
                disk.fsync(fd)
            finally:
                os.close(fd)
        if digest.hexdigest() != hashes[found.path]:
            raise Unsettled(f"{found.path!a} changed while it was copied")
    for name in (*reversed(tree.folders), "."):
        sync_folder(disk, target / name)


def finish(disk: Disk, target: Path) -> None:
    """The manifest is in: nothing is unfinished any more."""
    with suppress(FileNotFoundError):
        disk.unlink(target / UNFINISHED)
    sync_folder(disk, target)


def mark(disk: Disk, path: Path) -> None:
    """No reader takes what lies there for whole from now on, however much of it is left."""
    with suppress(FileExistsError):
        write_new(disk, path / UNFINISHED, b"")
    sync_folder(disk, path)


def remove(disk: Disk, path: Path, commits: tuple[str, ...]) -> None:
    """Delete it in place: first what makes it whole (top-level names), last the mark."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        disk.unlink(path)
        return
    mark(disk, path)
    for name in commits:
        with suppress(FileNotFoundError):
            disk.unlink(path / name)
    sync_folder(disk, path)
    with folder(path) as fd:
        for name in names(fd):
            if name != UNFINISHED:
                remove_tree(disk, name, dir_fd=fd)
    disk.unlink(path / UNFINISHED)
    disk.rmdir(path)
