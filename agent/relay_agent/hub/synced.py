"""`hf/last_synced.json` on the volume: the last checkpoint that was sent to the Hub whole.

What became of it there since, it does not know: it spares a look in between, and answers no order."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from relay_agent.volume.own_files import read, replace
from relaytui.wire.ids import Count

MAX = 64 << 10


class LastSynced(Struct, frozen=True):
    repo: str
    revision: str  # the commit
    step: Count
    at: float  # seconds since 1970
    tag: str = ""
    checkpoint: str = ""  # its name
    manifest: str = ""  # SHA-256 of its manifest
    choices: str = ""  # a digest of where it went, and which files of it


def last_synced(hf: Path, repo: str, choices: str) -> LastSynced | None:
    """None where nothing that reads says that anything is in that repository by those choices. Blocking."""
    data = read(hf / "last_synced.json", MAX)
    if data is None:
        return None
    try:
        found = msgspec.json.decode(data, type=LastSynced)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if (found.repo, found.choices) == (repo, choices) else None


def note(hf: Path, synced: LastSynced) -> None:
    """OSError. Blocking."""
    replace(hf / "last_synced.json", msgspec.json.encode(synced) + b"\n")
