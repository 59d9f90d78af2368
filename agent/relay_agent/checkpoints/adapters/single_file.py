"""One file that holds all, as nanoGPT and many a loop of one's own write it: `ckpt.pt`, again and again under one name.

The step is in the file (`iter_num` of nanoGPT) or its name. Such a trainer resumes from the folder that it saves to, so
the file is put there before it starts.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from relay_agent.checkpoints.adapters.base import DEPTHS, MAX_STEP, Adapter, Candidate, Memory, Plan, Put, Saved
from relay_agent.checkpoints.adapters.view import View
from relay_agent.checkpoints.disk import open_file
from relay_agent.checkpoints.formats import torch_zip
from relay_agent.checkpoints.formats.span import Span
from relay_agent.checkpoints.tree import Torn

COUNTERS = ("iter_num", "global_step", "step", "steps", "iteration", "iter", "it", "epoch")
"""Keys that hold the step, the most telling first."""
NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1", "INT")
MAX_PICKLE = 4 << 20
"""Bytes of the outline of a checkpoint that are read for its step: the tensors themselves lie beside it."""


def counters(view: View, path: str) -> dict[str, int]:
    """Whole numbers that stand under one of COUNTERS at any depth of what torch.save wrote, outermost first. Nothing is
    unpickled: the opcodes are read, not run."""
    import pickletools  # half a megabyte that most agents need never

    found: dict[str, int] = {}
    with suppress(OSError, ValueError, IndexError, OverflowError, KeyError, Torn):  # as of `pickled.opcodes`
        fd = open_file(view.root, path)
        try:
            outline = torch_zip.member(Span.of(fd), b"data.pkl", MAX_PICKLE)
        finally:
            os.close(fd)
        key = ""
        for opcode, argument, _ in pickletools.genops(io.BytesIO(outline)):
            if opcode.name in ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "FRAME", "PROTO"):
                continue
            if key and isinstance(argument, int) and opcode.name in NUMBERS and abs(argument) <= MAX_STEP:
                found.setdefault(key, int(argument))
            key = argument if isinstance(argument, str) and argument in COUNTERS else ""
    return found


def counted(view: View, path: str, key: str, memory: Memory) -> int:
    """One of the counters; read once for each save, however often one looks. -1: nothing tells; -2: it is not whole."""
    found = view.stat(path)
    if found is None or not view.is_whole_zip(path):
        return -2
    save = f"{key} {path} {found.st_mtime_ns} {found.st_size} {found.st_ino}"
    if save not in memory.numbers:
        memory.numbers[save] = counters(view, path).get(key, -1)
    return memory.numbers[save]


@dataclass(frozen=True)
class SingleFile(Adapter):
    def find(self, view: View, memory: Memory) -> Iterator[Candidate]:
        for found in super().find(view, memory):
            place = found.path.rpartition("/")[0]
            # Ultralytics writes its own in a way of its own.
            if place.rpartition("/")[2] != "weights" or not view.has(
                f"{place.rpartition('/')[0]}/args.yaml".lstrip("/")
            ):
                yield found

    def step(self, view: View, candidate: Candidate) -> int | None:
        if candidate.step is not None:
            return candidate.step
        found = counters(view, candidate.path)
        return next((found[key] for key in COUNTERS if found.get(key, -1) >= 0), None)

    def plan(self, saved: Saved) -> Plan:
        path = saved.files[0] if saved.files else ""
        return Plan(
            path=f"{{ckpt}}/{path}".rstrip("/"),
            args=self.resume.args,
            seeds=tuple(Put(each, each) for each in saved.files),
        )


ADAPTER = SingleFile(
    "single_file",
    r"(?:ckpt|checkpoint|snapshot|state|latest|last)(?:[-_](?:iter|step)?[-_=]?(?P<step>[0-9]{1,15}))?\.(?:pt|pth|tar|bin)",
    places=DEPTHS[:3],
    is_file=True,
    end_tells=True,
    in_place=True,
    resume=Plan(args=("--init_from=resume",)),
)
