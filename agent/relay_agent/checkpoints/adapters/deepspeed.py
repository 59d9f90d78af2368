"""DeepSpeed by itself: a folder for each tag, `global_step500/`, and beside it `latest`, which names the last one.

The first rank writes `latest` when it is done itself: the shards of others may come after it. It has moved on when an
older one is taken, so Relay writes one of its own. Where FSDP saves in the same places, as in OpenRLHF, `.metadata`
ends a folder.
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
    NotYet,
    Part,
    Ranks,
    ask_older,
    missing_rank,
    remember_ranks,
)
from relay_agent.checkpoints.adapters.hf_trainer import ZERO
from relay_agent.checkpoints.adapters.kept import join, name_of, parent
from relay_agent.checkpoints.adapters.view import View

LATEST = "latest"
MODEL = Ranks(re.compile(r"mp_rank_(?P<rank>[0-9]+)_model_states\.pt"))
SHARDS = (ZERO, MODEL)
ROLES = ("_actor", "_critic")
"""Folders of which two make one checkpoint: openrlhf.py."""


@dataclass(frozen=True)
class DeepSpeed(Adapter):
    def find(self, view: View, memory: Memory) -> Iterator[Candidate]:
        for place in view.places(self.places):
            if name_of(place) not in ROLES:
                for name, step in tags(view, place, self.pattern):
                    path = join(place, name)
                    yield Candidate(path, step, (Part(path, name),), mark(view, path), ((LATEST, name),))

    def missing(self, view: View, candidate: Candidate, memory: Memory) -> str:
        return missing_tag(view, candidate.path, candidate.step, memory)

    def learn(self, view: View, candidate: Candidate, memory: Memory) -> None:
        for ranks in SHARDS:
            remember_ranks(view.names(candidate.path), ranks, memory)


def tags(view: View, place: str, pattern: str) -> Iterator[tuple[str, int | None]]:
    """Folders in `place` that are named as a tag is, or that `latest` names, with their steps."""
    named = view.text(join(place, LATEST)) if LATEST in view.entries(place) else ""
    for name, entry in view.entries(place).items():
        match = re.fullmatch(pattern, name) if entry.is_folder else None
        if not entry.is_folder or not (match or name == named):
            continue
        step = int(match["step"]) if match else _number(name)
        if step is None or step <= MAX_STEP:
            yield name, step


def mark(view: View, path: str) -> str:
    """The file that is written with every save of a tag, and never but then."""
    names = view.names(path)
    for each in (".metadata", "mp_rank_00_model_states.pt", *names):
        if each in names and (each == ".metadata" or each.endswith("model_states.pt")):
            return f"{path}/{each}"
    return ""


def missing_tag(view: View, path: str, step: int | None, memory: Memory) -> str:
    names = view.names(path)
    if any(name.endswith(".distcp") for name in names):
        why: str = WHOLE if ".metadata" in names else ".metadata is not there yet"
    elif not any(name.endswith("model_states.pt") for name in names):
        return "its model states are not there yet"
    else:
        for ranks in SHARDS:
            ask_older(view, path, name_of(mark(view, path)), ranks, memory)
        why = hardest(missing_rank(names, ranks, memory) for ranks in SHARDS)
    named = view.text(join(parent(path), LATEST))
    if named != name_of(path) and (step is None or (_number(named) or -1) <= step):
        return f"{LATEST} does not name it yet"
    return why


def hardest(reasons: Iterator[str]) -> str:
    """The hardest of them: one that waiting does not mend stands before one that it does."""
    found = [why for why in reasons if why]
    return next((why for why in found if not isinstance(why, NotYet)), found[0] if found else WHOLE)


def _number(tag: str) -> int | None:
    match = re.search(r"([0-9]{1,15})\Z", tag)
    return int(match[1]) if match else None


ADAPTER = DeepSpeed(
    "deepspeed",
    r"global_step(?P<step>[0-9]{1,15})",
    # load_checkpoint(RELAY_RESUME_FROM) reads the tag from `latest`.
)
