"""`artifacts/stored.json` on the volume: which checkpoints the commander has.

It counts under the lease that it was noted under: by the next one the commander may have been restored from a backup,
or be another one, and is asked once more. Whoever writes it can only make Relay ask more than once for what is there
already, or not send a checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from relay_agent.checkpoints.disk import SYSTEM, make_folder
from relay_agent.volume import own_files
from relaytui.wire.ids import Count, Epoch, Id

MAX = 1 << 20
NEWEST = 50


class Entry(Struct, frozen=True, omit_defaults=True):
    name: Id
    step: Count
    manifest: str  # SHA-256
    artifact: int  # its number at the commander
    at: float  # when it was stored, seconds since 1970
    final: bool = False
    epoch: Epoch = 0  # of the lease that the commander said it under


class Noted:
    """Of one run, for one attempt at it. Blocking."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self._epoch = epoch
        self._path = folder / "stored.json"
        self._entries: dict[str, Entry] = {}

    def load(self) -> None:
        data = own_files.read(self._path, MAX)
        try:
            found = msgspec.json.decode(data or b"[]", type=list[Entry])
        except (msgspec.DecodeError, RecursionError):
            return
        self._entries = {entry.manifest: entry for entry in found}

    def of(self, manifest: str) -> Entry | None:
        """None where this attempt has to ask."""
        entry = self._entries.get(manifest)
        return entry if entry is not None and entry.epoch == self._epoch else None

    @property
    def last_step(self) -> int | None:
        """Of those that are stored, the one that came last."""
        return max(((entry.at, entry.step) for entry in self._entries.values()), default=(0.0, None))[1]

    def stored(self, entry: Entry) -> None:
        """OSError where the volume refuses; it is known all the same."""
        self._entries.pop(entry.manifest, None)
        self._entries[entry.manifest] = entry
        while len(self._entries) > NEWEST:
            del self._entries[next(iter(self._entries))]
        make_folder(SYSTEM, self._path.parent)
        own_files.replace(self._path, msgspec.json.encode(list(self._entries.values())) + b"\n")
