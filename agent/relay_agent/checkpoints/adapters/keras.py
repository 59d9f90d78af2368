"""Keras: files of ModelCheckpoint, `ck-01.keras` or `ck-01.weights.h5`, and the folder of BackupAndRestore. That one
writes `latest.weights.h5` and then `training_metadata.json` in place, loads from where it saves, and is deleted at the
end.

The number in a file's name counts epochs, as the backup's own does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from relay_agent.checkpoints.adapters.base import DEPTHS, WHOLE, Adapter, Candidate, Memory, Part, Plan, Put, Saved
from relay_agent.checkpoints.adapters.kept import folder_with, join, newer, parent
from relay_agent.checkpoints.adapters.view import View

BACKUP = "latest.weights.h5"
METADATA = "training_metadata.json"
NUMBER = re.compile(r"(?:^|[-_=]|(?<![0-9])\.)(?P<step>[0-9]{1,9})(?=[-_.])(?!\.[0-9])")


@dataclass(frozen=True)
class Keras(Adapter):
    def find(self, view: View, memory: Memory) -> Iterator[Candidate]:
        for place in view.places(self.places):
            entries = view.entries(place)
            if METADATA in entries:
                files = [join(place, name) for name in (BACKUP, METADATA)]
                parts = tuple(Part(path, path) for path in files)
                yield Candidate(files[0], None, parts, files[1])
            for name, entry in entries.items():
                if (
                    not entry.is_folder
                    and name.endswith((".keras", ".h5"))
                    and self.named.fullmatch(name)
                    and not (METADATA in entries and name == BACKUP)
                ):
                    numbers = [int(match["step"]) for match in NUMBER.finditer(name)]
                    path = join(place, name)
                    yield Candidate(path, numbers[-1] if numbers else None, (Part(path, name),), path)

    def missing(self, view: View, candidate: Candidate, memory: Memory) -> str:
        if len(candidate.parts) == 1:
            return super().missing(view, candidate, memory)
        place = parent(candidate.path)
        if not view.has(candidate.path):
            return f"{BACKUP} is not there yet"
        if self.step(view, candidate) is None:
            return f"{METADATA} is not whole yet"
        return f"{BACKUP} is being written over" if newer(view, place, [BACKUP], METADATA) else WHOLE

    def step(self, view: View, candidate: Candidate) -> int | None:
        if len(candidate.parts) == 1:
            return candidate.step
        metadata = view.json(candidate.marker, 1 << 16)
        epoch = metadata.get("epoch") if isinstance(metadata, dict) else None
        return epoch if isinstance(epoch, int) and 0 <= epoch < 10**15 else None

    def plan(self, saved: Saved) -> Plan:
        if any(path.rpartition("/")[2] == METADATA for path in saved.files):
            folder = folder_with(saved, METADATA)
            seeds = tuple(Put(path, path) for path in saved.files)
            return Plan(path=f"{{ckpt}}/{folder}".rstrip("/"), seeds=seeds)
        return Plan(path=f"{{ckpt}}/{saved.files[0]}" if saved.files else "{ckpt}")


ADAPTER = Keras(
    "keras",
    r".+\.(?:keras|weights\.h5)|.*(?:ck|model|weight|epoch).*\.h5",
    places=DEPTHS[:3],
    is_file=True,
    end_tells=True,
    in_place=True,
)
