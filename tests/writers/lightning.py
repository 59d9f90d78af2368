"""Lightning: a file that is moved in, or copied in where it comes from another filesystem; or a folder of shards."""

from __future__ import annotations

from pathlib import Path

from writers.dcp import fill
from writers.deepspeed import save as deepspeed
from writers.kit import Steps, in_place, make_folder, moved_in, torch_zip


def content(step: int) -> bytes:
    outline = {"epoch": step // 10, "global_step": step, "pytorch-lightning_version": "2.6.6", "state_dict": {}}
    return torch_zip(str(step), outline)


def save(
    out: Path, step: int, *, name: str = "epoch={epoch}-step={step}.ckpt", last: bool = False, copied: bool = False
) -> Steps:
    """`last`: then the same once more as last.ckpt."""
    yield from make_folder(out)
    way = in_place if copied else moved_in
    if name:
        yield from way(out / name.format(step=step, epoch=step // 10), content(step))
    if last:
        yield from way(out / "last.ckpt", content(step))


def sharded(out: Path, step: int, *, strategy: str = "fsdp", ranks: int = 2) -> Steps:
    path = out / f"epoch={step // 10}-step={step}.ckpt"
    yield from make_folder(path)
    if strategy == "fsdp":
        yield from fill(path, str(step), ranks)
        yield from in_place(path / "meta.pt", torch_zip(str(step)))
    else:
        yield from deepspeed(path, step, ranks=ranks, name="checkpoint")
