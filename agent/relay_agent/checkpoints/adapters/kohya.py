"""kohya's sd-scripts: Accelerate's save_state in `<name>-step00000500-state/`, `<name>-000003-state/` (an epoch) or
`<name>-state/` (the end). `train_state.json`, with the step, is written first of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from relay_agent.checkpoints.adapters.accelerate import RANDOM, Accelerate
from relay_agent.checkpoints.adapters.base import Candidate, Memory, Part, Plan
from relay_agent.checkpoints.adapters.kept import join
from relay_agent.checkpoints.adapters.view import View

STATE = "train_state.json"


@dataclass(frozen=True)
class Kohya(Accelerate):
    def find(self, view: View, memory: Memory) -> Iterator[Candidate]:
        for place in view.places(self.places):
            for name, entry in view.entries(place).items():
                if entry.is_folder and (match := self.named.fullmatch(name)):
                    path = join(place, name)
                    step = int(match["step"]) if match["step"] else None
                    yield Candidate(path, step, (Part(path, name),), join(path, RANDOM))

    def step(self, view: View, candidate: Candidate) -> int | None:
        state = view.json(join(candidate.path, STATE), 1 << 16)
        told = state.get("current_step") if isinstance(state, dict) else None
        return told if isinstance(told, int) and 0 <= told < 10**15 else candidate.step


ADAPTER = Kohya(
    "kohya",
    r".+?(?:-step(?P<step>[0-9]{8,15})|-[0-9]{6,})?-state",
    resume=Plan(args=("--resume",)),
)
