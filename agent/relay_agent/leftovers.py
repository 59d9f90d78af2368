"""What an agent that was killed left on this pod: found by the marker it noted, stopped before anything else starts."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from relay_agent import guardian
from relay_agent.supervise import stop_leftovers
from relaytui.wire.clock import Clock
from relaytui.wire.codec import decode, encode
from relaytui.wire.errors import RelayError

MAX_NOTE = 64 << 10


class Note(Struct, frozen=True):
    """The agent that runs, or ran, a run's trainer on this pod; a pid means something only with start time and boot."""

    run_id: str
    epoch: int
    guard: str
    pid: int
    start: int
    boot_id: str


def write_note(folder: Path, run_id: str, epoch: int, guard: str, clock: Clock) -> None:
    """Before the trainer starts. OSError where the pod's disk refuses."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    note = Note(run_id, epoch, guard, os.getpid(), _start_of(os.getpid()), clock.boot_id())
    temporary = folder / f".{run_id}.{os.urandom(8).hex()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | guardian.OURS, 0o600)
    try:
        try:
            os.write(fd, encode(note))
        finally:
            os.close(fd)
        temporary.replace(folder / f"{run_id}.json")
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def forget(folder: Path, run_id: str, guard: str) -> None:
    """The trainer's tree is gone; unless somebody else has noted theirs meanwhile."""
    note = _read(folder / f"{run_id}.json")
    if note is not None and note.guard == guard:
        with suppress(OSError):
            (folder / f"{run_id}.json").unlink()


def clean_up(folder: Path, run_id: str, clock: Clock) -> int:
    """Stop what an earlier agent of this run left on this pod; how many processes there were. Blocking.

    An agent that still runs keeps its trainer: the commander decides between the two.
    """
    note = _read(folder / f"{run_id}.json")
    if note is None or note.boot_id != clock.boot_id():
        return 0
    if note.pid != os.getpid() and note.start and _start_of(note.pid) == note.start:
        return 0
    found = stop_leftovers(note.guard)
    forget(folder, run_id, note.guard)
    return found


def _read(path: Path) -> Note | None:
    try:
        fd = os.open(path, os.O_RDONLY | guardian.OURS)
        try:
            return decode(os.read(fd, MAX_NOTE), Note) if guardian.is_plain(fd) else None
        finally:
            os.close(fd)
    except (OSError, RelayError):
        return None


def _start_of(pid: int) -> int:
    """Start time in ticks, 0 where it does not run or nobody can tell."""
    try:
        return guardian.processes().get(pid, (0, 0))[1]
    except OSError:
        return 0
