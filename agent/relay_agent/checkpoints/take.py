"""Taking: a checkpoint in the trainer's own folder becomes one in our staging folder, from where it is published.

By the cheapest safe way: a reflink; a hard link where its trainer never writes to a file again; else a copy. What was
taken is looked at once more before it counts, for trainers delete and rewrite on their own schedule. It comes under a
hidden name, is flushed, marked and renamed: a crash in between leaves nothing but what `clear` takes away. Nothing in
the trainer's folder is created, written to or deleted.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from relay_agent.checkpoints import unfinished
from relay_agent.checkpoints.adapters.base import Adapter, Candidate
from relay_agent.checkpoints.disk import (
    SYSTEM,
    Disk,
    folder,
    make_folder,
    names,
    open_file,
    remove_tree,
    sync_folder,
    write_new,
)
from relay_agent.checkpoints.formats import check_files
from relay_agent.checkpoints.manifest import MANIFEST, SEALING
from relay_agent.checkpoints.staging import MARKER, OURS, STEP, Mark
from relay_agent.checkpoints.tree import Cancelled, Check, Found, Torn, Unsettled, never, walk
from relay_agent.checkpoints.unfinished import UNFINISHED

TAKING = ".taking"
_CHUNK = 16 << 20
_UNABLE = frozenset(
    (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EMLINK,
     errno.EBADF, errno.ETXTBSY)
)  # fmt: skip
"""What a filesystem answers that has no such way."""
_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE))


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
        with _unless_gone(), _beneath(root, part.source) as (parent, name):
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                file = Found(part.source, found.st_size, found.st_mtime_ns, found.st_ino, 1)
                files.append((part.target or name, file))
                continue
            with folder(name, dir_fd=parent) as fd:
                tree = walk(fd, ignore=() if part.target else (MARKER,), links=False)
        inside = f"{part.target}/" if part.target else ""
        folders += [part.target] if part.target else []
        folders += [inside + path for path in tree.folders]
        files += [(inside + file.path, replace(file, path=f"{part.source}/{file.path}")) for file in tree.files]
    return Source(tuple(sorted(files)), tuple(dict.fromkeys(folders)))


def clear(staging: Path, disk: Disk = SYSTEM) -> None:
    """Away with what an interrupted taking left; OSError where the volume refuses."""
    with suppress(FileNotFoundError):
        remove_tree(disk, staging / TAKING)
    for name in filter(STEP.match, names(staging)):
        if unfinished.is_unfinished(staging / name, MANIFEST, empty=False):
            unfinished.remove(disk, staging / name, OURS)


def take(
    root: int,
    adapter: Adapter,
    candidate: Candidate,
    step: int,
    staging: Path,
    *,
    atomic: bool = True,
    deep: bool = False,
    check: Check = never,
    disk: Disk = SYSTEM,
) -> Taken:
    """Bring it into `staging` as `step_<step>`, marked as whole. `root`: the trainer's folder, open. `atomic`: renaming
    a folder is one step there. `deep`: every byte that has a sum is read. Blocking.

    Torn: it is none. Unsettled: it changed or vanished, or there is one of this step still; look again later. Cancelled
    by `check`. OSError: the volume refused, ENOSPC before the first byte where it has no room. Each leaves nothing.
    """
    source = gather(root, candidate)
    _refuse_names(source, candidate)
    check_files(root, [found for _, found in source.files], False, check)
    clear(staging, disk)
    target = staging / f"step_{step}"
    if os.path.lexists(target) and (atomic or not unfinished.is_unfinished(target, MANIFEST, empty=True)):
        raise Unsettled(f"{target.name} still waits to be published")
    place = staging / TAKING if atomic else target
    try:
        make_folder(disk, place)
        if not atomic:  # there it lies in full view, until it is whole
            write_new(disk, place / UNFINISHED, b"")
        bringer = _Bringer(root, place, source.bytes, adapter.in_place, check, disk)
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
        _mark(disk, place, Mark(adapter.name, "hard link" in bringer.ways))
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


def _mark(disk: Disk, place: Path, mark: Mark) -> None:
    """Without a time: it says nothing of its trainer, nor of the order of saving."""
    fd = disk.create(place / MARKER)
    try:
        disk.write(fd, msgspec.json.encode(mark))
        disk.set_time(fd, 0)
        disk.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(disk, place)


@dataclass
class _Bringer:
    """Brings file after file, by the first way that works."""

    root: int
    place: Path
    bytes: int
    in_place: bool
    check: Check
    disk: Disk
    ways: dict[str, None] = field(default_factory=dict)
    _unable: set[str] = field(default_factory=set)

    def bring(self, path: str, found: Found) -> None:
        self.check()
        target = self.place / path
        if self._may("reflink") and self._reflink(found, target):
            return
        if not self.in_place and self._may("hard link") and self._link(found, target):
            return
        if "copy" not in self.ways:
            self._refuse_too_large()
        self.ways["copy"] = None
        with self._open(found) as source, self._new(target, found) as new:
            self._copy(source, new)

    def _may(self, way: str) -> bool:
        return way not in self._unable

    def _reflink(self, found: Found, target: Path) -> bool:
        with self._open(found) as source:
            try:
                with self._new(target, found) as new:
                    self.disk.clone(source, new)
            except OSError as error:
                if error.errno not in _UNABLE:
                    raise
                self._unable.add("reflink")
                self.disk.unlink(target)
                return False
        self.ways["reflink"] = None
        return True

    def _link(self, found: Found, target: Path) -> bool:
        with _unless_gone(), _beneath(self.root, found.path) as (parent, name):
            try:
                with folder(target.parent) as into:
                    self.disk.link_at(name, parent, target.name, into)
            except OSError as error:
                if error.errno not in _UNABLE:
                    raise
                self._unable.add("hard link")
                return False
        with folder(target.parent) as into:
            fd = open_file(into, target.name)
            try:
                if os.fstat(fd).st_ino != found.inode:
                    raise Unsettled(f"{found.path!a} was replaced while it was taken")
                self.disk.fsync(fd)
            finally:
                os.close(fd)
        self.ways["hard link"] = None
        return True

    @contextmanager
    def _open(self, found: Found) -> Iterator[int]:
        with _unless_gone():
            fd = open_file(self.root, found.path)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def _new(self, target: Path, found: Found) -> Iterator[int]:
        """A new file, flushed when all is in it."""
        fd = self.disk.create(target)
        try:
            yield fd
            self.disk.set_time(fd, found.mtime_ns)
            self.disk.fsync(fd)
        finally:
            os.close(fd)

    def _copy(self, source: int, new: int) -> None:
        """By the kernel where it does that, else through memory."""
        copied = 0
        while self._may("copy by the kernel"):
            self.check()
            try:
                count = self.disk.copy(source, new, _CHUNK)
            except OSError as error:
                if copied or error.errno not in _UNABLE:
                    raise
                self._unable.add("copy by the kernel")
                break
            if not count:  # some mounts answer so of every file: what is missing is read
                break
            copied += count
        while chunk := os.read(source, 1 << 20):
            self.check()
            self.disk.write(new, chunk)

    def _refuse_too_large(self) -> None:
        room = os.statvfs(self.place)
        if self.bytes > room.f_bavail * room.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.place.parent))


@contextmanager
def _beneath(root: int, path: str) -> Iterator[tuple[int, str]]:
    """The folder that `path` lies in, open, and its name there; through no link."""
    *parents, name = path.split("/")
    fd = os.dup(root)
    try:
        for part in parents:
            with folder(part, dir_fd=fd) as below:
                os.dup2(below, fd, inheritable=False)
        yield fd, name
    finally:
        os.close(fd)


@contextmanager
def _unless_gone() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _GONE:
            raise Unsettled("it vanished while it was taken") from None
        raise
