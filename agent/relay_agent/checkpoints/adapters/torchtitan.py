"""torchtitan: `<dump folder>/checkpoint/step-500/`, shards of torch.distributed.checkpoint or, where it exports for
Hugging Face, safetensors under an index. It resumes by itself from the newest that it finds where it saves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from relay_agent.checkpoints.adapters.base import WHOLE, Adapter, Candidate, Memory, NotYet, Part, Plan, Put, Saved
from relay_agent.checkpoints.adapters.dcp import METADATA
from relay_agent.checkpoints.adapters.kept import folder_named, join, newer, unfinished
from relay_agent.checkpoints.adapters.view import View

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Torchtitan(Adapter):
    def find(self, view: View, memory: Memory) -> Iterator[Candidate]:
        for found in super().find(view, memory):
            end = INDEX if INDEX in view.entries(found.path) else METADATA
            yield replace(found, parts=(Part(found.path, found.path),), marker=join(found.path, end))

    def missing(self, view: View, candidate: Candidate, memory: Memory) -> str:
        path = candidate.path
        names = view.names(path)
        if left := unfinished(names, self.unfinished):
            return f"{left} is still there"
        if INDEX in names:
            # It may come before the files that it names; these are looked for when it is taken.
            return NotYet("nothing marks the end of an export")
        if METADATA not in names:
            return f"{METADATA} is not there yet"
        written = newer(view, path, [name for name in names if name.endswith(".distcp")], METADATA)
        return f"{written} is being written over" if written else WHOLE

    def plan(self, saved: Saved) -> Plan:
        folder = folder_named(saved, self.pattern)
        return Plan(path=f"{{ckpt}}/{folder}".rstrip("/"), seeds=(Put(folder, folder),) if folder else ())


ADAPTER = Torchtitan("torchtitan", r"step-(?P<step>[0-9]{1,15})")
