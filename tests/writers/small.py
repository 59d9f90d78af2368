"""Trainers that count epochs or save small things: Ultralytics, Keras, and Orbax for JAX."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

from writers.kit import Steps, in_place, make_folder, numbers, torch_zip


def ultralytics(out: Path, step: int, *, run: str = "train", best: bool = True, final: bool = False) -> Steps:
    """After `step` epochs. `final`: as it rewrites them at the end, without an optimizer."""
    weights = out / run / "weights"
    yield from make_folder(weights)
    if not (out / run / "args.yaml").exists():
        yield from in_place(out / run / "args.yaml", b"task: detect\n")
    outline = {"epoch": -1 if final else step - 1, "best_fitness": 0.5, "optimizer": None, "train_args": {"epochs": 9}}
    for name in ("last.pt", "best.pt") if best else ("last.pt",):
        yield from in_place(weights / name, torch_zip(f"{step} {final}", outline, archive="last"))


def hdf5(seed: str, size: int = 3000) -> bytes:
    """A superblock that says how long the file is, and something behind it."""
    head = bytearray(b"\x89HDF\r\n\x1a\n" + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + bytes(80))
    head[40:48] = struct.pack("<Q", size)
    return bytes(head) + numbers(seed, size - len(head))


def keras(out: Path, step: int, *, name: str = "ck-{step:02d}.keras") -> Steps:
    path = out / name.format(step=step)
    yield from make_folder(out)
    if path.suffix == ".h5":
        yield from in_place(path, hdf5(str(step)))
        return
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for member, content in (
            ("metadata.json", b'{"keras_version": "3.15.1"}'),
            ("config.json", json.dumps({"class_name": "Sequential", "step": step}).encode()),
            ("model.weights.h5", hdf5(str(step))),
        ):
            archive.writestr(zipfile.ZipInfo(member), content)  # without a time: the same bytes each time
    yield from in_place(path, data.getvalue())


def backup(out: Path, step: int, *, folder: str = "backup") -> Steps:
    """BackupAndRestore: one name, written over."""
    yield from make_folder(out / folder)
    yield from in_place(out / folder / "latest.weights.h5", hdf5(str(step)))
    yield from in_place(out / folder / "training_metadata.json", json.dumps({"epoch": step, "batch": 0}).encode())


def orbax(out: Path, step: int, *, slow: bool = False, prefix: str = "", committed: bool = True) -> Steps:
    """`slow`: on a mount where a folder is renamed file by file, each copied before the old one goes."""
    path = out / f"{prefix}{step}"
    between = out / f"{prefix}{step}.orbax-checkpoint-tmp-17"
    yield from make_folder(between / "default" / "d")
    told = {"item_handlers": {"default": "handler"}, "init_timestamp_nsecs": 1, "commit_timestamp_nsecs": None}
    yield from in_place(between / "_CHECKPOINT_METADATA", json.dumps(told).encode())
    yield from in_place(between / "default" / "_METADATA", b'{"tree_metadata": {}}')
    yield from in_place(between / "default" / "d" / "0f3c", numbers(f"{step}", 3000))
    yield from in_place(between / "default" / "manifest.ocdbt", numbers(f"{step} manifest", 200))
    if committed:
        told["commit_timestamp_nsecs"] = 2
        yield from in_place(between / "_CHECKPOINT_METADATA", json.dumps(told).encode())
    if not slow:
        between.rename(path)
        yield f"{path.name} renamed"
        return
    files = [file for file in sorted(between.rglob("*")) if file.is_file()]
    for file in files:
        target = path / file.relative_to(between)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
        yield f"{file.name} copied"
        file.unlink()
    for below in sorted(between.rglob("*"), reverse=True):
        below.rmdir()
    between.rmdir()
    yield f"{between.name} removed"
