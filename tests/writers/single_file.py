"""nanoGPT and its kin: one file, written again and again in place."""

from __future__ import annotations

from pathlib import Path

from writers.kit import Steps, in_place, make_folder, torch_zip


def save(out: Path, step: int, *, name: str = "ckpt.pt", seed: str = "") -> Steps:
    outline = {
        "model": {"transformer.wte.weight": "tensor"},
        "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]},
        "model_args": {"n_layer": 6},
        "iter_num": step,
        "best_val_loss": 1.5,
        "config": {"out_dir": "out"},
    }
    path = out / name
    yield from make_folder(path.parent)
    yield from in_place(path, torch_zip(seed or str(step), outline, archive=path.stem))
