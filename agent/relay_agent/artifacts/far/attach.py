"""Small files of a run, sent as they are: what its trainer wrote, so nothing of it is believed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from fnmatch import fnmatchcase
from hashlib import sha256
from itertools import takewhile
from pathlib import Path

from relay_agent.artifacts.far.commander import Commander
from relay_agent.artifacts.far.send import Whole, upload
from relay_agent.artifacts.jobs import Attach, Attached
from relay_agent.checkpoints.disk import folder, open_file
from relay_agent.sending.child import Tell
from relay_agent.sending.trouble import Trouble
from relaytui.wire.artifacts import ArtifactKind, BeginUpload
from relaytui.wire.ids import is_id
from relaytui.wire.text import sayable

MAX_DEPTH = 8
"""Folders below where a pattern is looked for."""
MAX_SEEN = 20_000
"""Entries that are looked at from there, of however many there are."""
MAX_WORDS = 20
ENDS = ("lease_lost", "not_holder", "no_store", "not_proven", "quota", "too_many")
"""What is the matter with all of them."""
_MAGIC = re.compile(r"[*?[]")
_STRANGE = re.compile(r"[^A-Za-z0-9._-]+")


def attach(job: Attach, tell: Tell) -> Attached:
    store, kept, trouble = job.store, list[str](), list[str]()
    tell.phase("uploading")
    found, missed = matching(Path(job.root), job.patterns, job.count)
    trouble += missed
    with Commander(store) as commander:
        for number, path in enumerate(found):
            tell.progress(number, len(found))
            try:
                data = read_small(Path(job.root), path, job.most)
                about = BeginUpload(
                    store.run_id, ArtifactKind.FILE, name_for(path), sha256(data).hexdigest(), len(data), store.epoch,
                    store.token,
                )  # fmt: skip
                upload(commander, about, Whole(data), tell)
                kept.append(sayable(path))
            except OSError as error:
                trouble.append(f"{path!a}: {error.strerror or error}")
            except ValueError as error:
                trouble.append(f"{path!a}: {error}")
            except Trouble as error:
                if error.kind != "permanent" or error.code in ENDS:
                    raise
                trouble.append(f"{path!a}: {error.words}")
    return Attached(kept, trouble[:MAX_WORDS])


def matching(root: Path, patterns: Sequence[str], count: int) -> tuple[list[str], list[str]]:
    """Plain files below whose path or last part matches one, sorted; and a line on each reason why others that do may
    be missing. A pattern that begins with folders is looked for in these, whatever lies beside them."""
    found, missed = set[str](), list[str]()
    for start in sorted({_beginning(pattern) for pattern in patterns}, reverse=True):
        walk = _Walk(start)
        with suppress(OSError), ExitStack() as opened:
            fd = opened.enter_context(folder(root))
            for part in start.split("/")[:-1]:
                fd = opened.enter_context(folder(part, dir_fd=fd))
            found.update(path for path in walk.files(fd, start) if _wanted(path, patterns))
        missed += walk.missed.values()
    if len(found) > count:
        missed.append(f"more than {count} files match: the others are not sent")
    return sorted(found)[:count], missed


def _beginning(pattern: str) -> str:
    """The folders that all lie in which it matches, with a slash behind each; empty: they may lie anywhere."""
    *parts, _ = pattern.split("/")
    plain = list(takewhile(lambda part: part not in ("", ".", "..") and not _MAGIC.search(part), parts))
    return "".join(f"{part}/" for part in plain)


def _wanted(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, one) or fnmatchcase(path.rpartition("/")[2], one) for one in patterns)


class _Walk:
    """Through no link; the files of a folder before those of the folders in it."""

    def __init__(self, start: str) -> None:
        self._deepest = start.count("/") + MAX_DEPTH
        self._left = MAX_SEEN
        self.missed: dict[str, str] = {}
        """Lines on what was not looked at, one for each limit."""

    def files(self, fd: int, prefix: str) -> Iterator[str]:
        try:
            with os.scandir(fd) as entries:
                here = sorted((entry.is_dir(follow_symlinks=False), entry.name) for entry in entries if _is_ours(entry))
        except OSError as error:
            self.missed[prefix] = f"{prefix or '.'!a} cannot be read: {error.strerror or error}"
            return
        for is_folder, name in here:
            if self._left <= 0:
                self._miss("/many", f"{MAX_SEEN:,} entries are looked at, which ended in {prefix or '.'!a}")
                return
            self._left -= 1
            if not is_folder:
                yield prefix + name
            elif prefix.count("/") >= self._deepest:
                self._miss("/deep", f"{MAX_DEPTH} folders deep is looked, not into {prefix + name + '/'!a}")
            else:
                try:
                    with folder(name, dir_fd=fd) as below:
                        yield from self.files(below, f"{prefix}{name}/")
                except OSError as error:
                    self.missed[prefix + name] = f"{prefix + name!a} cannot be read: {error.strerror or error}"

    def _miss(self, limit: str, words: str) -> None:
        todo = "begin a pattern of ARTIFACTS_FILES with the folder that they are in"
        self.missed.setdefault(limit, f"files may be missing: no more than {words}; {todo}")


def _is_ours(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)


def read_small(root: Path, path: str, most: int) -> bytes:
    """A file's bytes; ValueError where it is too large, or is written to. OSError."""
    with folder(root) as fd, os.fdopen(open_file(fd, path), "rb") as file:
        before = os.fstat(file.fileno())
        if not stat.S_ISREG(before.st_mode):
            raise ValueError("it is no plain file")
        data = file.read(most + 1)
        after = os.fstat(file.fileno())
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    if (after.st_size, after.st_mtime_ns) != (len(data), before.st_mtime_ns):
        raise ValueError("it changed while it was read")
    return data


def name_for(path: str) -> str:
    """What it is called there: its path, as an id can be, and no other path's."""
    plain = path.replace("/", "__")
    if "__" not in path and is_id(plain):
        return plain
    return _marked(_STRANGE.sub("_", plain), path)


def _marked(plain: str, path: str) -> str:
    mark = sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"{mark}-{plain[-110:].lstrip('._-')}"
