"""OpenRLHF: DeepSpeed's (or FSDP's) folders of tags; PPO has two, `_actor/` and `_critic/`, that make one checkpoint.

It deletes the oldest before it saves. `global_step20_hf` and `best_global_step20` beside them are exports and are left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from relay_agent.checkpoints.adapters.base import Candidate, Memory, Part, Plan
from relay_agent.checkpoints.adapters.deepspeed import LATEST, ROLES, DeepSpeed, hardest, mark, missing_tag, tags
from relay_agent.checkpoints.adapters.kept import join
from relay_agent.checkpoints.adapters.view import View


@dataclass(frozen=True)
class OpenRlhf(DeepSpeed):
    def find(self, view: View, memory: Memory) -> Iterator[Candidate]:
        for place in view.places(self.places):
            roles = [role for role in ROLES if role in view.entries(place)]
            if not roles:
                # Without roles it looks as DeepSpeed's do, but for what it exports beside them.
                if view.matching(place, "global_step*_hf") or view.matching(place, "best_global_step*"):
                    yield from (found for found in super().find(view, memory) if _lies_in(found, place))
                continue
            for name, step in tags(view, join(place, roles[0]), self.pattern):
                parts = tuple(Part(join(place, f"{role}/{name}"), f"{role}/{name}") for role in roles)
                texts = tuple((f"{role}/{LATEST}", name) for role in roles)
                last = parts[-1].source
                yield Candidate(parts[0].source, step, parts, mark(view, last), texts)

    def missing(self, view: View, candidate: Candidate, memory: Memory) -> str:
        return hardest(missing_tag(view, part.source, candidate.step, memory) for part in candidate.parts)


def _lies_in(found: Candidate, place: str) -> bool:
    return found.path.rpartition("/")[0] == place


ADAPTER = OpenRlhf(
    "openrlhf",
    r"global_step(?P<step>[0-9]{1,15})",
    owns=r"(?:best_)?global_step[0-9]+_hf|best_global_step[0-9]+",
    resume=Plan(args=("--ckpt.load_enable", "--ckpt.path", "{ckpt}")),
)
