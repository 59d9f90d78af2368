"""SimpleTuner: `checkpoint-<step>/` or `checkpoint-<step>-rolling/`, made as `…-tmp` and renamed where it is told to.

`checkpoint_manifest.json` lists all files and is the last but one; `.guard` is renamed in after it, in newer ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from relay_agent.checkpoints.adapters.base import Candidate, Memory, NotYet, Plan
from relay_agent.checkpoints.adapters.diffusers import Diffusers
from relay_agent.checkpoints.adapters.kept import join
from relay_agent.checkpoints.adapters.view import View

MANIFEST = "checkpoint_manifest.json"
GUARD = ".guard"
MAX_LISTED = 10_000


@dataclass(frozen=True)
class SimpleTuner(Diffusers):
    def missing(self, view: View, candidate: Candidate, memory: Memory) -> str:
        path = candidate.path
        if not view.has(join(path, MANIFEST)):
            return f"{MANIFEST} is not there yet"
        listed = view.json(join(path, MANIFEST), 1 << 20)
        files = listed.get("files") if isinstance(listed, dict) else None
        if not isinstance(files, list) or len(files) > MAX_LISTED:
            return f"{MANIFEST} is not whole yet"
        for name in files:
            if not isinstance(name, str) or name.startswith("/") or ".." in name.split("/"):
                return f"{MANIFEST} is damaged"
            if not view.has(join(path, name)):
                return f"{name} is not there"
        return "" if view.has(join(path, GUARD)) else NotYet(f"{GUARD} may still follow")

    def learn(self, view: View, candidate: Candidate, memory: Memory) -> None:
        """The manifest tells all."""


ADAPTER = SimpleTuner(
    "simpletuner",
    r"checkpoint-(?P<step>[0-9]{1,15})(?:-rolling)?",
    owns=r"checkpoint-[0-9]+-tmp",
    resume=Plan(args=("--resume_from_checkpoint",)),
)
