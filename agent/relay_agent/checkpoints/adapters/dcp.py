"""torch.distributed.checkpoint in a loop of one's own: `.distcp` files of each rank, and `.metadata`, renamed in last.

What the loop adds to the folder after that nobody knows, so it has to keep still. The folder has a number in its name,
or always the same one; then it loses `.metadata` shortly before the new one comes, when all else is written over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from relay_agent.checkpoints.adapters.base import MAX_STEP, Adapter, Candidate, Memory, NotYet, Part, Plan, Saved
from relay_agent.checkpoints.adapters.kept import folder_with, join, name_of, newer, unfinished
from relay_agent.checkpoints.adapters.view import View

METADATA = ".metadata"


@dataclass(frozen=True)
class Dcp(Adapter):
    def is_mine(self, name: str) -> bool:
        return not name.isdigit() and super().is_mine(name)

    def find(self, view: View, memory: Memory) -> Iterator[Candidate]:
        for place in view.places(self.places):
            if place and METADATA in view.entries(place):
                yield Candidate(place, None, (Part(place, name_of(place)),), join(place, METADATA), in_place=True)
                continue
            for name, entry in view.entries(place).items():
                match = self.named.fullmatch(name) if entry.is_folder else None
                path = join(place, name)
                if match and int(match["step"]) <= MAX_STEP and _is_sharded(view.names(path)):
                    yield Candidate(path, int(match["step"]), (Part(path, name),), join(path, METADATA))

    def missing(self, view: View, candidate: Candidate, memory: Memory) -> str:
        path = candidate.path
        names = view.names(path)
        if METADATA not in names:
            return f"{METADATA} is not there yet"
        shards = [name for name in names if name.endswith(".distcp")]
        if left := unfinished(names, self.unfinished):
            return f"{left} is still there"
        if not shards:
            return "its shards are not there yet"
        if written := newer(view, path, shards, METADATA):
            return f"{written} is being written over"
        return NotYet("the loop may still add to it")

    def plan(self, saved: Saved) -> Plan:
        return Plan(path=f"{{ckpt}}/{folder_with(saved, METADATA)}".rstrip("/"))


def _is_sharded(names: list[str]) -> bool:
    return METADATA in names or any(name.endswith(".distcp") for name in names)


ADAPTER = Dcp(
    "dcp",
    r"(?:(?:step|checkpoint|ckpt|epoch|dcp|save|state)s?[-_=]?)?(?P<step>[0-9]{1,15})",
)
