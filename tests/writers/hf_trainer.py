"""transformers' Trainer: config, weights (renamed in), optimizer and the rest in place, trainer_state.json last."""

from __future__ import annotations

import json
from pathlib import Path

from writers.kit import Steps, in_place, make_folder, moved_in, numbers, remove, safetensors, torch_zip


def save(
    out: Path,
    step: int,
    *,
    ranks: int = 1,
    shards: int = 1,
    deepspeed: bool = False,
    peft: bool = False,
    seed: str = "",
    name: str = "checkpoint-{step}",
    total: int = 1000,
) -> Steps:
    """`ranks` beyond the first write their random state after trainer_state.json: nothing holds the first one up."""
    path = out / name.format(step=step)
    seed = seed or str(step)
    yield from make_folder(path)
    yield from _weights(path, seed, shards, peft)
    yield from in_place(path / "training_args.bin", torch_zip(seed))
    if deepspeed:
        yield from _deepspeed(path, step, ranks, seed)
    else:
        yield from in_place(path / "optimizer.pt", torch_zip(seed + " optimizer", size=4096))
    yield from in_place(path / "scheduler.pt", torch_zip(seed + " scheduler", size=16))
    first = "rng_state.pth" if ranks == 1 else "rng_state_0.pth"
    yield from in_place(path / first, torch_zip(seed + " rng", size=64))
    state = {"global_step": step, "max_steps": total, "epoch": 0.5, "log_history": [{"step": step, "loss": 0.5}]}
    yield from in_place(path / "trainer_state.json", json.dumps(state, indent=2).encode() + b"\n")
    for rank in reversed(range(1, ranks)):
        yield from in_place(path / f"rng_state_{rank}.pth", torch_zip(f"{seed} rng {rank}", size=64))


def _weights(path: Path, seed: str, shards: int, peft: bool) -> Steps:
    if peft:
        yield from in_place(path / "adapter_config.json", b'{"peft_type": "LORA"}')
        yield from moved_in(path / "adapter_model.safetensors", safetensors(seed))
        return
    yield from in_place(path / "config.json", b'{"model_type": "gpt2"}')
    yield from in_place(path / "generation_config.json", b"{}")
    if shards == 1:
        yield from moved_in(path / "model.safetensors", safetensors(seed))
        return
    where = {f"layer.{n}": f"model-{n + 1:05d}-of-{shards:05d}.safetensors" for n in range(shards)}
    for layer, file in where.items():
        yield from moved_in(path / file, safetensors(seed, (layer,)))
    index = {"metadata": {"total_size": 2048 * shards}, "weight_map": where}
    yield from in_place(path / "model.safetensors.index.json", json.dumps(index).encode())


def _deepspeed(path: Path, step: int, ranks: int, seed: str) -> Steps:
    inside = path / f"global_step{step}"
    yield from make_folder(inside)
    yield from in_place(inside / "mp_rank_00_model_states.pt", torch_zip(seed + " model"))
    for rank in range(ranks):
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        yield from in_place(inside / name, torch_zip(f"{seed} zero {rank}"))
    yield from in_place(path / "latest", f"global_step{step}".encode())
    yield from in_place(path / "zero_to_fp32.py", b"#!/usr/bin/env python\n" + numbers("code", 64).hex().encode())


def rotate(out: Path, step: int) -> Steps:
    """save_total_limit: an older one goes after the save."""
    yield from remove(out / f"checkpoint-{step}")
