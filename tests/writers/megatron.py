"""Megatron-LM: shards, `.metadata`, `metadata.json`, then the tracker; slime: the state of its dataset after that."""

from __future__ import annotations

import pickle
from pathlib import Path

from writers.kit import Steps, in_place, make_folder, moved_in, torch_zip

TRACKER = "latest_checkpointed_iteration.txt"


def save(out: Path, step: int, *, ranks: int = 2, slime: bool = False, seed: str = "") -> Steps:
    """torch_dist, the format of today."""
    path = out / f"iter_{step:07d}"
    seed = seed or str(step)
    yield from make_folder(path)
    needed = {}
    for rank in range(ranks):
        name = f"__{rank}_0.distcp"
        data = torch_zip(f"{seed} {rank}")
        needed[name] = len(data)
        yield from in_place(path / name, data)
    yield from in_place(path / "common.pt", torch_zip(seed + " common"))
    # Names of files with offset and length behind each, as the metadata of DCP has them.
    outline = {f"weight.{n}": (name, 0, size) for n, (name, size) in enumerate(needed.items())}
    yield from moved_in(path / ".metadata", pickle.dumps(outline, protocol=4), ".metadata.tmp")
    yield from in_place(path / "metadata.json", b'{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    yield from in_place(out / TRACKER, str(step).encode())
    if slime:
        yield from make_folder(out / "rollout")
        state = {"sample_offset": step * 8, "epoch_id": 0, "sample_group_index": step, "metadata": {}}
        yield from in_place(out / "rollout" / f"global_dataset_state_dict_{step}.pt", torch_zip(seed, state))


def save_legacy(out: Path, step: int, *, ranks: int = 2, seed: str = "") -> Steps:
    """torch: a folder for each model-parallel rank."""
    path = out / f"iter_{step:07d}"
    for rank in range(ranks):
        yield from make_folder(path / f"mp_rank_{rank:02d}")
        data = torch_zip(f"{seed or step} {rank}", {"iteration": step})
        yield from in_place(path / f"mp_rank_{rank:02d}" / "model_optim_rng.pt", data)
    yield from in_place(out / TRACKER, str(step).encode())
