"""Whether something was deleted from a checkpoint after it was saved: its trainer makes room, or died while it did.

A folder has a new time when a name in it comes or goes. What came has a time of its own, so a folder that is newer than
all that lies in it has lost something; or its last file was renamed in after a long flush, which is why some slack is
given. Marks tell nothing here: filesystems list a folder, and so trainers delete it, in any order.
"""

from __future__ import annotations

import stat

from relay_agent.checkpoints.adapters.base import Candidate
from relay_agent.checkpoints.adapters.view import View

SLACK_NS = 10 * 10**9
"""Nobody deletes a checkpoint within ten seconds of saving it, but flushes take some."""
_MAX_DEPTH = 32


def shrunk(view: View, candidate: Candidate) -> str:
    """The folder that lost something, below the trainer's; "" where none did."""
    found = (_shrunk(view, part.source, 0) for part in candidate.parts)
    return next((path for path in found if path), "")


def _shrunk(view: View, path: str, depth: int) -> str:
    own = view.stat(path)
    if own is None or not stat.S_ISDIR(own.st_mode) or depth > _MAX_DEPTH:
        return ""
    entries = view.entries(path)
    newest = 0
    for name, entry in entries.items():
        inner = view.stat(f"{path}/{name}")
        newest = max(newest, inner.st_mtime_ns if inner else 0)
        if entry.is_folder and (below := _shrunk(view, f"{path}/{name}", depth + 1)):
            return below
    return path if not entries or own.st_mtime_ns > newest + SLACK_NS else ""
