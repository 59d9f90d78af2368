"""Which saves of an attempt have begun: by when its trainer is asked to stop, and by when it is asked to save."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

from relay_agent.checkpoints.answers import Answers, There, goes_on
from relay_agent.checkpoints.disk import folder, names
from relay_agent.checkpoints.staging import OURS, STEP, StagingWatch
from relay_agent.checkpoints.taking import Taking
from relay_agent.checkpoints.tree import Torn, walk
from relay_agent.checkpoints.watching import Settling
from relay_agent.volume.volume import RunFolder, claimed_at
from relaytui.wire.text import clean

ASKED = ".asked"
"""A file that is there for a moment: by the volume's own clock, that of an order."""
LISTED_WITHIN = 0.25
"""Seconds that SIGTERM waits for a look at which saves have begun."""
TOLD_WITHIN = 2.0
"""Seconds that an order to save waits for such a look. While it goes on, nothing that is published is its answer."""


class _Any:
    def __contains__(self, name: object) -> bool:
        return True


ANY = _Any()


class Begun:
    """Of the attempt `epoch`. `settle`: how long what is taken from the trainer's own folder has to keep still."""

    def __init__(
        self, folder: RunFolder, epoch: int, watch: StagingWatch, taking: Taking | None, settle: float
    ) -> None:
        self._folder = folder
        self._epoch = epoch
        self._staging = folder.staging(epoch)
        self._watch = watch
        self._taking = taking
        self._settle = settle
        self._listing: asyncio.Task[None] | None = None
        self._asked = 0
        self.answers = Answers()
        self.at_stop: Container[str] | None = None
        """By their names in the staging folder; None: its trainer was not asked to stop."""
        self.heeded = False
        """It was seen to take the wish for a checkpoint."""
        self.publishing = ""
        """What is on its way out of there, by that name."""

    async def trainer_stops(self) -> None:
        """Right before it is asked to. A volume that does not answer is not waited for; then any of them may be cut."""
        if self.at_stop is not None:
            return
        self.at_stop = ANY
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(LISTED_WITHIN):
                self.at_stop = frozenset(await asyncio.to_thread(_listed, self._staging))

    async def asked_to_save(self) -> None:
        """Right before its trainer is: what has begun by then is no answer."""
        self.answers.asked()
        self._asked += 1
        if self._listing is None:
            self._listing = asyncio.create_task(self._list(), name="list")
        await asyncio.wait({self._listing}, timeout=TOLD_WITHIN)

    def was_asked_for(self, name: str) -> bool:
        """Whether that save was begun after its trainer took such a wish, or was asked to stop."""
        return (self.heeded and self.answers.is_new(name)) or (self.at_stop is not None and name not in self.at_stop)

    @property
    def awaited(self) -> str:
        """In words, what was begun after that and has yet to keep still; empty where there is none."""
        seconds = dict.fromkeys(self._watch.waiting, self._watch.stillness)
        seconds |= dict.fromkeys(self._taking.waiting if self._taking else (), self._settle)
        for name, still in seconds.items():
            if self.answers.is_new(name):
                return f"{clean(name, 128)} is there; it is whole once nothing in it changed for {still:g} s"
        return ""

    async def began_before(self, staged: Path, last: int) -> bool:
        """Whether what is about to be published was begun before the last order, however it was called then. `last`:
        when that before it was saved."""
        if not self.answers.wanted:
            return False
        return await asyncio.to_thread(self._began_before, staged, last)

    def _began_before(self, staged: Path, last: int) -> bool:
        with suppress(OSError, Torn), folder(staged) as fd:
            files = [(found.mtime_ns, found.size) for found in walk(fd, ignore=OURS).files]
            since = max(last, claimed_at(self._folder, self._epoch))
            return self.answers.is_older(os.fstat(fd).st_ino, files, since)
        return False

    def settling(self) -> list[Settling]:
        """What has yet to keep still, in the order of saving."""
        found = self._watch.settling() + (self._taking.settling() if self._taking else [])
        return sorted(found, key=lambda each: each.saved_at)

    async def _list(self) -> None:
        """First where they come from: what is taken meanwhile is seen where it goes to."""
        try:
            asked = 0
            while asked != self._asked:  # or it was asked once more meanwhile
                asked = self._asked
                at = await asyncio.to_thread(_now, self._staging)
                own = await asyncio.to_thread(self._taking.pending) if self._taking else There()
                staged = await asyncio.to_thread(_listed, self._staging)
                inodes = await asyncio.to_thread(_folders, self._staging) if self._folder.atomic else set[int]()
            begun = {name for name in staged if STEP.match(name) or goes_on(name)} | {self.publishing}
            self.answers.begun(own, There(begun, inodes), at)
        except OSError:  # the looks say what is wrong with the volume
            pass
        finally:
            self._listing = None


def _listed(root: Path) -> list[str]:
    try:
        return names(root)
    except FileNotFoundError:
        return []


def _folders(root: Path) -> set[int]:
    """Inodes of those in the staging folder, whatever they are called: a name changes, that does not."""
    with suppress(FileNotFoundError), os.scandir(root) as entries:
        return {entry.inode() for entry in entries if entry.is_dir(follow_symlinks=False)}
    return set()


def _now(root: Path) -> int:
    """By the clock of the volume, in nanoseconds; 0 where it takes no file."""
    try:
        fd = os.open(root / ASKED, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.utime(fd)
            return os.fstat(fd).st_mtime_ns
        finally:
            os.close(fd)
            (root / ASKED).unlink()
    except OSError:
        return 0
