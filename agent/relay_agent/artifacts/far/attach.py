"""Small files of a run, sent as they are: what its trainer wrote, so nothing of it is believed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path

from relay_agent.artifacts.far.commander import Commander
from relay_agent.artifacts.far.send import Whole, upload
from relay_agent.artifacts.jobs import Attach, Attached
from relay_agent.checkpoints.disk import folder, open_file
from relay_agent.sending.child import Tell
from relay_agent.sending.trouble import Trouble
from relaytui.wire.artifacts import ArtifactKind, BeginUpload
from relaytui.wire.ids import is_id

MAX_DEPTH = 8
MAX_SEEN = 20_000
"""Entries that are looked at, of however many there are."""
MAX_WORDS = 20
ENDS = ("lease_lost", "not_holder", "no_store", "not_proven", "quota", "too_many")
"""What is the matter with all of them."""
_STRANGE = re.compile(r"[^A-Za-z0-9._-]+")


def attach(job: Attach, tell: Tell) -> Attached:
    store, kept, trouble = job.store, list[str](), list[str]()
    tell.phase("uploading")
    found, more = matching(Path(job.root), job.patterns, job.count)
    if more:
        trouble.append(f"more than {job.count} files match: the others are not sent")
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
                kept.append(path)
            except OSError as error:
                trouble.append(f"{path!a}: {error.strerror or error}")
            except ValueError as error:
                trouble.append(f"{path!a}: {error}")
            except Trouble as error:
                if error.kind != "permanent" or error.code in ENDS:
                    raise
                trouble.append(f"{path!a}: {error.words}")
    return Attached(kept, trouble[:MAX_WORDS])


def matching(root: Path, patterns: Sequence[str], count: int) -> tuple[list[str], bool]:
    """Plain files below whose path or last part matches one, sorted; whether there were more than `count`."""
    try:
        with folder(root) as fd:
            found = sorted(path for path in _walk(fd, "", [MAX_SEEN]) if _wanted(path, patterns))
    except OSError:
        return [], False
    return found[:count], len(found) > count


def _wanted(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, one) or fnmatchcase(path.rpartition("/")[2], one) for one in patterns)


def _walk(fd: int, prefix: str, left: list[int]) -> Iterator[str]:
    """Through no link, into nothing that cannot be read."""
    try:
        with os.scandir(fd) as entries:
            here = sorted((entry.name, entry.stat(follow_symlinks=False).st_mode) for entry in entries)
    except OSError:
        return
    for name, mode in here:
        left[0] -= 1
        if left[0] < 0:
            return
        if stat.S_ISREG(mode):
            yield prefix + name
        elif stat.S_ISDIR(mode) and prefix.count("/") < MAX_DEPTH:
            try:
                with folder(name, dir_fd=fd) as below:
                    yield from _walk(below, f"{prefix}{name}/", left)
            except OSError:
                continue


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
