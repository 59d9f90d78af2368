"""`hf/last_synced.json` on the volume: the last checkpoint that is on the Hub whole."""

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


def last_synced(hf: Path, repo: str) -> LastSynced | None:
    """None where nothing that reads says that anything of that repository is there. Blocking."""
    data = read(hf / "last_synced.json", MAX)
    if data is None:
        return None
    try:
        found = msgspec.json.decode(data, type=LastSynced)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if found.repo == repo else None


def note(hf: Path, synced: LastSynced) -> None:
    """OSError. Blocking."""
    replace(hf / "last_synced.json", msgspec.json.encode(synced) + b"\n")
