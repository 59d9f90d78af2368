"""Megatron-LM and slime: `iter_0000500/` beside a tracker that names the last one.

torch_dist: `.metadata`, then `metadata.json`, then the tracker; older: `mp_rank_*/model_optim_rng.pt`, then it.
slime writes `rollout/global_dataset_state_dict_<N>.pt` after that: without it a resume shuffles its data anew. The
tracker has moved on when an older one is taken, so Relay writes one of its own that names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from relay_agent.checkpoints.adapters.base import WHOLE, Adapter, Candidate, Memory, NotYet, Part, Plan
from relay_agent.checkpoints.adapters.view import View

TRACKER = "latest_checkpointed_iteration.txt"
DIST = (".metadata", "metadata.json")
LEGACY = ("model_optim_rng.pt", "distrib_optim.pt", "model_rng.pt")


@dataclass(frozen=True)
class Megatron(Adapter):
    def find(self, view: View, memory: Memory) -> Iterator[Candidate]:
        for found in super().find(view, memory):
            place, _, name = found.path.rpartition("/")
            if not view.has(_in(place, TRACKER)):
                continue
            parts = [Part(found.path, name)]
            data = f"rollout/global_dataset_state_dict_{found.step}.pt"
            if view.has(_in(place, data)):
                parts.append(Part(_in(place, data), data))
            last = next((mark for mark in reversed(DIST) if view.has(f"{found.path}/{mark}")), "")
            yield replace(
                found,
                parts=tuple(parts),
                marker=f"{found.path}/{last}" if last else "",
                texts=((TRACKER, f"{found.step}"),),
            )

    def missing(self, view: View, candidate: Candidate, memory: Memory) -> str:
        place, _, _ = candidate.path.rpartition("/")
        names = view.names(candidate.path)
        if any(name.endswith(".distcp") or name in DIST for name in names):
            lacking = [name for name in DIST if name not in names]
        else:
            ranks = view.matching(candidate.path, "mp_rank_*")
            lacking = [name for name in ranks if not any(map(view.entries(f"{candidate.path}/{name}").get, LEGACY))]
            lacking += [] if ranks else ["mp_rank_00"]
        if lacking:
            return f"{lacking[0]} is not there yet"
        named = view.number(_in(place, TRACKER))
        if named is None or named < (candidate.step or 0):
            return f"{TRACKER} does not name it yet"
        if len(candidate.parts) > 1 or memory.numbers.get(_plain(place)):
            return WHOLE
        if view.matching(_in(place, "rollout"), "global_dataset_state_dict_*.pt"):
            return "the state of its dataset is not there yet"
        return NotYet("slime may still write the state of its dataset")

    def learn(self, view: View, candidate: Candidate, memory: Memory) -> None:
        if len(candidate.parts) == 1:
            place, _, _ = candidate.path.rpartition("/")
            memory.numbers[_plain(place)] = 1


def _in(place: str, name: str) -> str:
    return f"{place}/{name}" if place else name


def _plain(place: str) -> str:
    return f"no dataset state in {place}"


ADAPTER = Megatron(
    "megatron",
    r"iter_(?P<step>[0-9]{7,15})",
    owns=r"iter_[0-9]+",
    # Megatron looks for the tracker in the folder it is given, and for the iteration that it names beside it.
    resume=Plan(args=("--load", "{ckpt}")),
)
