"""The Trainer of transformers, and what is built on it: TRL, axolotl, LLaMA-Factory, PEFT, also with DeepSpeed or FSDP.

`checkpoint-500/`: weights, optimizer and the rest, then `trainer_state.json`. Other ranks do not wait for that and
write their `rng_state_<R>.pth` when they get there. With DeepSpeed its folder `global_step500/` lies inside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from relay_agent.checkpoints.adapters.base import (
    UNFINISHED,
    WHOLE,
    Adapter,
    Candidate,
    Memory,
    NotYet,
    Plan,
    Ranks,
    missing_rank,
)
from relay_agent.checkpoints.adapters.view import MAX_TEXT, View

STATE = "trainer_state.json"
ZERO = Ranks(re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(?P<rank>[0-9]+)_mp_rank_[0-9]+_optim_states\.pt"))


@dataclass(frozen=True)
class HfTrainer(Adapter):
    def missing(self, view: View, candidate: Candidate, memory: Memory) -> str:
        why = super().missing(view, candidate, memory)
        if why and not isinstance(why, NotYet):
            return why
        state = f"{candidate.path}/{STATE}"
        if not isinstance(view.json(state, twice=True), dict):  # it is written in place, and may hold half of itself
            size = getattr(view.stat(state), "st_size", 0)
            return NotYet(f"{STATE} is too long to read") if size > MAX_TEXT else f"{STATE} is not whole yet"
        for name in view.matching(candidate.path, "global_step*"):
            lacking = missing_rank(view.names(f"{candidate.path}/{name}"), ZERO, memory)
            if lacking and not isinstance(lacking, NotYet):
                return lacking
        return why or WHOLE


ADAPTER = HfTrainer(
    "hf_trainer",
    r"checkpoint-(?P<step>[0-9]{1,15})",
    marker=STATE,
    needs=("*.safetensors|*.bin|*.pt|global_step*|pytorch_model_fsdp*|*.distcp",),
    ranks=(Ranks(re.compile(r"rng_state_(?P<rank>[0-9]+)\.pth")),),
    unfinished=(*UNFINISHED, "checkpoint-is-incomplete.txt"),
    owns=r"checkpoint-.*|tmp-checkpoint-.*",
    resume=Plan(args=("--resume_from_checkpoint", "{ckpt}")),
)
