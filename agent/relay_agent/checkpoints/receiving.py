"""A checkpoint on its way in from elsewhere: a private folder on the volume that its files come into, piece by piece.

`ckpt/.incoming/<first 16 of its manifest's SHA-256>/` holds `parts/<number>`, what has come of a file so far, and the
checkpoint's own folder, `step_00000500/`, with its manifest and the files that are whole. It outlives the pod that
began it: the next one goes on where it ended. Nothing of it is a checkpoint before all of it was read again and put
into its place (`placing`, or `publish` for a fork).

What comes is a stranger's: only what the manifest lists gets in, under the names it lists, and no byte more than it
says. A file whose hash differs is thrown away.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from relay_agent.checkpoints.aside import throw_away
from relay_agent.checkpoints.disk import SYSTEM, Disk, folder, make_folder, names, read_file, sync_folder, write_new
from relay_agent.checkpoints.manifest import MANIFEST, MAX_BYTES, OURS, FileEntry, Manifest, Torn, decode
from relay_agent.checkpoints.tree import MAX_DEPTH, MOST, Check, Unreadable, never
from relay_agent.volume.volume import RunFolder
from relaytui.wire.text import counted

_CHUNK = 1 << 20
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class TooMuch(Torn):
    """More than there is room for, of space or of names."""


def place_for(run: RunFolder, sha256: str) -> Path:
    """Of one checkpoint, by the hash of its manifest."""
    return run.incoming / sha256[:16]


def forget(run: RunFolder, disk: Disk = SYSTEM, spare: str = "") -> None:
    """Throw away what came in and is not wanted any more, but that of the manifest with the hash `spare`."""
    with suppress(OSError):
        for name in names(run.incoming):
            if not spare or name != place_for(run, spare).name:
                with suppress(OSError):
                    throw_away(run, run.incoming / name, disk)


def refuse_foreign(manifest: Manifest) -> None:
    """Torn where its files could not all lie in one folder of ours, whatever they hold."""
    if len(manifest.files) > MOST:
        raise Torn(f"its manifest lists {counted(len(manifest.files), 'file')}, more than {MOST:,}")
    folders: set[str] = set()
    for file in manifest.files:
        parts = file.path.split("/")
        if len(parts) > MAX_DEPTH:
            raise Torn(f"{file.path[:200]!a} lies deeper than {MAX_DEPTH} folders")
        if parts[0] in OURS:
            raise Torn(f"its manifest lists {file.path[:200]!a}, a name of ours")
        try:
            if any(len(part.encode()) > 255 for part in parts):
                raise Torn(f"{file.path[:200]!a} has a name longer than 255 bytes")
        except UnicodeEncodeError:
            raise Torn(f"the name {file.path[:200]!a} is not UTF-8") from None
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    for file in manifest.files:
        if file.path in folders:
            raise Torn(f"its manifest has {file.path[:200]!a} both as a file and as a folder")


class Receiving:
    """Of the checkpoint whose manifest's bytes are `data`. Torn where they are none. Blocking. For one process."""

    def __init__(self, place: Path, data: bytes, disk: Disk = SYSTEM) -> None:
        self.manifest = decode(data)
        refuse_foreign(self.manifest)
        self._data = data
        self._disk = disk
        self._place = place
        self._parts = place / "parts"
        self._number = {file.path: str(number) for number, file in enumerate(self.manifest.files)}
        self.folder = place / self.manifest.name

    def open(self) -> list[FileEntry]:
        """Make the folders; the files that are still to come. TooMuch where the volume has no room for them. OSError
        where it refuses."""
        for path in (self._place.parent, self._place, self._parts, self.folder):
            make_folder(self._disk, path)
        made: set[str] = set()
        for file in self.manifest.files:
            parts = file.path.split("/")
            for depth in range(1, len(parts)):
                below = "/".join(parts[:depth])
                if below not in made:
                    make_folder(self._disk, self.folder / below)
                    made.add(below)
        missing = [file for file in self.manifest.files if not self._is_there(file)]
        self._refuse_too_much(missing)
        with suppress(FileNotFoundError):
            self._disk.unlink(self.folder / MANIFEST)
        return missing

    @property
    def total(self) -> int:
        """Bytes, of all of it."""
        return self.manifest.total_bytes

    def came(self, missing: list[FileEntry]) -> int:
        """Bytes that are here already, in files and parts."""
        return self.total - sum(file.size - min(file.size, self._part_size(file)) for file in missing)

    @contextmanager
    def file(self, entry: FileEntry, check: Check = never) -> Iterator[Coming]:
        """Take in a file. What has come of it stays, whatever ends it, unless it is wrong."""
        coming = Coming(self._parts / self._number[entry.path], entry, self._disk)
        try:
            coming.open(check)
            yield coming
        except Torn:
            coming.drop()
            raise
        finally:
            coming.close()

    def settle(self, entry: FileEntry) -> None:
        """All of it has come, as it should be: put it into its place."""
        self._disk.rename(self._parts / self._number[entry.path], self.folder / entry.path)

    def seal(self) -> Path:
        """All files have come: flush the folders, and put the manifest in as it came. The folder."""
        paths = {self.folder}
        for file in self.manifest.files:
            paths.update((self.folder / file.path).parents[: file.path.count("/") + 1])
        for path in sorted(paths, key=lambda path: -len(path.parts)):
            sync_folder(self._disk, path)
        write_new(self._disk, self.folder / MANIFEST, self._data)
        sync_folder(self._disk, self.folder)
        return self.folder

    def _is_there(self, file: FileEntry) -> bool:
        """With its size; its hash is looked at with all others' when everything has come. Whatever else has its name
        goes."""
        path = self.folder / file.path
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return False
        if stat.S_ISREG(found.st_mode) and found.st_size == file.size:
            return True
        self._disk.unlink(path)
        return False

    def _part_size(self, file: FileEntry) -> int:
        try:
            return os.lstat(self._parts / self._number[file.path]).st_size
        except OSError:
            return 0

    def _refuse_too_much(self, missing: list[FileEntry]) -> None:
        wanted = self.total - self.came(missing)
        room = os.statvfs(self._place)
        free = room.f_bavail * room.f_frsize
        if wanted > free:
            raise TooMuch(
                f"{counted(wanted, 'byte')} are still to come, and the volume has {counted(free, 'byte')} left"
            )
        if room.f_files and len(missing) > room.f_favail:
            files = counted(len(missing), "file")
            raise TooMuch(f"{files} are still to come, and the volume has room for {room.f_favail:,}")


class Coming:
    """One file, as far as it has come."""

    def __init__(self, path: Path, entry: FileEntry, disk: Disk) -> None:
        self._path = path
        self._entry = entry
        self._disk = disk
        self._fd = -1
        self._digest = hashlib.sha256()
        self.size = 0
        """Bytes that have come; what comes next begins there."""

    def open(self, check: Check = never) -> None:
        """What an earlier try left is read, so that its hash goes on; what is no part of it goes."""
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            pass
        else:
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_size <= self._entry.size:
                with suppress(OSError):  # some mounts let nobody write on
                    self._fd = os.open(self._path, _APPEND)
                    self._read(check)
                    return
                self.close()
                self._digest, self.size = hashlib.sha256(), 0
            self._disk.unlink(self._path)
        self._fd = self._disk.create(self._path)

    def _read(self, check: Check) -> None:
        with folder(self._path.parent) as parent:
            fd = os.open(self._path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        with os.fdopen(fd, "rb", buffering=0) as file:
            while chunk := file.read(_CHUNK):
                check()
                self._digest.update(chunk)
                self.size += len(chunk)

    def take(self, chunk: bytes) -> None:
        """Torn where it is more than there should be."""
        if self.size + len(chunk) > self._entry.size:
            raise Torn(
                f"{self._entry.path[:200]!a} is longer than the {counted(self._entry.size, 'byte')} of its manifest"
            )
        self._disk.write(self._fd, chunk)
        self._digest.update(chunk)
        self.size += len(chunk)

    def again(self) -> None:
        """From its first byte: whoever sends it does not go on in the middle."""
        self.close()
        self._disk.unlink(self._path)
        self._digest, self.size = hashlib.sha256(), 0
        self._fd = self._disk.create(self._path)

    def finish(self) -> None:
        """All has come: flushed, and what it should be; Torn where it is not."""
        if self.size != self._entry.size:
            raise Torn(f"{self._entry.path[:200]!a} ends after {counted(self.size, 'byte')}, not {self._entry.size:,}")
        if self._digest.hexdigest() != self._entry.sha256:
            raise Torn(f"{self._entry.path[:200]!a} is not what was saved: its hash differs")
        self._disk.fsync(self._fd)

    def drop(self) -> None:
        with suppress(OSError):
            self._disk.unlink(self._path)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def manifest_of(path: Path) -> bytes:
    """The bytes of the manifest in a published folder; Torn, Unreadable where there is none that can be read."""
    try:
        with folder(path) as root:
            return read_file(root, MANIFEST, MAX_BYTES)
    except FileNotFoundError:
        raise Torn("it has no manifest") from None
    except OSError as error:
        raise Unreadable(f"its manifest cannot be read: {error.strerror or error}") from None
