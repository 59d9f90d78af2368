"""torchtune: `epoch_0/` or `step_500/`, weights and then `recipe_state.pt`: in the folder, or, in releases up to 0.6,
in `recipe_state/` beside it, one for all. The last one of a run has none and holds weights alone: no run goes on from
it.

It looks for both where it saves (`resume_from_checkpoint=True`), so they are put there before it starts.
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
    Part,
    Plan,
    Put,
    Saved,
)
from relay_agent.checkpoints.adapters.kept import folder_named, join, parent
from relay_agent.checkpoints.adapters.view import View

STATE = "recipe_state.pt"
BESIDE = "recipe_state"


@dataclass(frozen=True)
class Torchtune(Adapter):
    def find(self, view: View, memory: Memory) -> Iterator[Candidate]:
        for place in view.places(self.places):
            steps = {
                name: int(match["step"])
                for name, entry in view.entries(place).items()
                if entry.is_folder and (match := self.named.fullmatch(name)) and int(match["step"]) <= MAX_STEP
            }
            for name, step in steps.items():
                path = join(place, name)
                if view.has(join(path, STATE)):
                    yield Candidate(path, step, (Part(path, path),), join(path, STATE))
                elif view.has(join(place, f"{BESIDE}/{STATE}")) and step == max(steps.values()):
                    beside = join(place, BESIDE)
                    parts = (Part(path, path), Part(beside, beside))
                    yield Candidate(path, step, parts, f"{beside}/{STATE}", in_place=True)

    def missing(self, view: View, candidate: Candidate, memory: Memory) -> str:
        path = candidate.path
        names = [name for name in view.names(path) if name != STATE]
        if not any(name.endswith((".safetensors", ".bin", ".pt")) for name in names):
            return "its weights are not there yet"
        state = view.stat(candidate.marker)
        for name in names:
            found = view.stat(join(path, name))
            if state is None or (found is not None and found.st_mtime_ns > state.st_mtime_ns):
                return f"{STATE} is not there yet"
        return WHOLE

    def plan(self, saved: Saved) -> Plan:
        folder = folder_named(saved, self.pattern)
        beside = join(parent(folder), BESIDE)
        seeds = [Put(folder, folder)]
        if f"{beside}/{STATE}" in saved.files:
            seeds.append(Put(beside, beside))
        return Plan(
            path=f"{{ckpt}}/{folder}".rstrip("/"),
            args=("resume_from_checkpoint=True",),
            seeds=tuple(seeds) if folder else (),
        )


ADAPTER = Torchtune("torchtune", r"(?:epoch|step)_(?P<step>[0-9]{1,15})")
