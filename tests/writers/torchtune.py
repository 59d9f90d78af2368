"""torchtune: weights, then the state of the recipe, in the folder or (releases up to 0.6) beside it."""

from __future__ import annotations

import json
from pathlib import Path

from writers.kit import Steps, in_place, make_folder, safetensors, torch_zip


def save(out: Path, step: int, *, beside: bool = False, final: bool = False, shards: int = 2) -> Steps:
    """`final`: the last one of a run, which has no state."""
    path = out / f"epoch_{step}"
    yield from make_folder(path)
    where = {f"layer.{n}": f"model-{n + 1:05d}-of-{shards:05d}.safetensors" for n in range(shards)}
    for layer, name in where.items():
        yield from in_place(path / name, safetensors(f"{step} {layer}", (layer,)))
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    yield from in_place(path / "model.safetensors.index.json", json.dumps(index).encode())
    if not final:
        state = out / "recipe_state" if beside else path
        yield from make_folder(state)
        yield from in_place(state / "recipe_state.pt", torch_zip(f"{step} state"))
