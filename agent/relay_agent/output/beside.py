"""Looks now and then into the files in which a trainer says how far it is, and tells what they add to its lines."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from relay_agent.output.follow import Follower
from relay_agent.reading.side_files import SideFiles

LOOK_EVERY = 5.0
LAST_LOOK = 5.0


class Beside:
    """Of one attempt: `folder` is its RELAY_OUTPUT_DIR."""

    def __init__(self, folder: Path, follower: Follower) -> None:
        self._files = SideFiles(folder, follower.progress.start)
        self._follower = follower
        self._looking = asyncio.Lock()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await self.look()

    async def last(self) -> None:
        """Once the trainer is gone. A volume that hangs holds nobody up for longer than LAST_LOOK."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_LOOK):
                await self.look()

    async def look(self) -> None:
        async with self._looking:
            self._follower.read_beside(await asyncio.to_thread(self._files.look))
