"""Published checkpoints whose files are their trainer's, too: hard links, as good as copies until one writes to them.

Their trainers write each file once. But one that begins again within an attempt (a batch size that did not fit, a
launcher that restarts its ranks, two trainings that save to one folder) saves under the names that it had used, and
most open their files in place. So they are looked at: one that has changed is out of the line at once, and the others,
which the trainer has not come to yet, get bytes of their own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from relay_agent.checkpoints.aside import set_aside
from relay_agent.checkpoints.disk import SYSTEM, Disk, folder, open_file, sync_folder
from relay_agent.checkpoints.line import published
from relay_agent.checkpoints.manifest import MANIFEST, FileEntry, Sealed, read
from relay_agent.checkpoints.tree import Check, Torn, never
from relay_agent.volume.volume import RunFolder

OWN = ".own"
"""In the staging folder: what becomes a file of a published one."""
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Rewritten:
    """A published checkpoint that its trainer wrote to again. `aside`: where it lies now; None: what was published is
    all there, with bytes of its own."""

    name: str
    aside: Path | None


class Shared:
    """Of one run, as an attempt sees it. Blocking."""

    def __init__(self, run: RunFolder, epoch: int, check: Check = never, disk: Disk = SYSTEM) -> None:
        self._run = run
        self._own = run.staging(epoch) / OWN
        self._check = check
        self._disk = disk
        self._files: dict[str, dict[FileEntry, int]] = {}  # by checkpoint: what is shared, and the time it should have

    def begin(self) -> None:
        """What is published already: another attempt may save to the same folder. OSError where the volume refuses."""
        for sealed in published(self._run)[0]:
            self._add(sealed, os.lstat(sealed.path / MANIFEST).st_mtime_ns)

    def add(self, path: Path) -> None:
        """One that was published now."""
        with suppress(Torn):
            self._add(read(path, self._run.run_id), None)

    def _add(self, sealed: Sealed, sealed_at: int | None) -> None:
        """`sealed_at`: what was written later may be another thing by now."""
        shared: dict[FileEntry, int] = {}
        for file in sealed.manifest.files:
            with suppress(OSError):  # one that lacks something is found out when it is to be used
                info = os.lstat(sealed.path / file.path)
                if info.st_nlink > 1:
                    doubtful = sealed_at is not None and info.st_mtime_ns > sealed_at
                    shared[file] = -1 if doubtful and not self._holds(sealed.path, file) else info.st_mtime_ns
        if shared:
            self._files[sealed.name] = shared

    def _holds(self, path: Path, file: FileEntry) -> bool:
        """Whether it is what was published, whatever its time says: that of another clock, for one."""
        digest = hashlib.sha256()
        with folder(path) as root, os.fdopen(open_file(root, file.path), "rb", buffering=0) as reader:
            while chunk := reader.read(_CHUNK):
                self._check()
                digest.update(chunk)
        return digest.hexdigest() == file.sha256

    @property
    def any(self) -> bool:
        return bool(self._files)

    def written(self) -> list[str]:
        """Names of those that were written to since they were sealed."""
        return [name for name in list(self._files) if self._is_written(name)]

    def _is_written(self, name: str) -> bool:
        left: dict[FileEntry, int] = {}
        written = False
        place = os.fspath(self._run.ckpt / name)
        for file, sealed_at in self._files[name].items():
            try:
                info = os.lstat(f"{place}/{file.path}")
            except FileNotFoundError:  # pruned, or set aside
                continue
            if info.st_nlink > 1:
                left[file] = sealed_at
            written = written or (info.st_size, info.st_mtime_ns) != (file.size, sealed_at)
        self._files[name] = left
        if not left and not written:
            del self._files[name]
        return written

    def part(self, first: list[str]) -> Iterator[Rewritten]:
        """Gives all of them bytes of their own, those that nobody wrote to before the ones of `first`; says what became
        of these. OSError: the volume refused, and what is left stays as it is."""
        try:
            for name in sorted(self._files, key=lambda each: each in first):
                aside: Path | None = None
                try:
                    self._give(name)
                except Torn:
                    aside = set_aside(self._run, self._run.ckpt / name, self._disk)
                del self._files[name]
                if aside or name in first:
                    yield Rewritten(name, aside)
        finally:
            with suppress(OSError):
                self._disk.unlink(self._own)

    def _give(self, name: str) -> None:
        """Torn where a file is not what was published."""
        path = self._run.ckpt / name
        for file in self._files[name]:
            self._check()
            with suppress(FileNotFoundError):
                self._disk.unlink(self._own)
            try:
                with folder(path) as root:
                    source = open_file(root, file.path)
            except FileNotFoundError:
                if not path.exists():  # pruned meanwhile
                    return
                raise Torn(f"{file.path!a} is missing") from None
            with os.fdopen(source, "rb", buffering=0) as reader:
                mtime_ns = os.fstat(source).st_mtime_ns
                target = self._disk.create(self._own)
                try:
                    digest = hashlib.sha256()
                    while chunk := reader.read(_CHUNK):
                        self._check()
                        digest.update(chunk)
                        self._disk.write(target, chunk)
                    self._disk.set_time(target, mtime_ns)
                    self._disk.fsync(target)
                finally:
                    os.close(target)
            if digest.hexdigest() != file.sha256:
                raise Torn(f"{file.path!a} is not what was published")
            self._disk.rename(self._own, path / file.path)
            sync_folder(self._disk, (path / file.path).parent)
