"""Accelerate's save_state: weights, optimizers, schedulers, then `random_states_<rank>.pkl` of each rank, and last what
was registered besides, `custom_checkpoint_<n>.pkl`. Nothing marks the end: how many of these there are, the first one
that kept still tells.

It lies in `checkpoint_<n>/` (the n-th save), in `step_<n>/` or `epoch_<n>/` as its examples name it, or in a folder of
one name that is written over again and again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from relay_agent.checkpoints.adapters.base import (
    MAX_STEP,
    WHOLE,
    Adapter,
    Candidate,
    Memory,
    NotYet,
    Part,
    Plan,
    Saved,
    older,
)
from relay_agent.checkpoints.adapters.kept import folder_with, join, name_of, newer, parent, unfinished
from relay_agent.checkpoints.adapters.view import View

RANDOM = "random_states_0.pkl"
SAVED = re.compile(r"(?:pytorch_)?model|optimizer|scheduler|sampler|dl_state|scaler")
"""What save_state writes before the random states; what a script adds after them is its own."""
COUNTED = (re.compile(r"random_states_([0-9]{1,6})\.pkl"), re.compile(r"custom_checkpoint_([0-9]{1,6})\.pkl"))


@dataclass(frozen=True)
class Accelerate(Adapter):
    def find(self, view: View, memory: Memory) -> Iterator[Candidate]:
        for place in view.places(self.places):
            if place and RANDOM in view.entries(place):  # no name of a checkpoint, but what lies in one
                yield Candidate(place, None, (Part(place, name_of(place)),), join(place, RANDOM), in_place=True)
                continue
            for name, entry in view.entries(place).items():
                match = self.named.fullmatch(name) if entry.is_folder else None
                path = join(place, name)
                if match and int(match["step"]) <= MAX_STEP and _is_saved(view.names(path)):
                    yield Candidate(path, int(match["step"]), (Part(path, name),), join(path, RANDOM))

    def missing(self, view: View, candidate: Candidate, memory: Memory) -> str:
        path = candidate.path
        names = view.names(path)
        if RANDOM not in names:
            return f"{RANDOM} is not there yet"
        counts = [_numbers(names, pattern) for pattern in COUNTED]
        plain = [name for name in names if not any(pattern.fullmatch(name) for pattern in COUNTED)]
        if not plain:
            return "its weights are not there yet"
        if left := unfinished(names, self.unfinished):
            return f"{left} is still there"
        if written := newer(view, path, [name for name in plain if SAVED.match(name)], RANDOM):
            return f"{written} is being written over"
        for name in plain:
            inside = view.names(join(path, name))
            if any(each.endswith(".distcp") for each in inside) and ".metadata" not in inside:
                return f"{name}/.metadata is not there yet"
        known = True
        self._ask_older(view, candidate, memory)
        for pattern, found in zip(COUNTED, counts, strict=True):
            expected = memory.numbers.get(_key(pattern, path))
            known = known and expected is not None
            count = max(len(found), expected or 0)
            lacking = next((number for number in range(count) if number not in found), None)
            if lacking is not None:
                return f"{_name(pattern, lacking)} is not there yet"
        return WHOLE if known else NotYet("further ranks or objects may still follow")

    def learn(self, view: View, candidate: Candidate, memory: Memory) -> None:
        names = view.names(candidate.path)
        for pattern in COUNTED:
            memory.most(_key(pattern, candidate.path), len(_numbers(names, pattern)))

    def _ask_older(self, view: View, candidate: Candidate, memory: Memory) -> None:
        """To who has seen none of them being saved."""
        if any(_key(pattern, candidate.path) not in memory.numbers for pattern in COUNTED):
            for beside in older(view, candidate.path, RANDOM):
                self.learn(view, replace(candidate, path=beside), memory)

    def plan(self, saved: Saved) -> Plan:
        path = f"{{ckpt}}/{folder_with(saved, RANDOM)}".rstrip("/")
        return Plan(path=path, args=(*self.resume.args, path))


def _is_saved(names: list[str]) -> bool:
    return RANDOM in names or any(name == "optimizer.bin" or name.startswith("optimizer_") for name in names)


def _numbers(names: list[str], pattern: re.Pattern[str]) -> set[int]:
    return {int(match[1]) for name in names if (match := pattern.fullmatch(name))}


def _key(pattern: re.Pattern[str], path: str) -> str:
    return f"{pattern.pattern} in {parent(path)}"


def _name(pattern: re.Pattern[str], number: int) -> str:
    return pattern.pattern.replace("([0-9]{1,6})", str(number)).replace("\\", "")


ADAPTER = Accelerate(
    "accelerate",
    # The scripts read the number of steps or epochs off the name, so it keeps it.
    r"(?:checkpoint|step|epoch)_(?P<step>[0-9]{1,15})",
    resume=Plan(args=("--resume_from_checkpoint",)),
)
