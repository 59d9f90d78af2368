"""The upload of a checkpoint that is under way, noted on the pod's own disk by the child that sends it.

A child may be killed at any time, and the next one be sent with a newer checkpoint: by the note it gives up what is
left behind, which would take the run's room there until the commander gives it up itself. Best effort all of it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from relay_agent.artifacts.far.commander import Commander
from relay_agent.artifacts.jobs import Put
from relay_agent.volume import own_files
from relaytui.wire.artifacts import is_upload

MAX = 4096


class Note(Struct, frozen=True):
    run_id: str
    epoch: int
    manifest: str  # of the checkpoint
    upload: str


class UnderWay:
    """Of one job. Where that has no place for a note it is in memory alone."""

    def __init__(self, commander: Commander, job: Put) -> None:
        self._commander = commander
        self._about = job.store.run_id, job.store.epoch, job.manifest
        self._path = Path(job.note) if job.note else None
        self._note = self._read()

    def _read(self) -> Note | None:
        """None where there is none of this run and lease: no other's is given up."""
        try:
            note = msgspec.json.decode((self._path and own_files.read(self._path, MAX)) or b"null", type=Note | None)
        except (msgspec.DecodeError, RecursionError):
            return None
        ours = note is not None and (note.run_id, note.epoch) == self._about[:2] and is_upload(note.upload)
        return note if ours else None

    def leave_others(self) -> None:
        """What is sent now is this job's checkpoint."""
        if self._note is not None and self._note.manifest != self._about[2]:
            self.give_up()

    def begun(self, upload: str) -> None:
        self._note = Note(*self._about, upload)
        if self._path is not None:
            with suppress(OSError):
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                own_files.replace(self._path, msgspec.json.encode(self._note))

    def give_up(self) -> None:
        if self._note is not None:
            self._commander.give_up(self._note.upload)
        self.over()

    def over(self) -> None:
        self._note = None
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
