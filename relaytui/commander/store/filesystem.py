"""Which file system a folder is on, and whether SQLite's write-ahead log is safe there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

Probe = Callable[[Path], str]

_NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs",
    "vmhgfs", "wekafs",
})  # fmt: skip
_LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.ntfs-3g", "fuse.ext2fs"})
_OCTAL = re.compile(r"\\([0-7]{3})")


def is_unsafe(kind: str) -> bool:
    """Whether locks and shared memory of this type of file system reach all who may open a file on it.

    A FUSE file system may be anything (sshfs, s3fs, rclone, a folder of another machine), so few are trusted.
    """
    if kind == "fuse" or kind.startswith("fuse."):
        return kind not in _LOCAL_FUSE
    return kind in _NETWORK


def file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Type of the file system `path` is on, or will be; "" where this system does not tell."""
    try:
        table = mounts.read_text(encoding="utf-8", errors="surrogateescape")
        target = str(path.resolve())
    except (OSError, RuntimeError):
        return ""
    best, kind = -1, ""
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), fields[1])
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        # Of two on one point the later one covers the earlier.
        if inside and len(point) >= best:
            best, kind = len(point), fields[2]
    return kind
