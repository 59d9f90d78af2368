"""Accelerate's save_state, and who is made of it: diffusers, kohya's sd-scripts, SimpleTuner."""

from __future__ import annotations

import json
from pathlib import Path

from writers.dcp import fill
from writers.kit import Steps, in_place, make_folder, moved_in, remove, safetensors, torch_zip


def state(path: Path, seed: str, *, ranks: int = 1, customs: int = 0, fsdp: bool = False, lora: bool = False) -> Steps:
    """One save_state into a folder that is there. Random states of further ranks come when they come."""
    if fsdp:
        yield from fill(path / "pytorch_model_fsdp_0", seed, ranks)
        yield from fill(path / "optimizer_0", seed + " optimizer", ranks)
    else:
        name = "pytorch_lora_weights.safetensors" if lora else "model.safetensors"
        yield from moved_in(path / name, safetensors(seed))
        yield from in_place(path / "optimizer.bin", torch_zip(seed + " optimizer", size=3000))
    yield from in_place(path / "scheduler.bin", torch_zip(seed + " scheduler", size=16))
    for rank in range(ranks):
        yield from in_place(path / f"random_states_{rank}.pkl", torch_zip(f"{seed} {rank}", size=64))
    for number in range(customs):
        yield from in_place(path / f"custom_checkpoint_{number}.pkl", torch_zip(f"{seed} {number}", size=64))


def save(out: Path, step: int, *, name: str = "checkpoint_{step}", seed: str = "", **options: int | bool) -> Steps:
    """`customs`, `ranks`, `fsdp` as of `state`."""
    path = out / name.format(step=step)
    yield from make_folder(path)
    yield from state(path, seed or str(step), **options)  # type: ignore[arg-type]


def diffusers(out: Path, step: int, *, keep: int = 1) -> Steps:
    """Deletes before it saves, down to `keep` with the one to come."""
    yield from make_folder(out)
    olds = sorted(out.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    for old in olds[: max(0, len(olds) - keep + 1)]:
        yield from remove(old)
    yield from save(out, step, name="checkpoint-{step}", lora=True)


def kohya(out: Path, step: int, *, name: str = "lora-step{step:08d}-state") -> Steps:
    path = out / name.format(step=step)
    yield from make_folder(path)
    told = {"current_epoch": 1, "current_step": step}
    yield from in_place(path / "train_state.json", json.dumps(told).encode())
    yield from state(path, str(step))


def simpletuner(out: Path, step: int, *, temporary: bool = True, rolling: bool = False) -> Steps:
    path = out / f"checkpoint-{step}{'-rolling' if rolling else ''}"
    at = path.with_name(path.name + "-tmp") if temporary else path
    yield from make_folder(at)
    yield from in_place(at / "training_state.json", json.dumps({"global_step": step, "epoch": 1}).encode())
    yield from state(at, str(step), lora=True)
    files = sorted(str(file.relative_to(at)) for file in at.rglob("*") if file.is_file())
    told = {"version": 1, "checkpoint": at.name, "files": files, "metadata": {}}
    yield from in_place(at / "checkpoint_manifest.json", json.dumps(told, indent=2).encode())
    yield from moved_in(at / ".guard", b"complete\n", ".guard.tmp")
    if temporary:
        at.rename(path)
        yield f"{path.name} renamed"
