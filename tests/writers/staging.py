"""The staging protocol: a folder for each step, COMPLETE last."""

from __future__ import annotations

from pathlib import Path

from writers.kit import Steps, in_place, make_folder, safetensors


def save(out: Path, step: int, *, name: str = "step_{step}", seed: str = "") -> Steps:
    path = out / name.format(step=step)
    yield from make_folder(path)
    yield from in_place(path / "model.safetensors", safetensors(seed or str(step)))
    yield from in_place(path / "COMPLETE", b"")
