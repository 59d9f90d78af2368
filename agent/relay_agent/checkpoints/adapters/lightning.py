"""Lightning: one file, `epoch=3-step=1200.ckpt`, `last.ckpt`, `hpc_ckpt_1.ckpt`, or a folder of such a name where
DeepSpeed or FSDP save in shards.

A file is written elsewhere and moved in; where that is another filesystem it is copied and grows under its name, and
`last.ckpt` is then written over in place. As a link it is nothing of its own; nor is it beside one of its step.
"""

from __future__ import annotations

import re
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
    Saved,
    missing_rank,
    remember_ranks,
    step_in,
)
from relay_agent.checkpoints.adapters.hf_trainer import ZERO
from relay_agent.checkpoints.adapters.kept import join, name_of
from relay_agent.checkpoints.adapters.single_file import counted, counters
from relay_agent.checkpoints.adapters.view import View

LAST = re.compile(r"last(?:-v[0-9]+)?\.ckpt")
SHARDS = "checkpoint"
"""The tag under which Lightning lets DeepSpeed save."""


@dataclass(frozen=True)
class Lightning(Adapter):
    def find(self, view: View, memory: Memory) -> Iterator[Candidate]:
        for place in view.places(self.places):
            lasts: list[Candidate] = []
            steps: set[int] = set()
            for name, entry in view.entries(place).items():
                match = self.named.fullmatch(name) if name.endswith(".ckpt") else None
                step = step_in(match) if match else None
                if not match or (step or 0) > MAX_STEP:
                    continue
                path = join(place, name)
                found = Candidate(path, step, (Part(path, name),), path, in_place=bool(LAST.fullmatch(name)))
                if entry.is_folder:
                    end = "latest" if view.has(join(path, SHARDS)) else "meta.pt"
                    yield Candidate(path, step, found.parts, join(path, end), in_place=found.in_place)
                elif found.in_place:
                    lasts.append(found)
                else:
                    steps.add(-1 if step is None else step)
                    yield found
            for found in lasts:
                if not steps or counted(view, found.path, "global_step", memory) not in steps:
                    yield found

    def missing(self, view: View, candidate: Candidate, memory: Memory) -> str:
        path = candidate.path
        if candidate.marker == path:
            return super().missing(view, candidate, memory)
        if not view.has(candidate.marker):
            return f"{name_of(candidate.marker)} is not there yet"
        if name_of(candidate.marker) == "latest":
            if view.text(candidate.marker) != SHARDS:
                return "latest is not whole yet"
            return missing_rank(view.names(join(path, SHARDS)), ZERO, memory)
        return WHOLE if view.has(join(path, ".metadata")) else ".metadata is not there yet"

    def learn(self, view: View, candidate: Candidate, memory: Memory) -> None:
        remember_ranks(view.names(join(candidate.path, SHARDS)), ZERO, memory)

    def step(self, view: View, candidate: Candidate) -> int | None:
        if candidate.step is not None or candidate.marker != candidate.path:
            return candidate.step
        found = counters(view, candidate.path).get("global_step", -1)
        return found if found >= 0 else None

    def plan(self, saved: Saved) -> Plan:
        path = f"{{ckpt}}/{saved.top[0]}" if saved.top else "{ckpt}"
        return Plan(path=path, args=("--ckpt_path", path))


ADAPTER = Lightning(
    "lightning",
    r"(?:.*step=(?P<step>[0-9]{1,15})(?![0-9]).*|.*)\.ckpt",
    is_file=True,
    end_tells=True,
    owns=r".+\.ckpt",
)
