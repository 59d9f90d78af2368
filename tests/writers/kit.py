"""How trainers put bytes on a disk, and files of the formats that they use, made by the standard library."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

Steps = Iterator[str]


def run(writer: Steps) -> list[str]:
    """To its end; what it did."""
    return list(writer)


def in_place(path: Path, data: bytes) -> Steps:
    """Written to its name, half by half: a file of the same name is emptied first and keeps its inode."""
    with path.open("wb") as file:
        yield f"{path.name} opened"
        file.write(data[: len(data) // 2])
        file.flush()
        yield f"{path.name} half"
        file.write(data[len(data) // 2 :])
    yield f"{path.name} written"


def moved_in(path: Path, data: bytes, temporary: str = ".tmpXXXXXX") -> Steps:
    """Written under another name, in the same folder, and renamed."""
    between = path.with_name(temporary)
    with between.open("wb") as file:
        file.truncate(len(data))  # as safetensors does: its size tells nothing
        yield f"{between.name} opened"
        file.write(data[: len(data) // 2])
        file.flush()
        yield f"{between.name} half"
        file.write(data[len(data) // 2 :])
    yield f"{between.name} written"
    between.rename(path)
    yield f"{path.name} renamed"


def make_folder(path: Path) -> Steps:
    path.mkdir(parents=True, exist_ok=True)
    yield f"{path.name}/"


def remove(path: Path) -> Steps:
    """A tree, file by file, as shutil.rmtree does it."""
    for root, folders, files in os.walk(path, topdown=False):
        for name in files:
            (Path(root) / name).unlink()
            yield f"{name} removed"
        for name in folders:
            (Path(root) / name).rmdir()
    path.rmdir()
    yield f"{path.name} removed"


def numbers(seed: str, count: int = 4096) -> bytes:
    """Bytes that look like weights, other ones for each seed."""
    return random.Random(seed).randbytes(count)


def safetensors(seed: str, names: tuple[str, ...] = ("model.weight",), each: int = 2048) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for number, name in enumerate(names):
        header[name] = {"dtype": "F32", "shape": [each // 4], "data_offsets": [number * each, (number + 1) * each]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(numbers(f"{seed} {name}", each) for name in names)


def torch_zip(seed: str, outline: object = None, size: int = 2048, archive: str = "archive") -> bytes:
    """What torch.save writes: a stored zip with the outline as a pickle of protocol 2, and the numbers beside it."""
    return _torch_zip(pickle.dumps(outline or {"state": seed}, protocol=2), seed, size, archive)


@lru_cache(1000)
def _torch_zip(outline: bytes, seed: str, size: int, archive: str) -> bytes:
    """Many trainers die in as many moments of one save."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as zipped:
        for name, content in (
            ("data.pkl", outline),
            ("byteorder", b"little"),
            ("data/0", numbers(seed, size)),
            ("version", b"3\n"),
        ):
            zipped.writestr(zipfile.ZipInfo(f"{archive}/{name}"), content)  # without a time: the same bytes each time
    return data.getvalue()
