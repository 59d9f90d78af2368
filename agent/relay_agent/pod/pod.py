"""What an agent keeps on the pod's own disk, one folder an attempt: who runs it, its spool, its guardian's word.

A note is bound to this boot, this container and this very folder: a copied folder is a new incarnation, and takes
nothing over (design §4.9). Notes hold tokens: every folder and file here is its user's alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from relay_agent import guardian
from relay_agent.checkpoints.disk import SYSTEM, Disk, remove_tree, sync_folder, write_new
from relay_agent.volume.sealed import Altered, opened, seal
from relaytui.wire.bounds import Token
from relaytui.wire.clock import Clock
from relaytui.wire.codec import decode, encode
from relaytui.wire.errors import RelayError
from relaytui.wire.ids import Epoch, Id, Seq
from relaytui.wire.messages import RunConfig

VERSION = 2
NOTE, DONE = "attempt.json", "done"
GONE = ".gone."
"""In the name of a folder that is forgotten, while it is cleared away."""
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
    started: bool = True
    """False: noted with the grant; there is no trainer yet."""
    line: Seq = 1
    """The number of the first line that this trainer printed: another one of the same attempt may have been before."""

    def __repr__(self) -> str:
        return f"Note(run_id={self.run_id!r}, epoch={self.epoch})"  # no token


class _Unsealed(Note, frozen=True, forbid_unknown_fields=True):
    """As notes were before they had a sum: what has a field more has lost it."""


class Pod:
    def __init__(self, root: Path, clock: Clock, disk: Disk = SYSTEM) -> None:
        self.root = root
        self._clock = clock
        self._disk = disk
        self._lock = -1

    def hold(self, run_id: str) -> bool:
        """Be the one agent of this run here that takes over what others left, until this process ends. False: another
        is. Where the pod's disk takes no lock there is nothing to take over either."""
        try:
            folder = self.root / "runs" / run_id
            self._private(folder)
            fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | guardian.OURS, 0o600)
        except OSError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            return error.errno != errno.EWOULDBLOCK
        self._lock = fd
        for left in folder.glob(f"*{GONE}*"):
            with suppress(OSError):
                remove_tree(self._disk, left)
        return True

    def folder(self, run_id: str, epoch: int) -> Path:
        return self.root / "runs" / run_id / f"e{epoch:08d}"

    def make_folder(self, run_id: str, epoch: int) -> Path:
        """For one attempt, nobody else's to read. OSError where the pod's disk refuses."""
        folder = self.folder(run_id, epoch)
        self._private(folder)
        folder.chmod(0o700)
        return folder

    def _private(self, folder: Path) -> None:
        """Makes the folder, and what is missing of the way to it, for its user alone; on the disk when this returns."""
        for path in (*reversed(folder.parents), folder):
            if path.is_dir():
                continue
            with suppress(FileExistsError):
                self._disk.mkdir(path, 0o700)
            sync_folder(self._disk, path.parent)

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
        try:
            write_new(self._disk, temporary, seal(encode(note)), mode=0o600)
            self._disk.rename(temporary, folder / NOTE)
        except OSError:
            with suppress(OSError):
                self._disk.unlink(temporary)
            raise
        sync_folder(self._disk, folder)

    def done(self, folder: Path) -> None:
        """How the attempt ended is in its spool: nothing but that is left to do for it."""
        with suppress(OSError):
            os.close(self._disk.create(folder / DONE, mode=0o600))

    def forget(self, folder: Path) -> None:
        """The attempt is over and all of its reports are delivered. Under its name it is gone in one step: half of it
        would look like an attempt to take over."""
        gone = folder.with_name(f"{folder.name}{GONE}{os.urandom(4).hex()}")
        with suppress(OSError):
            self._disk.rename(folder, gone)
            remove_tree(self._disk, gone)
            folder.parent.rmdir()

    def aside(self, folder: Path) -> None:
        """Kept for whoever wants to look, out of the way of what comes under its name."""
        with suppress(OSError):
            self._disk.rename(folder, folder.with_name(f"{folder.name}.damaged.{os.urandom(4).hex()}"))

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
        return _read(folder)
    except (OSError, RelayError, Altered):
        return None


def unread(folder: Path) -> str:
    """Why `read_note` gives none, in words."""
    try:
        _read(folder)
    except FileNotFoundError:
        return "an earlier agent died there before it noted whose attempt it was"
    except Altered as altered:
        return f"what an earlier agent noted there is damaged: {altered}"
    except (OSError, RelayError):
        pass
    return "what an earlier agent noted there cannot be read, or another version wrote it"


def _read(folder: Path) -> Note | None:
    fd = os.open(folder / NOTE, os.O_RDONLY | guardian.OURS)
    try:
        if not guardian.is_plain(fd):
            return None
        data = os.read(fd, MAX_NOTE)
    finally:
        os.close(fd)
    body = opened(data)
    note = decode(data, _Unsealed) if body is None else decode(body, Note)
    return note if note.version == VERSION else None


def start_of(pid: int) -> int:
    """Start time in ticks, 0 where it does not run or nobody can tell."""
    try:
        return guardian.processes().get(pid, (0, 0))[1]
    except OSError:
        return 0
