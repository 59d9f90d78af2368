"""Notes on the volume, beside the claims, of attempts whose loss went bad: what they saved from there on is not resumed
from, whichever agent comes next, and nobody goes back for ever.

`claims/00000003.rollback` is of epoch 3, made once. The checkpoints themselves stay as they are: the claim that names
an earlier one as its base takes them off the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

import msgspec
from msgspec import Struct

from relay_agent.checkpoints.disk import SYSTEM, Disk, folder, names, read_file, write_new
from relay_agent.checkpoints.line import survey
from relay_agent.volume.volume import RunFolder, highest_claim
from relaytui.wire.ids import Count, Epoch, Id

_NOTE = re.compile(r"([0-9]{8,16})\.rollback\Z")
MAX_NOTE = 64 << 10


class Rollback(Struct, frozen=True):
    """`step`: where the loss began to be bad. `base`: the checkpoint that attempt resumed from, where not even its
    first loss was a number, so that it is none to go back to."""

    epoch: Epoch
    step: Count
    why: str
    at: float  # seconds since 1970; shown, never compared
    base: Id | None = None
    counts: bool = True  # False: the run was ended there, and did not go back


class Saved(Protocol):
    """As its manifest has it, wherever that lies."""

    @property
    def name(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def maker(self) -> int: ...


def note(run: RunFolder, rollback: Rollback, disk: Disk = SYSTEM) -> None:
    """Keep it; the first one of an epoch stays. For its holder only. OSError where the volume refuses. Blocking."""
    if rollback.epoch in notes(run):
        return
    name = f"{rollback.epoch:08d}.rollback"
    with folder(run.claims) as fd:
        with suppress(FileNotFoundError):
            disk.unlink(f".{name}.tmp", dir_fd=fd)
        write_new(disk, f".{name}.tmp", msgspec.json.encode(rollback) + b"\n", dir_fd=fd)
        disk.rename(f".{name}.tmp", name, dir_fd=fd)
        disk.fsync(fd)


def notes(run: RunFolder) -> dict[int, Rollback]:
    """By epoch; one that does not read says nothing. Blocking."""
    found: dict[int, Rollback] = {}
    try:
        with folder(run.claims) as fd:
            for name in names(fd):
                match = _NOTE.match(name)
                if match is None:
                    continue
                with suppress(OSError, msgspec.DecodeError, RecursionError):
                    read = msgspec.json.decode(read_file(fd, name, MAX_NOTE), type=Rollback)
                    if read.epoch == int(match[1]):
                        found[read.epoch] = read
    except OSError:
        return {}
    return found


def count(known: Mapping[int, Rollback]) -> int:
    """How often the run went back."""
    return sum(one.counts for one in known.values())


def is_beyond(known: Mapping[int, Rollback], manifest: Saved) -> bool:
    """Whether it was saved where the loss was bad already."""
    of_its_maker = known.get(manifest.maker)
    if of_its_maker is not None and manifest.step >= of_its_maker.step:
        return True
    return any(one.base == manifest.name for one in known.values())


def spoilt_last(run: RunFolder) -> bool:
    """Whether the latest attempt is one of these: whoever comes after it goes back. Blocking."""
    return highest_claim(run) in notes(run)


def target(run: RunFolder, epoch: int, step: int, spoilt: str | None = None) -> str | None:
    """Name of the checkpoint that a run goes back to whose loss is bad since this epoch's `step`: the newest of the
    line that was saved while it was well. `spoilt`: not that one either. Blocking."""
    known = {**notes(run), epoch: Rollback(epoch, step, "", 0.0, spoilt)}
    for sealed in survey(run).line:
        if sealed.manifest.healthy and not is_beyond(known, sealed.manifest):
            return sealed.name
    return None
