"""Orbax (JAX): `<folder>/500/`, made as `500.orbax-checkpoint-tmp-…` and renamed. `_CHECKPOINT_METADATA` in it is there
early, and tells when it was committed. On a mounted object store the renaming takes a while, and both names are there.

A manager finds the newest in its own folder, so it is put there before it starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from relay_agent.checkpoints.adapters.base import (
    MAX_STEP,
    WHOLE,
    Adapter,
    Candidate,
    Memory,
    NotYet,
    Part,
    Plan,
    Put,
    Saved,
)
from relay_agent.checkpoints.adapters.kept import folder_with, join, name_of, parent
from relay_agent.checkpoints.adapters.view import View

METADATA = "_CHECKPOINT_METADATA"
TEMPORARY = ".orbax-checkpoint-tmp"


@dataclass(frozen=True)
class Orbax(Adapter):
    def is_mine(self, name: str) -> bool:
        """A folder with no more than a number for a name may be anybody's."""
        return TEMPORARY in name

    def find(self, view: View, memory: Memory) -> Iterator[Candidate]:
        for place in view.places(self.places):
            for name, entry in view.entries(place).items():
                match = self.named.fullmatch(name) if entry.is_folder else None
                if match and int(match["step"]) <= MAX_STEP:
                    path = join(place, name)
                    if METADATA in view.entries(path):
                        yield Candidate(path, int(match["step"]), (Part(path, path),), join(path, METADATA))

    def missing(self, view: View, candidate: Candidate, memory: Memory) -> str:
        path = candidate.path
        if view.matching(parent(path), f"{name_of(path)}{TEMPORARY}*"):
            return "it is being renamed"
        metadata = view.json(join(path, METADATA), 1 << 20)
        if not isinstance(metadata, dict):
            return f"{METADATA} is not whole yet"
        if len(view.entries(path)) < 2:
            return "its arrays are not there yet"
        if metadata.get("commit_timestamp_nsecs") or "commit_success.txt" in view.entries(path):
            return WHOLE
        return NotYet("nothing says that it was committed")

    def plan(self, saved: Saved) -> Plan:
        folder = folder_with(saved, METADATA)
        return Plan(path=f"{{ckpt}}/{parent(folder)}".rstrip("/"), seeds=(Put(folder, folder),) if folder else ())


ADAPTER = Orbax("orbax", r"(?:.+_)?(?P<step>[0-9]{1,15})")
