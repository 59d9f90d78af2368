"""Publishing: a staged folder becomes an immutable checkpoint, in an order that survives a crash after any call.

Hash and flush every file, write the manifest last, flush folders, ask whether the lease is still ours, rename, flush
the parent, read back, then move the pointers that people look at.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec

from relay_agent.checkpoints import unfinished
from relay_agent.checkpoints.aside import empty_trash, set_aside, throw_away
from relay_agent.checkpoints.disk import (
    SYSTEM,
    Disk,
    flush_saved,
    folder,
    read_file,
    replace_file,
    sync_folder,
    write_new,
)
from relay_agent.checkpoints.formats import check_files
from relay_agent.checkpoints.line import Line, survey
from relay_agent.checkpoints.manifest import (
    MANIFEST,
    MAX_BYTES,
    MAX_TIME,
    SEALING,
    VERSION,
    FileEntry,
    Manifest,
    Origin,
    Sealed,
    Torn,
    decode,
    free_name,
    read,
    sizes_match,
    verify,
)
from relay_agent.checkpoints.staging import MARKER, OURS, STAGING, Staged
from relay_agent.checkpoints.tree import Cancelled, Check, Tree, Unsettled, hash_files, never, walk
from relay_agent.volume.volume import RunFolder, highest_claim


class Fenced(Exception):  # noqa: N818 - it says what happened
    """The lease is no longer ours: nothing was published."""


class Differs(Exception):  # noqa: N818 - it says what was found
    """Only what the newest of the line holds already was wanted: nothing was published."""


@dataclass(frozen=True)
class Published:
    name: str
    step: int
    bytes: int
    files: int
    manifest_sha256: str
    path: Path
    fresh: bool = True  # False: the newest one of the line holds the same already, what was staged is dropped

    @classmethod
    def of(cls, sealed: Sealed, fresh: bool = True) -> Published:
        told = sealed.manifest
        return cls(sealed.name, told.step, told.total_bytes, len(told.files), sealed.sha256, sealed.path, fresh)


def publish(
    run: RunFolder,
    staged: Staged,
    epoch: int,
    still_mine: Callable[[], bool],
    *,
    mode: str = "",
    trainer: str = "",
    world_size: int | None = None,
    saved_by: int | None = None,
    only_again: bool = False,
    healthy: bool = True,
    metrics: Mapping[str, float] = MappingProxyType({}),
    forked_from: Origin | None = None,
    point: Callable[[], bool] = lambda: True,
    wall: Callable[[], float] = time.time,
    check: Check = never,
    disk: Disk = SYSTEM,
) -> Published:
    """Publish a whole staged folder in that epoch's line. Blocking: it reads every byte. `saved_by`: the epoch whose
    trainer saved it, where that is another one. `only_again`: Differs unless the newest holds the same. `healthy`:
    False where its loss was bad then. `metrics`: finite ones that were known then. `point`: whether `latest` may
    be moved, which is everybody's.

    Torn: what is staged can be no checkpoint. Unsettled: not yet. Fenced: `still_mine` said no. Cancelled by
    `check`. OSError: the volume refused; where it `is_spoilt` what is staged must not be trusted again. Each leaves the
    line as it was.
    """
    with folder(staged.path) as root:
        _refuse_foreign_manifest(root)
        if run.atomic and not staged.linked:  # what is copied to its place has bytes of its own
            _unshare(disk, root, check)
        tree = walk(root, ignore=OURS, links=not staged.linked)
        hashes = hash_files(root, tree.files, partial(flush_saved, disk), check)
        files = [FileEntry(found.path, found.size, hashes[found.path]) for found in tree.files]
        if not any(file.size for file in files):
            raise Torn("it holds no data")
        _unchanged(root, tree)
        if staged.adapter == STAGING and forked_from is None:  # nobody has looked at it yet
            _check_forms(root, tree, check)
        if staged.settled and hash_files(root, tree.files, check=check) != hashes:  # a map of it leaves no other trace
            raise Unsettled("it changed while it was published: somebody still writes to it")

        line = survey(run, epoch)
        if not still_mine():
            raise Fenced
        sealed = _same_as_newest(run, line, staged.step, files, check)
        fresh = sealed is None
        if sealed is not None:
            throw_away(run, staged.path, disk)
        elif only_again:
            raise Differs
        else:
            manifest = Manifest(
                relay_manifest=VERSION,
                run_id=run.run_id,
                name="",
                step=staged.step,
                epoch=epoch,
                seq=line.next_seq,
                # What this epoch resumed from stays its base even where it is gone.
                base=line.line[0].name if line.line else line.claimed_base(epoch),
                mode=mode,
                trainer=trainer,
                adapter=staged.adapter,
                world_size=world_size,
                created_at=wall(),
                files=files,
                saved_by=saved_by,
                healthy=healthy,
                marks=staged.marks,
                metrics=dict(metrics),
                heard=staged.heard,
                saved_at=max(0, min(staged.saved_at, MAX_TIME)),
                forked_from=forked_from,
            )
            for name in reversed(tree.folders):
                with folder(name, dir_fd=root) as below:
                    disk.fsync(below)
            if run.atomic:
                sealed = _commit(disk, run, root, staged, tree, manifest, line.rested_on, still_mine)
            else:
                sealed = _commit_copy(disk, run, root, tree, manifest, line.rested_on, still_mine, check)
                with suppress(OSError):  # it is found to be the same when it is looked at again
                    throw_away(run, staged.path, disk)
    if point():
        _point(disk, run, sealed, epoch, wall())
    return Published.of(sealed, fresh)


def _commit(
    disk: Disk,
    run: RunFolder,
    root: int,
    staged: Staged,
    tree: Tree,
    nameless: Manifest,
    taken: Collection[str],
    still_mine: Callable[[], bool],
) -> Sealed:
    """Seal the folder open as `root` and rename it into the line, under the first name that is free. `taken`: names
    that something rests on, though what had them may be set aside."""
    while True:
        name = free_name(run.ckpt, nameless.step, nameless.epoch, taken)
        sealed = _seal(disk, root, run, msgspec.structs.replace(nameless, name=name))
        _unchanged(root, tree)
        if not still_mine():
            raise Fenced
        try:
            disk.rename(staged.path, sealed.path)
            break
        except OSError:
            # A file server may have done it and lost the answer.
            if _is_now(root, sealed.path):
                break
            # Or somebody took the name since we looked: a holder that was cut off may publish beside us.
            if not os.path.lexists(sealed.path):
                raise
    sync_folder(disk, run.ckpt)
    with suppress(FileNotFoundError):  # its trainer may clear it before each save
        sync_folder(disk, staged.path.parent)
    try:
        _read_back(root, sealed, tree)
    except (OSError, Torn):
        with suppress(OSError):
            set_aside(run, sealed.path, disk)
        raise
    return sealed


def _commit_copy(
    disk: Disk,
    run: RunFolder,
    root: int,
    tree: Tree,
    nameless: Manifest,
    taken: Collection[str],
    still_mine: Callable[[], bool],
    check: Check,
) -> Sealed:
    """Where folders are not renamed in one step: copy it to its place, and write the manifest there last."""
    empty_trash(run, disk)
    while True:
        target = run.ckpt / free_name(run.ckpt, nameless.step, nameless.epoch, taken)
        try:
            disk.mkdir(target)
            break
        except FileExistsError:  # somebody took the name since we looked
            continue
    try:
        unfinished.copy_in(disk, root, tree, {file.path: file.sha256 for file in nameless.files}, target, check)
        sync_folder(disk, run.ckpt)
        _unchanged(root, tree)
        if not still_mine():
            raise Fenced
        with folder(target) as copied:
            sealed = _seal(disk, copied, run, msgspec.structs.replace(nameless, name=target.name))
    except (Fenced, Cancelled, Torn, OSError):
        with suppress(OSError):
            throw_away(run, target, disk)
        raise
    unfinished.finish(disk, target)
    if read(target, run.run_id).sha256 != sealed.sha256 or not sizes_match(sealed):
        with suppress(OSError):
            set_aside(run, target, disk)
        raise OSError(errno.EIO, "a published checkpoint reads back differently", str(target))
    return sealed


def _refuse_foreign_manifest(root: int) -> None:
    """A trainer's own `manifest.json` must not be overwritten by ours; one of ours is left from an earlier try."""
    try:
        decode(read_file(root, MANIFEST, MAX_BYTES))
    except FileNotFoundError:
        pass
    except (Torn, OSError):
        raise Torn(f"the trainer saved a {MANIFEST} of its own; that name is taken for the manifest") from None


def _check_forms(root: int, tree: Tree, check: Check) -> None:
    try:
        check_files(root, tree.files, poll=check, any_form=True)
    except Torn:
        _unchanged(root, tree)  # else its trainer took it away meanwhile, or writes to it
        raise


def _unshare(disk: Disk, root: int, check: Check) -> None:
    """A file with a second name could be written through it after it was sealed: give the checkpoint its own bytes."""
    for found in walk(root, ignore=OURS).files:
        if found.links > 1:
            *parents, name = found.path.split("/")
            with folder("/".join(parents) or ".", dir_fd=root) as parent:
                _copy_in_place(disk, parent, name, check)


def _copy_in_place(disk: Disk, parent: int, name: str, check: Check) -> None:
    temporary = f".{name[:200]}.{os.getpid()}.tmp"
    with suppress(FileNotFoundError):
        disk.unlink(temporary, dir_fd=parent)
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    with os.fdopen(source, "rb", buffering=0) as reader:
        target = disk.create(temporary, dir_fd=parent)
        try:
            while chunk := reader.read(1 << 20):
                check()
                disk.write(target, chunk)
        except (OSError, Cancelled):
            with suppress(OSError):  # else it would be part of what is published later
                disk.unlink(temporary, dir_fd=parent)
            raise
        finally:
            os.close(target)
    disk.rename(temporary, name, dir_fd=parent)


def _unchanged(root: int, tree: Tree) -> None:
    if walk(root, ignore=OURS, links=tree.links) != tree:
        raise Unsettled("it changed while it was published: somebody still writes to it")


def _same_as_newest(run: RunFolder, line: Line, step: int, files: list[FileEntry], check: Check) -> Sealed | None:
    """The newest one of the line, if it is whole and holds the same. An older one would not do: after a rollback the
    newest must be what was saved last."""
    newest = line.line[0] if line.line else None
    if newest is None or newest.manifest.step != step or newest.manifest.files != files:
        return None
    try:
        verify(newest.path, run.run_id, check)
    except Torn:
        return None
    return newest


def _is_now(root: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(root), os.lstat(path))
    except OSError:
        return False


def _seal(disk: Disk, root: int, run: RunFolder, manifest: Manifest) -> Sealed:
    """Write the manifest, all of it or nothing, and take the marker away."""
    data = manifest.encode()
    with suppress(FileNotFoundError):
        disk.unlink(SEALING, dir_fd=root)
    write_new(disk, SEALING, data, dir_fd=root)
    disk.rename(SEALING, MANIFEST, dir_fd=root)
    with suppress(FileNotFoundError):
        disk.unlink(MARKER, dir_fd=root)
    disk.fsync(root)
    return Sealed(manifest, hashlib.sha256(data).hexdigest(), run.ckpt / manifest.name)


def _read_back(root: int, sealed: Sealed, tree: Tree) -> None:
    """The folder under its new name is the one that was hashed, with the manifest that was written."""
    with folder(sealed.path) as back:
        same = os.path.samestat(os.fstat(root), os.fstat(back))
        data = read_file(back, MANIFEST, MAX_BYTES)
        same = same and walk(back, ignore=(MANIFEST,), links=tree.links) == tree
        if not same or hashlib.sha256(data).hexdigest() != sealed.sha256:
            raise OSError(errno.EIO, "a published checkpoint reads back differently", str(sealed.path))


class _Latest(msgspec.Struct):
    name: str
    step: int
    epoch: int
    manifest: str  # its SHA-256
    at: float


def _point(disk: Disk, run: RunFolder, sealed: Sealed, epoch: int, at: float) -> None:
    """`latest` and `latest.json`, for people. Never moved by a holder that a later claim has replaced; never relied on,
    so that a volume without links does not fail a publish."""
    with suppress(OSError):
        if highest_claim(run) > epoch:
            return
        temporary = run.ckpt / f".latest.{os.getpid()}.tmp"
        with suppress(FileNotFoundError):
            disk.unlink(temporary)
        disk.symlink(sealed.name, temporary)
        disk.rename(temporary, run.ckpt / "latest")
    with suppress(OSError):
        manifest = sealed.manifest
        latest = _Latest(manifest.name, manifest.step, manifest.epoch, sealed.sha256, at)
        replace_file(disk, run.ckpt / "latest.json", msgspec.json.encode(latest) + b"\n")
