"""What was saved and does not enter the line: where it goes, and what an operator hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from relay_agent.checkpoints.aside import orphan, set_aside
from relay_agent.checkpoints.missed import Missed
from relay_agent.checkpoints.recorder import Recorder
from relay_agent.checkpoints.staging import Staged, leave_mark
from relay_agent.volume.volume import RunFolder


class Unused:
    """`was_asked_for`: whether its trainer began the save of that name as it was asked to."""

    def __init__(
        self, folder: RunFolder, recorder: Recorder, missed: Missed, was_asked_for: Callable[[str], bool]
    ) -> None:
        self._folder = folder
        self._recorder = recorder
        self._missed = missed
        self._was_asked_for = was_asked_for
        self._stuck: set[tuple[str, str]] = set()  # that something cannot be moved is told once
        self.asked_for = False
        """Whether of what is torn something was."""

    async def torn(self, staged: Staged, reason: str) -> None:
        """It never comes onto the volume; one saved after it that did makes up for it."""
        name = staged.path.name
        self.asked_for = self.asked_for or self._was_asked_for(name)
        where = await self._set_aside(name, staged.path)
        words = f"{name} is set aside in {where}" if where else f"{name} is not used"
        self._recorder.event("checkpoint.torn", f"{words}: {reason}", {"name": name})
        self._missed.add_aside(name, reason, staged.saved, where)

    async def failed(self, staged: Staged, reason: str) -> None:
        """A write or flush that failed leaves bytes that nobody can vouch for."""
        name = staged.path.name
        self._missed.add_aside(name, reason, staged.saved, await self._set_aside(name, staged.path))

    async def beside(self, staged: Staged, newest: int | None) -> None:
        """One saved after it, that of step `newest`, is published."""
        name = staged.path.name
        if await self._moved(name, orphan, staged.path):
            words = f"{name} is kept in ckpt/.orphans: step {newest}, which was saved after it, is published"
            self._recorder.event("checkpoint.orphan", words, {"name": name})

    async def whole(self, staged: Path) -> None:
        """Say so to the next attempt, that may not know how this one's trainer ended."""
        with suppress(OSError):
            await asyncio.to_thread(leave_mark, staged)

    async def _set_aside(self, name: str, staged: Path) -> str:
        """Where it lies now, in the run's folder; empty where it is still there."""
        aside = await self._moved(name, set_aside, staged)
        return str(aside.relative_to(self._folder.root)) if aside else ""

    async def _moved(self, name: str, move: Callable[[RunFolder, Path], Path], staged: Path) -> Path | None:
        try:
            return await asyncio.to_thread(move, self._folder, staged)
        except OSError as error:
            words = f"{name} cannot be moved: {error.strerror or error}"
            if (name, words) not in self._stuck:
                self._stuck.add((name, words))
                self._recorder.event("checkpoint.stuck", words)
            return None
