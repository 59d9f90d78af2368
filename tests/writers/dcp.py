"""torch.distributed.checkpoint and torchtitan: each rank its pieces in one file, `.metadata` renamed in at the end."""

from __future__ import annotations

import pickle
from pathlib import Path

from writers.kit import Steps, in_place, make_folder, moved_in, torch_zip


def shards(seed: str, ranks: int = 2, pieces: int = 3) -> dict[str, bytes]:
    """`.distcp` files by name, and the `.metadata` that lists their pieces. Every piece is an archive of its own."""
    files: dict[str, bytes] = {}
    listed = {}
    for rank in range(ranks):
        name, data = f"__{rank}_0.distcp", b""
        for piece in range(pieces):
            archive = torch_zip(f"{seed} {rank} {piece}", size=300 + 40 * piece)
            listed[f"layer.{rank}.{piece}"] = {"relative_path": name, "offset": len(data), "length": len(archive)}
            data += archive
        files[name] = data
    state = {"state_dict_metadata": dict.fromkeys(listed, "tensor"), "planner_data": 7, "storage_data": listed}
    return files | {".metadata": pickle.dumps(state, protocol=4)}


def fill(path: Path, seed: str, ranks: int = 2) -> Steps:
    """One folder of it. One that is written over loses its `.metadata` just before the new one comes."""
    files = shards(seed, ranks)
    metadata = files.pop(".metadata")
    yield from make_folder(path)
    for name, data in files.items():
        yield from in_place(path / name, data)
    if (path / ".metadata").exists():
        (path / ".metadata").unlink()
        yield ".metadata removed"
    yield from moved_in(path / ".metadata", metadata, ".metadata.tmp")


def save(out: Path, step: int, *, ranks: int = 2, seed: str = "") -> Steps:
    """torchtitan."""
    yield from fill(out / f"step-{step}", seed or str(step), ranks)
