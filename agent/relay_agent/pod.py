"""What an agent keeps on the pod's own disk, one folder an attempt: who runs it, its spool, its guardian's word.

A note is bound to this boot, this container and this very folder: a copied folder is a new incarnation, and takes
nothing over (design §4.9).
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from relay_agent import guardian
from relaytui.wire.bounds import Token
from relaytui.wire.clock import Clock
from relaytui.wire.codec import decode, encode
from relaytui.wire.errors import RelayError
from relaytui.wire.ids import Epoch, Id
from relaytui.wire.messages import RunConfig

VERSION = 2
NOTE, DONE = "attempt.json", "done"
MAX_NOTE = 64 << 10


class Binding(Struct, frozen=True):
    """Where a folder lies, so that a copy of it is not taken for it."""

    boot_id: str
    container: str
    folder: str


class Note(Struct, frozen=True):
    """An attempt that an agent runs, or ran, on this pod. A pid means something only with start time and boot."""

    version: int
    run_id: Id
    mode: str
    volume: str  # the run's folder
    epoch: Epoch
    token: Token
    lease_seconds: float
    config: RunConfig
    incarnation: str
    digest: str  # of the trainer's command
    trainer: str  # what to call it
    guard: str
    grace: float
    resume: str | None
    resume_step: int
    pid: int  # of the agent
    start: int
    binding: Binding

    def __repr__(self) -> str:
        return f"Note(run_id={self.run_id!r}, epoch={self.epoch})"  # no token


class Pod:
    def __init__(self, root: Path, clock: Clock) -> None:
        self.root = root
        self._clock = clock
        self._lock = -1

    def hold(self, run_id: str) -> bool:
        """Be the one agent of this run here that takes over what others left, until this process ends. False: another
        is. Where the pod's disk takes no lock there is nothing to take over either."""
        try:
            folder = self.root / "runs" / run_id
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | guardian.OURS, 0o600)
        except OSError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            return error.errno != errno.EWOULDBLOCK
        self._lock = fd
        return True

    def folder(self, run_id: str, epoch: int) -> Path:
        return self.root / "runs" / run_id / f"e{epoch:08d}"

    def make_folder(self, run_id: str, epoch: int) -> Path:
        """For one attempt, nobody else's to read. OSError where the pod's disk refuses."""
        folder = self.folder(run_id, epoch)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        return folder

    def mark(self, run_id: str, epoch: int) -> str:
        """How the guard of an attempt that lies here begins. Another pod on this machine may train the same run in the
        same epoch, for another commander: its processes are none of ours."""
        try:
            return f"{run_id}.{epoch}.{_place(self.folder(run_id, epoch))}."
        except OSError:
            return f"{run_id}.{epoch}.-."

    def binding(self, folder: Path) -> Binding:
        try:
            container = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - no real path
        except OSError:
            container = ""
        return Binding(self._clock.boot_id(), container, _place(folder))

    def write(self, folder: Path, note: Note) -> None:
        """OSError where the pod's disk refuses."""
        temporary = folder / f".{NOTE}.{os.urandom(8).hex()}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | guardian.OURS, 0o600)
        try:
            try:
                os.write(fd, encode(note))
                os.fsync(fd)
            finally:
                os.close(fd)
            temporary.replace(folder / NOTE)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise

    def done(self, folder: Path) -> None:
        """How the attempt ended is in its spool: nothing but that is left to do for it."""
        with suppress(OSError):
            (folder / DONE).touch()

    def forget(self, folder: Path) -> None:
        """The attempt is over and all of its reports are delivered."""
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()

    def aside(self, folder: Path) -> None:
        """Kept for whoever wants to look, out of the way of what comes under its name."""
        with suppress(OSError):
            folder.rename(folder.with_name(f"{folder.name}.damaged.{os.urandom(4).hex()}"))

    def notes(self) -> Iterator[tuple[Path, Note | None]]:
        """Every attempt's folder, oldest epoch first; None where its note cannot be read."""
        try:
            folders = sorted((self.root / "runs").glob("*/e????????"))
        except OSError:
            return
        for folder in folders:
            if folder.is_dir() and not folder.is_symlink():
                yield folder, read_note(folder)

    def is_here(self, folder: Path, note: Note) -> bool:
        """Whether the note was written in this very folder, container and boot."""
        with suppress(OSError):
            return self.binding(folder) == note.binding
        return False

    def agent_lives(self, note: Note) -> bool:
        """Whether the agent that wrote it still runs. Only for a note that is from here."""
        return note.pid != os.getpid() and note.start != 0 and start_of(note.pid) == note.start


def _place(folder: Path) -> str:
    found = folder.stat()
    return f"{found.st_dev}:{found.st_ino}"


def read_note(folder: Path) -> Note | None:
    """None where there is none, it is damaged, or another version wrote it."""
    try:
        fd = os.open(folder / NOTE, os.O_RDONLY | guardian.OURS)
        try:
            note = decode(os.read(fd, MAX_NOTE), Note) if guardian.is_plain(fd) else None
        finally:
            os.close(fd)
    except (OSError, RelayError):
        return None
    return note if note is not None and note.version == VERSION else None


def start_of(pid: int) -> int:
    """Start time in ticks, 0 where it does not run or nobody can tell."""
    try:
        return guardian.processes().get(pid, (0, 0))[1]
    except OSError:
        return 0
