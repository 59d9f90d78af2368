"""An archive back into a folder. It is hostile until its last byte has come: what is made of it lies in a private
folder meanwhile, which becomes the target only when all of it was right."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from relaytui.archive.errors import BadArchive
from relaytui.archive.frame import Frame
from relaytui.archive.names import MAX_FILES, Names
from relaytui.archive.tar import NoMember, padding, read_header
from relaytui.wire.errors import Exit, RelayError

T = TypeVar("T")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
_SMALL = 64 << 20
_MARGIN = 64 << 20
_PER_FILE = 4096
"""Bytes of headers and padding around a file, at most."""


@dataclass(frozen=True)
class Limits:
    """What an archive may be at most. What it declares is held against these before a file is made, and what it then
    is against what it declared."""

    size: int | None = None  # bytes of the archive itself, where that was told
    content: int = 4 << 40  # bytes of the tar inside
    files: int = MAX_FILES
    ratio: int | None = 2000
    """Content per byte of archive, asked of content above 64 MiB; None: whoever asks for it knows what it holds.
    Zeros are 30,000 times smaller in zstd; weights, even young ones, never come near a hundred."""

    @classmethod
    def of(cls, size: int, content: int, files: int) -> Limits:
        """Where it is known what it holds: bytes of the archive, of its files, and how many those are."""
        return cls(size, content + (files + 1) * _PER_FILE, min(files, MAX_FILES), None)


@dataclass(frozen=True)
class Extracted:
    files: tuple[str, ...]  # paths, sorted
    bytes: int  # of all files
    sha256: str  # of the archive
    size: int  # bytes of the archive


def extract(
    read: Callable[[int], bytes],
    target: Path,
    limits: Limits = Limits(),
    *,
    sha256: str | None = None,
    durable: bool = False,
    progress: Callable[[int], None] = lambda _: None,
    source: str = "the archive",
) -> Extracted:
    """Makes the folder `target`, which must not be there, of the archive that `read` gives (at most so many bytes a
    call, empty at the end). BadArchive where it is not whole, not ours, over `limits` or not of that `sha256`; then
    there is no `target`. `progress` hears of the bytes of archive read so far, and may raise to end it. RelayError
    `disk` names what failed: `target`, or `source`, which is what `read` reads; `one_name`: the disk of `target` takes
    two names in it for one.

    Files are 0644 and folders 0755, less the umask. `durable`: files are fsynced; folders are whoever's who keeps them.
    """
    if os.path.lexists(target):
        raise RelayError("exists", f"{target} is there already", "name a folder that is not", exit_code=Exit.USAGE)
    try:
        private = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}.", suffix=".part", dir=target.parent))
    except OSError as error:
        raise _disk(target, error) from None
    try:
        whole = private / "whole"
        whole.mkdir()
        done = _into(whole, Frame(_theirs(read), limits.size), limits, _theirs(progress), durable=durable)
        if sha256 is not None and done.sha256 != sha256:
            raise BadArchive(f"its sha256 is {done.sha256[:12]}…, not {sha256[:12]}…")
        whole.rename(target)
        return done
    except _Theirs as caught:
        if caught.by is read:
            raise _disk(source, caught.error, "read") from None
        raise caught.error from None
    except OSError as error:
        raise _disk(target, error) from None
    finally:
        shutil.rmtree(private, ignore_errors=True)


class _Theirs(Exception):  # noqa: N818 - it carries one
    """What a function of the caller's raised, which has nothing to do with the target."""

    def __init__(self, by: object, error: OSError) -> None:
        super().__init__()
        self.by = by
        self.error = error


def _theirs(function: Callable[[int], T]) -> Callable[[int], T]:
    def call(count: int) -> T:
        try:
            return function(count)
        except OSError as error:
            raise _Theirs(function, error) from None

    return call


def _into(private: Path, frame: Frame, limits: Limits, progress: Callable[[int], None], *, durable: bool) -> Extracted:
    if frame.content_size > limits.content:
        raise BadArchive(f"it says that it holds {frame.content_size:,} bytes, over {limits.content:,}")
    room = os.statvfs(private)
    if frame.content_size + _MARGIN > room.f_bavail * room.f_frsize:
        raise OSError(errno.ENOSPC, f"{frame.content_size:,} bytes do not fit on its disk")
    content = _Content(frame, limits, progress)
    names = Names()
    files: list[str] = []
    total = 0
    with _Folders(private) as folders:
        while (member := _next(content)) is not None:
            path, size = member
            try:
                names.add(path)
            except ValueError as error:
                raise BadArchive(str(error)) from None
            files.append(path)
            if len(files) > limits.files:
                raise BadArchive(f"it has more than {limits.files:,} files")
            if size > content.left:
                raise BadArchive(f"{path!a} would be longer than all of it")
            with folders.new(path) as file:
                for piece in content.pieces(size):
                    file.write(piece)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            if content.take(len(padding(size))) != padding(size):
                raise BadArchive(f"something stands behind {path!a}")
            total += size
    content.end()
    return Extracted(tuple(files), total, frame.sha256, frame.size)


def _next(content: _Content) -> tuple[str, int] | None:
    try:
        return read_header(content.take)
    except NoMember as error:
        raise BadArchive(str(error)) from None


class _Content:
    """The tar inside, as it comes out of its frame."""

    def __init__(self, frame: Frame, limits: Limits, progress: Callable[[int], None]) -> None:
        self._frame = frame
        self._limits = limits
        self._progress = progress
        self._source = frame.content()
        self._piece = memoryview(b"")
        self.left = frame.content_size
        """Bytes not taken yet."""

    def take(self, count: int) -> bytes:
        return b"".join(self.pieces(count))

    def pieces(self, count: int) -> Iterator[memoryview]:
        """Exactly `count` bytes."""
        while count:
            if not self._piece:
                self._refill()
            piece, self._piece = self._piece[:count], self._piece[count:]
            count -= len(piece)
            self.left -= len(piece)
            yield piece

    def end(self) -> None:
        """BadArchive unless all was taken, and the frame is whole."""
        if self._piece or next(self._source, None) is not None:
            raise BadArchive("something stands behind its last file")

    def _refill(self) -> None:
        piece = next(self._source, None)
        if piece is None:
            raise BadArchive("it ends in the middle of a file")
        self._progress(self._frame.size)
        self._piece = memoryview(piece)
        out = self._frame.content_size - self.left + len(piece)
        if self._limits.ratio is not None and out > _SMALL and out > self._limits.ratio * self._frame.size:
            raise BadArchive(f"it grows more than {self._limits.ratio:,} times, and nothing says how large it is to be")


class _Folders:
    """Makes files below a folder that is ours alone, and the folders on the way to them."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, _FOLDER)
        self._made: set[str] = set()
        self._path = ""
        self._fd = -1

    def __enter__(self) -> _Folders:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        os.close(self._root)

    def new(self, path: str) -> BinaryIO:
        """A file that was not there, to write. What is there and was not made is there by another name."""
        folder, _, name = path.rpartition("/")
        if self._fd < 0 or folder != self._path:
            self._enter(folder)
        try:
            return os.fdopen(os.open(name, _NEW, 0o666, dir_fd=self._fd), "wb")
        except FileExistsError:
            raise _one_name(path) from None

    def _enter(self, path: str) -> None:
        self._close()
        self._fd = os.dup(self._root)
        at = ""
        for part in path.split("/") if path else ():
            at += f"{part}/"
            if at not in self._made:
                try:
                    os.mkdir(part, dir_fd=self._fd)
                except FileExistsError:
                    raise _one_name(at) from None
                self._made.add(at)
            below = os.open(part, _FOLDER, dir_fd=self._fd)
            os.close(self._fd)
            self._fd = below
        self._path = path

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _one_name(path: str) -> RelayError:
    return RelayError(
        "one_name",
        f"the disk takes {path[:200]!a} for another name in the archive: by case, or by how an accent is written",
        "unpack it on a disk that tells them apart, as Linux has; nothing was written over",
        exit_code=Exit.STATE,
    )


def _disk(what: Path | str, error: OSError, done: str = "written") -> RelayError:
    words = f"{what} cannot be {done}: {error.strerror or error}"
    return RelayError("disk", words, "see its permissions and its disk", exit_code=Exit.STATE, status=507)
