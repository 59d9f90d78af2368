"""The kinds of trainers whose checkpoints are understood. Which one a folder is shows by what lies in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from relay_agent.checkpoints.adapters import (
    accelerate,
    dcp,
    deepspeed,
    diffusers,
    hf_trainer,
    keras,
    kohya,
    lightning,
    megatron,
    openrlhf,
    orbax,
    simpletuner,
    single_file,
    staging,
    torchtitan,
    torchtune,
    ultralytics,
    verl,
)
from relay_agent.checkpoints.adapters.base import Adapter, Candidate, Memory
from relay_agent.checkpoints.adapters.view import View

__all__ = ["BY_NAME", "KINDS", "Adapter", "Seen", "find", "for_resume", "is_checkpoint"]

KINDS: tuple[Adapter, ...] = (
    staging.ADAPTER,
    megatron.ADAPTER,
    verl.ADAPTER,
    hf_trainer.ADAPTER,
    simpletuner.ADAPTER,
    diffusers.ADAPTER,
    kohya.ADAPTER,
    openrlhf.ADAPTER,
    deepspeed.ADAPTER,
    torchtitan.ADAPTER,
    torchtune.ADAPTER,
    accelerate.ADAPTER,
    dcp.ADAPTER,
    lightning.ADAPTER,
    orbax.ADAPTER,
    ultralytics.ADAPTER,
    keras.ADAPTER,
    single_file.ADAPTER,
)
"""Where several could have one, the first that finds it whole does: who knows more stands first."""
BY_NAME: Mapping[str, Adapter] = {kind.name: kind for kind in KINDS}


class Seen(NamedTuple):
    """A checkpoint in the trainer's folder, and a kind that it may be of."""

    adapter: Adapter
    candidate: Candidate


@lru_cache(1024)
def is_checkpoint(name: str) -> bool:
    """Whether a folder of this name belongs to some kind: no other kind's checkpoints are looked for inside."""
    return any(kind.is_mine(name) for kind in KINDS)


def find(view: View, kinds: tuple[Adapter, ...], memory: Memory) -> Iterator[Seen]:
    """What lies there, of all `kinds`, in their order. One that lies within what another has is part of that one."""
    seen = [Seen(kind, candidate) for kind in kinds for candidate in kind.find(view, memory)]
    outer = {part.source for each in seen for part in each.candidate.parts}
    for each in seen:
        if not any(parent in outer for parent in _parents(each.candidate.path)):
            yield each


def for_resume(name: str) -> Adapter:
    """Of a published checkpoint, by its manifest. One that this agent does not know is handed out as it lies there."""
    return BY_NAME.get(name, staging.ADAPTER)


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
