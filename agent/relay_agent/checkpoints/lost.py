"""A volume that is lost under an attempt, and is back: each is told, every time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from relay_agent.checkpoints.recorder import Recorder
from relay_agent.process import say
from relay_agent.volume.mounted import past
from relay_agent.volume.volume import RunFolder, highest_claim


class Lost:
    """Of the attempt `epoch`. `on_fenced`: somebody else has the run."""

    def __init__(self, folder: RunFolder, epoch: int, recorder: Recorder, on_fenced: Callable[[], None]) -> None:
        self._folder = folder
        self._epoch = epoch
        self._recorder = recorder
        self._on_fenced = on_fenced
        self.what = ""
        """What is missing of it, in words; nothing while it is there."""

    async def note(self, lost: str, cleared: bool = False) -> bool:
        """`lost`: what is missing now, or nothing; `cleared`: our staging folder is not there, by whomever. False where
        somebody else has the run: it is theirs."""
        replaced = await asyncio.to_thread(self._replaced) if lost or cleared else False
        if replaced:
            self._on_fenced()
            return False
        before, self.what = self.what, lost
        if lost and not before:
            self._recorder.event("volume.lost", f"{lost}; what is saved now is not published until it is back")
            say(f"the volume is lost: {lost}; training goes on, what is saved now is not published")
        elif before and not lost:
            words = f"the volume is back ({past(before)}); what is saved is published again"
            self._recorder.event("volume.back", words)
            say(words)
        return True

    def _replaced(self) -> bool:
        """Whoever claimed the run after us clears our staging folder."""
        try:
            return highest_claim(self._folder) > self._epoch
        except OSError:
            return False
