"""The training examples of diffusers, and what grew out of them: Accelerate's save_state in `checkpoint-<step>/`.

They load from the folder that they save to, whatever path they are given: of `--resume_from_checkpoint` they take the
name alone, and the step out of it. So it is put there before they start. They delete before they save.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from relay_agent.checkpoints.adapters.accelerate import RANDOM, Accelerate
from relay_agent.checkpoints.adapters.base import Candidate, Memory, NotYet, Part, Plan, Put, Saved
from relay_agent.checkpoints.adapters.kept import folder_with, join
from relay_agent.checkpoints.adapters.view import View


@dataclass(frozen=True)
class Diffusers(Accelerate):
    def find(self, view: View, memory: Memory) -> Iterator[Candidate]:
        for found in super().find(view, memory):
            if not found.in_place:
                yield replace(found, parts=(Part(found.path, found.path),))

    def missing(self, view: View, candidate: Candidate, memory: Memory) -> str:
        why = super().missing(view, candidate, memory)
        if not why and view.has(join(candidate.path, "training_state.json")):
            return NotYet("SimpleTuner may still write its manifest")
        return why

    def plan(self, saved: Saved) -> Plan:
        folder = folder_with(saved, RANDOM)
        return Plan(
            path=f"{{ckpt}}/{folder}".rstrip("/"),
            args=(*self.resume.args, f"{{output}}/{folder}".rstrip("/")),
            seeds=(Put(folder, folder),) if folder else (),
        )


ADAPTER = Diffusers(
    "diffusers",
    r"checkpoint-(?P<step>[0-9]{1,15})(?:-rolling)?",
    resume=Plan(args=("--resume_from_checkpoint",)),
)
