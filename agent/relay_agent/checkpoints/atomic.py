"""Whether renaming a folder is one step on a volume. Where it is not, the manifest alone makes a checkpoint one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from relay_agent.checkpoints.disk import SYSTEM, Disk, make_folder, names, remove_tree, write_new

OBJECT_STORES = frozenset(
    ("s3fs", "gcsfuse", "goofys", "geesefs", "rclone", "mountpoint-s3", "blobfuse", "blobfuse2", "ossfs", "cosfs")
)
"""Mounts that rename a folder object by object, as the kernel names them (after `fuse.`)."""
MOUNTS = Path("/proc/self/mountinfo")
_FILES = 8


def renames_in_one_step(
    place: Path, disk: Disk = SYSTEM, mounts: Path = MOUNTS, look: Callable[[Path], list[str]] = names
) -> bool:
    """By the kind of mount that `place` is on, and by trying: a folder is renamed there while somebody looks at it.
    OSError where not even a folder can be made."""
    if _kind_of(place, mounts).removeprefix("fuse.") in OBJECT_STORES:
        return False
    tried = place / f".probe.{os.getpid()}.{os.urandom(4).hex()}"
    old, new = tried / "old", tried / "new"
    make_folder(disk, tried)
    try:
        disk.mkdir(old)
        for number in range(_FILES):
            write_new(disk, old / str(number), b"1")
        return _try(disk, old, new, look)
    finally:
        remove_tree(disk, tried)


def _try(disk: Disk, old: Path, new: Path, look: Callable[[Path], list[str]]) -> bool:
    done, half = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.is_set() and not half.is_set():
            with suppress(OSError):
                if len(look(new)) < _FILES:
                    half.set()

    watcher = threading.Thread(target=watch, name="probe", daemon=True)
    watcher.start()
    try:
        disk.rename(old, new)
    except OSError:
        return False
    finally:
        done.set()
        watcher.join()
    return not half.is_set() and len(names(new)) == _FILES and not os.path.lexists(old)


def _kind_of(place: Path, mounts: Path) -> str:
    """The type of the mount that `place` lies on; empty where nobody tells."""
    kinds: list[tuple[int, str]] = []
    real = os.path.realpath(place)
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) > 4 and kind:
            point = fields[4].replace("\\040", " ").rstrip("/")
            if real == point or real.startswith(point + "/"):
                kinds.append((len(point), kind[0]))
    return max(kinds, key=lambda found: found[0], default=(0, ""))[1]
