"""`artifacts/stored.json` on the volume: what checkpoints are as archives, and which of them the commander has.

Whoever writes it can only make Relay read a checkpoint once more, or not send it: the commander checks every byte
against the hash that it was told.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from relay_agent.artifacts.jobs import Archive
from relay_agent.checkpoints.disk import SYSTEM, make_folder
from relay_agent.volume import own_files
from relaytui.wire.ids import Count, Id

MAX = 1 << 20
NEWEST = 50
PACKING = 1
"""Of the archive's form: another one makes other hashes."""


class Entry(Struct, frozen=True, omit_defaults=True):
    name: Id
    step: Count
    manifest: str  # SHA-256
    sha256: str  # of the archive
    size: Count
    packing: int = PACKING
    artifact: int = 0  # its number at the commander; 0: it is not there
    final: bool = False
    at: float = 0.0  # when it was stored, seconds since 1970

    @property
    def archive(self) -> Archive:
        return Archive(self.sha256, self.size)


class Noted:
    """Of one run. Blocking."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "stored.json"
        self._entries: dict[str, Entry] = {}

    def load(self) -> None:
        data = own_files.read(self._path, MAX)
        try:
            found = msgspec.json.decode(data or b"[]", type=list[Entry])
        except (msgspec.DecodeError, RecursionError):
            return
        self._entries = {entry.manifest: entry for entry in found if entry.packing == PACKING}

    def of(self, manifest: str) -> Entry | None:
        return self._entries.get(manifest)

    def sealed(self, entry: Entry) -> None:
        self._keep(entry)

    def stored(self, manifest: str, artifact: int, at: float, *, final: bool) -> None:
        self._keep(replace(self._entries[manifest], artifact=artifact, at=at, final=final))

    def forget(self, manifest: str) -> None:
        """What it says of that one is wrong."""
        self._entries.pop(manifest, None)

    @property
    def last_step(self) -> int | None:
        """Of those that are stored, the one that came last."""
        return max(((e.at, e.step) for e in self._entries.values() if e.artifact), default=(0.0, None))[1]

    def _keep(self, entry: Entry) -> None:
        """OSError where the volume refuses; it is known all the same."""
        self._entries.pop(entry.manifest, None)
        self._entries[entry.manifest] = entry
        while len(self._entries) > NEWEST:
            del self._entries[next(iter(self._entries))]
        make_folder(SYSTEM, self._path.parent)
        own_files.replace(self._path, msgspec.json.encode(list(self._entries.values())) + b"\n")
