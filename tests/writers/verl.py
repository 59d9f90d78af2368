"""verl: shards of each role, `data.pt`, then the tracker; its rotation leaves husks."""

from __future__ import annotations

from pathlib import Path

from writers.kit import Steps, in_place, make_folder, remove, torch_zip

TRACKER = "latest_checkpointed_iteration.txt"


def save(out: Path, step: int, *, world: int = 2, critic: bool = True, keep: int = 1) -> Steps:
    path = out / f"global_step_{step}"
    for role in ("actor", "critic") if critic else ("actor",):
        olds = sorted(out.glob(f"global_step_*/{role}"), key=lambda old: int(old.parent.name.rpartition("_")[2]))
        for old in olds[: max(0, len(olds) - keep + 1)]:
            yield from remove(old)
        yield from make_folder(path / role / "huggingface")
        for rank in reversed(range(world)):
            for what in ("model", "optim", "extra_state"):
                name = f"{what}_world_size_{world}_rank_{rank}.pt"
                yield from in_place(path / role / name, torch_zip(f"{step} {role} {name}", size=200))
        yield from in_place(path / role / "huggingface" / "config.json", b'{"model_type": "qwen2"}')
    yield from in_place(path / "data.pt", torch_zip(f"{step} data", size=100))
    yield from in_place(out / TRACKER, str(step).encode())
