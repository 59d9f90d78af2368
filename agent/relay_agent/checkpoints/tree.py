"""What lies in a checkpoint's folder: every regular file with its size and times, and the hash of its bytes."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from relay_agent.checkpoints.disk import folder, open_file

MAX_FILES = 10_000
"""Files and folders in one checkpoint that is to be published. Each is flushed, and an agent remembers a name, a size
and a hash of it until that is done: this many take ten seconds or more, and 12 MB."""
MOST = 200_000
"""In one that is read."""
MAX_DEPTH = 32
_CHUNK = 1 << 20
_THREADS = max(2, min(8, os.cpu_count() or 2))


class Torn(Exception):  # noqa: N818 - it is the word for such a checkpoint
    """A folder that is not a whole checkpoint, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TooMany(Torn):
    """More lies in it than is ever published: no time mends that."""

    def __init__(self, most: int) -> None:
        super().__init__(f"it has more than {most:,} files and folders")


class Unsettled(Torn):
    """It changed while it was read: somebody still writes to it. Look again later."""


class Unreadable(Torn):
    """The volume failed to give its bytes: it may be whole."""


class Cancelled(Exception):  # noqa: N818 - it says what happened
    """Who asked for it does not want to wait any more. Nothing has changed."""


Check = Callable[[], None]
"""Asked before every chunk that is read; raises Cancelled."""


def never() -> None:
    """Nobody cancels."""


_SHAPE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG))


def torn_by(error: OSError) -> Torn:
    """What a failed call says about a checkpoint: not the shape it should have, or only out of reach."""
    words = error.strerror or str(error)
    if error.errno is None or error.errno in _SHAPE:
        return Torn(words)
    return Unreadable(f"it cannot be read: {words}")


@dataclass(frozen=True, order=True, slots=True)
class Found:
    """One regular file, `path` relative to the folder. Equal twice: nobody wrote to it in between."""

    path: str
    size: int
    mtime_ns: int
    inode: int
    links: int


@dataclass(frozen=True)
class Tree:
    files: tuple[Found, ...]  # sorted by path
    folders: tuple[str, ...]  # relative, parents before what lies in them; without the root itself
    links: bool = True  # whether second names of files count

    @property
    def shape(self) -> bytes:
        """The same of two that are equal."""
        digest = hashlib.blake2b(digest_size=16)
        for found in self.files:
            digest.update(f"{found.path}\0{found.size} {found.mtime_ns} {found.inode} {found.links}\0".encode())
        digest.update("\0\0".join(self.folders).encode())
        return digest.digest()


def walk(root: int, ignore: Iterable[str] = (), *, links: bool = True, most: int = MOST) -> Tree:
    """All below the folder open as `root`, but top-level names in `ignore`. Torn at anything else than those, TooMany
    beyond `most`. `links`: False where second names may come and go."""
    files: list[Found] = []
    folders: list[str] = []
    _walk(root, "", frozenset(ignore), files, folders, most, links)
    return Tree(tuple(sorted(files)), tuple(folders), links)


def _walk(
    fd: int, prefix: str, ignore: frozenset[str], files: list[Found], folders: list[str], most: int, links: bool
) -> None:
    if prefix.count("/") >= MAX_DEPTH:
        raise Torn(f"folders deeper than {MAX_DEPTH}")
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.name in ignore:
                continue
            path = prefix + entry.name
            try:
                path.encode()
            except UnicodeEncodeError:
                raise Torn(f"the name {path!a} is not UTF-8") from None
            if len(files) + len(folders) >= most:
                raise TooMany(most)
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                folders.append(path)
                with folder(entry.name, dir_fd=fd) as below:
                    _walk(below, path + "/", frozenset(), files, folders, most, links)
            elif stat.S_ISREG(info.st_mode):
                count = info.st_nlink if links else 1
                files.append(Found(path, info.st_size, info.st_mtime_ns, info.st_ino, count))
            else:
                raise Torn(f"{path!a} is {_kind(info.st_mode)}, not a file")


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"


def hash_files(
    root: int, files: Iterable[Found], sync: Callable[[int], None] | None = None, check: Check = never
) -> dict[str, str]:
    """SHA-256 (hex) of each file by path, several at once; `sync` gets each descriptor after its last byte.

    Unsettled where a file has not the size it was found with.
    """

    def one(found: Found) -> tuple[str, str]:
        digest = hashlib.sha256()
        size = 0
        buffer = memoryview(bytearray(min(_CHUNK, max(1, found.size))))
        with os.fdopen(open_file(root, found.path), "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                check()
                digest.update(buffer[:count])
                size += count
            if sync is not None:
                sync(file.fileno())
        if size != found.size:
            raise Unsettled(f"{found.path!a} changed while it was read")
        return found.path, digest.hexdigest()

    # Largest first, so that no thread is left alone with the biggest file at the end. Each takes the next one when it
    # is done: thousands that wait in a queue would take more memory than their hashes.
    ordered = sorted(files, key=lambda found: -found.size)
    left = iter(ordered)
    hashes: dict[str, str] = {}
    failed = threading.Event()

    def some() -> None:
        try:
            while not failed.is_set() and (found := next(left, None)) is not None:
                path, digest = one(found)
                hashes[path] = digest
        except BaseException:
            failed.set()
            raise

    if len(ordered) == 1 or (sync is None and sum(found.size for found in ordered) <= _CHUNK):
        some()  # sooner than threads are there
        return hashes
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="hash") as pool:
        for done in [pool.submit(some) for _ in ordered[:_THREADS]]:
            done.result()
    return hashes
