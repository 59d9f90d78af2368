"""How an attempt stands, in state.json, for people: written by the run's latest holder alone."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from relay_agent.attempt.tenure import Tenure
from relay_agent.volume.journal import Journal
from relay_agent.volume.volume import RunFolder, highest_claim

VOLUME_ANSWERS = 5.0
"""Seconds to wait for the volume's word on who holds the run, where it decides only what a file for people says."""


class Standing:
    def __init__(self, folder: RunFolder, epoch: int, tenure: Tenure, journal: Journal) -> None:
        self._folder = folder
        self._epoch = epoch
        self._tenure = tenure
        self._journal = journal
        self._ended = False

    async def is_now(self, status: str, exit_code: int | None = None) -> None:
        """It is the successor's once there is one. With an exit code it is the last word."""
        self._ended = self._ended or exit_code is not None
        if not self._tenure.held:
            return
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(VOLUME_ANSWERS):
                if await asyncio.to_thread(highest_claim, self._folder) > self._epoch:
                    return
        if exit_code is not None or not self._ended:
            self._journal.state(status, exit_code)
