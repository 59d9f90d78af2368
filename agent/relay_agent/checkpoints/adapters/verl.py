"""verl: `global_step_10/` with `actor/`, often `critic/`, and `data.pt`; then `latest_checkpointed_iteration.txt`,
beside it, by the finalizer where it saves asynchronously. Names of shards tell rank and number of ranks.

Its own rotation takes `actor/` away and leaves a husk with `data.pt`. The tracker has moved on when an older one is
taken, so Relay writes one of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from relay_agent.checkpoints.adapters.base import WHOLE, Adapter, Candidate, Memory, Part, Plan, Saved
from relay_agent.checkpoints.adapters.kept import folder_named, join, name_of, parent
from relay_agent.checkpoints.adapters.megatron import TRACKER
from relay_agent.checkpoints.adapters.view import View

DATA = "data.pt"
SHARD = re.compile(r"(?P<what>[a-z_]+)_world_size_(?P<world>[0-9]{1,6})_rank_(?P<rank>[0-9]{1,6})\.pt")


@dataclass(frozen=True)
class Verl(Adapter):
    def find(self, view: View, memory: Memory) -> Iterator[Candidate]:
        for found in super().find(view, memory):
            name = name_of(found.path)
            yield replace(
                found,
                parts=(Part(found.path, name),),
                marker=join(found.path, DATA),
                texts=((TRACKER, f"{found.step}"),),
            )

    def missing(self, view: View, candidate: Candidate, memory: Memory) -> str:
        path = candidate.path
        names = view.entries(path)
        roles = [name for name, entry in names.items() if entry.is_folder]
        if not roles:
            return "its weights are not there"
        for role in _roles(view, parent(path)):
            if role not in roles:
                return f"{role} is not there yet, as in others"
        for role in roles:
            if lacking := _lacking(view.names(join(path, role))):
                return f"{role}/{lacking} is not there yet"
        if DATA not in names and any(view.has(join(other, DATA)) for other in _others(view, path)):
            return f"{DATA} is not there yet"
        named = view.number(join(parent(path), TRACKER))
        if named is None or named < (candidate.step or 0):
            return f"{TRACKER} does not name it yet"
        return WHOLE

    def plan(self, saved: Saved) -> Plan:
        # The path has to end in the name: verl reads the step off it.
        path = f"{{ckpt}}/{folder_named(saved, self.pattern)}".rstrip("/")
        return Plan(path=path, args=("trainer.resume_mode=resume_path", f"trainer.resume_from_path={path}"))


def _others(view: View, path: str) -> Iterator[str]:
    place = parent(path)
    for name, entry in view.entries(place).items():
        if entry.is_folder and name.startswith("global_step_") and name != name_of(path):
            yield join(place, name)


def _roles(view: View, place: str) -> set[str]:
    """Of whole ones beside it; a husk has none, and one that is being written has fewer."""
    found = [
        {name for name, each in view.entries(join(place, other)).items() if each.is_folder}
        for other, entry in view.entries(place).items()
        if entry.is_folder and other.startswith("global_step_") and view.has(join(place, f"{other}/{DATA}"))
    ]
    return set.union(*found) if found else set()


def _lacking(names: list[str]) -> str:
    """The first shard that is not there, of each kind that a role has; "" where all are."""
    shards: dict[tuple[str, str], set[int]] = {}
    for name in names:
        if match := SHARD.fullmatch(name):
            shards.setdefault((match["what"], match["world"]), set()).add(int(match["rank"]))
    for (what, world), ranks in shards.items():
        for rank in range(int(world)):
            if rank not in ranks:
                return f"{what}_world_size_{world}_rank_{rank}.pt"
    if not any(what == "model" for what, _ in shards) and not any(name.endswith(".distcp") for name in names):
        return "dist_ckpt" if "huggingface" in names and "dist_ckpt" not in names else ""
    return ""


ADAPTER = Verl("verl", r"global_step_(?P<step>[0-9]{1,15})")
