"""DeepSpeed by itself, and OpenRLHF: the shards of the first rank, `latest`, and the shards of others around it."""

from __future__ import annotations

from pathlib import Path

from writers.dcp import fill
from writers.kit import Steps, in_place, make_folder, remove, torch_zip


def save(
    out: Path, step: int, *, ranks: int = 1, late: int = 0, name: str = "global_step{step}", seed: str = ""
) -> Steps:
    """`late`: how many of the ranks write after the first one wrote `latest`."""
    path = out / name.format(step=step)
    seed = seed or str(step)
    yield from make_folder(path)
    yield from in_place(path / "mp_rank_00_model_states.pt", torch_zip(seed + " model"))
    shards = [f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(ranks)]
    for shard in shards[: ranks - late]:
        yield from in_place(path / shard, torch_zip(f"{seed} {shard}"))
    yield from in_place(out / "latest", path.name.encode())
    for shard in shards[ranks - late :]:
        yield from in_place(path / shard, torch_zip(f"{seed} {shard}"))


def ppo(out: Path, step: int, *, keep: int = 2, critic: bool = True, fsdp: bool = False) -> Steps:
    """Actor, then critic; the oldest of each goes first."""
    for role in ("_actor", "_critic") if critic else ("_actor",):
        yield from make_folder(out / role)
        tags = sorted(
            (path for path in (out / role).iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime_ns
        )
        for old in tags[: max(0, len(tags) - keep + 1)]:
            yield from remove(old)
        if fsdp:
            yield from fill(out / role / f"global_step{step}", f"{step} {role}")
            yield from in_place(out / role / "latest", f"global_step{step}".encode())
        else:
            yield from save(out / role, step, seed=f"{step} {role}")
