"""A folder into an archive, as a stream: only plain files, read once, and the same ones from first to last."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from relaytui.archive.errors import Damaged, SourceChanged, Unpackable
from relaytui.archive.frame import at_most, compressed
from relaytui.archive.names import MAX_DEPTH, MAX_FILES, Names
from relaytui.archive.tar import BLOCK, END, header, padding

_CHUNK = 1 << 20
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


def nothing() -> None:
    """Nobody stops it."""


@dataclass(frozen=True)
class Member:
    """A file as it was found. It may get further names (hard links) meanwhile, and nothing else."""

    path: str
    size: int
    mtime_ns: int
    inode: int


class Pack:
    """The files of `folder` (all below it, or those of `names`, paths relative to it) as they are now.

    Files alone: folders come back by the files in them, empty ones do not. Modes, owners and times are not kept.
    """

    def __init__(
        self,
        folder: Path,
        names: Iterable[str] | None = None,
        *,
        known: Mapping[str, tuple[int, str]] | None = None,
        max_bytes: int | None = None,
    ) -> None:
        """Looks at every file, and reads none. Unpackable, SourceChanged. `known`: in place of `names`, what each file
        has to be, size and SHA-256; Damaged where a size is another one. `max_bytes`: of content, headers included."""
        self.folder = folder
        self._known = known or {}
        names = known if known is not None else names
        self.read_bytes = 0
        """Bytes of its files that the pass under way has read."""
        with _opened(folder) as root:
            paths = sorted(names) if names is not None else sorted(_walk(root, ""))
            taken = Names()
            try:
                for path in paths:
                    taken.add(path)
            except ValueError as error:
                raise Unpackable(f"{folder.name!a} cannot be archived: {error}") from None
            self.members = tuple(_found(root, path) for path in paths)
        for member in self.members:
            size, _ = self._known.get(member.path, (member.size, ""))
            if member.size != size:
                raise Damaged(f"{member.path!a} has {member.size:,} bytes, not {size:,}")
        self.content_bytes = len(END) + sum(
            len(header(member.path, member.size)) + member.size + -member.size % BLOCK for member in self.members
        )
        """Of the archive before it is compressed."""
        self.file_bytes = sum(member.size for member in self.members)
        self.most_bytes = at_most(self.content_bytes)
        """Of the archive, whatever is in it."""
        if max_bytes is not None and self.content_bytes > max_bytes:
            raise Unpackable(f"{folder} cannot be archived: it has {self.content_bytes:,} bytes, over {max_bytes:,}")

    def chunks(self, workers: int = 1, check: Callable[[], None] = nothing) -> Iterator[bytes]:
        """The archive, in pieces of no particular size; again and again the same. SourceChanged at the first file
        that is not as it was when this was made, Damaged at the first whose bytes are not the known ones: before the
        archive's end, so that nobody has the whole of it. `check` is called before every MiB, to raise what ends it."""
        return compressed(self._content(check), self.content_bytes, workers)

    def _content(self, check: Callable[[], None]) -> Iterator[bytes]:
        self.read_bytes = 0
        with _opened(self.folder) as root:
            for member in self.members:
                yield header(member.path, member.size)
                digest = sha256() if member.path in self._known else None
                for chunk in _bytes(root, member):
                    check()
                    self.read_bytes += len(chunk)
                    if digest is not None:
                        digest.update(chunk)  # while the workers compress what came before
                    yield chunk
                if digest is not None and digest.hexdigest() != self._known[member.path][1]:
                    raise Damaged(f"{member.path!a} is not what was saved: its hash differs")
                yield padding(member.size)
        yield END


class _opened:  # noqa: N801 - used as a function
    """A folder's descriptor."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fd = os.open(path, _FOLDER)
        except OSError as error:
            raise _gone(str(path), error) from None

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _gone(what: str, error: OSError) -> SourceChanged:
    return SourceChanged(f"{what} could not be read while it was archived: {error.strerror or error}")


def _walk(fd: int, prefix: str) -> Iterator[str]:
    """Paths of all plain files below. Unpackable at anything else than those and folders."""
    if prefix.count("/") > MAX_DEPTH:
        raise Unpackable(f"{prefix[:200]!a} cannot be archived: it lies deeper than {MAX_DEPTH} folders")
    try:
        with os.scandir(fd) as entries:
            found = sorted((entry.name, entry.stat(follow_symlinks=False).st_mode) for entry in entries)
    except OSError as error:
        raise _gone(repr(prefix), error) from None
    if len(found) > MAX_FILES:
        raise Unpackable(f"{prefix[:200]!a} cannot be archived: more than {MAX_FILES:,} files")
    for name, mode in found:
        if stat.S_ISDIR(mode):
            try:
                below = os.open(name, _FOLDER, dir_fd=fd)
            except OSError as error:
                raise _gone(ascii(prefix + name), error) from None
            try:
                yield from _walk(below, f"{prefix}{name}/")
            finally:
                os.close(below)
        elif stat.S_ISREG(mode):
            yield prefix + name
        else:
            raise Unpackable(f"{prefix + name!a} cannot be archived: it is no plain file")


def _open(root: int, path: str) -> int:
    """A descriptor of a plain file below `root`, reached over no link."""
    *folders, name = path.split("/")
    fd = os.dup(root)
    try:
        for part in folders:
            below = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
        return os.open(name, _FILE, dir_fd=fd)
    finally:
        os.close(fd)


def _found(root: int, path: str) -> Member:
    try:
        fd = _open(root, path)
    except OSError as error:
        raise _gone(ascii(path), error) from None
    try:
        info = os.fstat(fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(info.st_mode):
        raise Unpackable(f"{path!a} cannot be archived: it is no plain file")
    return Member(path, info.st_size, info.st_mtime_ns, info.st_ino)


def _bytes(root: int, member: Member) -> Iterator[bytes]:
    try:
        with os.fdopen(_open(root, member.path), "rb", buffering=0) as file:
            left = member.size
            while chunk := file.read(_CHUNK):
                left -= len(chunk)
                if left < 0:
                    break
                yield chunk
            info = os.fstat(file.fileno())
    except OSError as error:
        raise _gone(ascii(member.path), error) from None
    if left or Member(member.path, info.st_size, info.st_mtime_ns, info.st_ino) != member:
        raise SourceChanged(f"{member.path!a} changed while it was archived")
