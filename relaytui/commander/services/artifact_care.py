"""Looks after what is stored: reads it again where that is asked for, and sees that rows and files say the same."""

from __future__ import annotations

import asyncio
import logging
import time

from relaytui.commander.services.artifact_readings import Reading
from relaytui.commander.services.artifacts import ArtifactStore
from relaytui.commander.store.reader import Reader
from relaytui.wire.artifacts import ArtifactRow, Verified
from relaytui.wire.clock import Clock

log = logging.getLogger(__name__)

UNFINISHED_FOR = 86_400.0
"""Seconds after its last byte that an upload waits for the next one."""
UNKNOWN_FOR = 7 * 86_400.0
"""Seconds that content without a row stays. A crash leaves some, and so does a backup that is put back: what was stored
after that backup is known again once it is offered again."""
ANSWER_WITHIN = 5.0
"""Seconds that one question about a verification waits for its end."""
ASKED_AGAIN_WITHIN = 60.0
"""Seconds after a reading's end that who asked for it is told what it found; who asks later asks for another one."""
REMEMBERED = 256


class Care:
    def __init__(self, artifacts: ArtifactStore, reader: Reader, clock: Clock) -> None:
        self._artifacts = artifacts
        self._reader = reader
        self._clock = clock
        self._asked: dict[str, Reading] = {}  # readings whose end somebody still asks for

    # -- reading again -------------------------------------------------------------------------------------------

    async def verify(self, artifact: int) -> Verified:
        """Reads and hashes it anew, one at a time, and waits a moment for the end; asked again it goes on waiting.

        RelayError 404. What is damaged is no error: the row says so.
        """
        row = await self._artifacts.row(artifact)
        reading = self._asked.get(row.sha256)
        if reading is None or self._is_over(reading):
            self._asked.pop(row.sha256, None)
            while len(self._asked) >= REMEMBERED:
                del self._asked[next(iter(self._asked))]
            reading = self._asked[row.sha256] = self._artifacts.readings.begin(row.sha256, row.size)
        assert reading.task is not None
        await asyncio.wait([reading.task], timeout=ANSWER_WITHIN)
        if not reading.task.done():
            return Verified(row, reading.hashed, over=False)
        self._asked.pop(row.sha256, None)
        reading.task.result()
        return Verified(await self._artifacts.row(artifact), reading.hashed, over=True)

    def _is_over(self, reading: Reading) -> bool:
        return reading.ended is not None and self._clock.boot() - reading.ended > ASKED_AGAIN_WITHIN

    async def doubt(self, row: ArtifactRow) -> None:
        """Who fetched it got other bytes: it is read again where it lies."""
        if not row.damaged:
            await self._artifacts.readings.doubt(row.sha256, row.size)

    # -- rows and files ------------------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """What nobody finishes goes, and files of nobody; rows whose content is missing say so."""
        await self._drop_unfinished()
        await self._drop_unknown()
        await self._mark_missing()

    async def _drop_unfinished(self) -> None:
        uploads, content = self._artifacts.uploads, self._artifacts.content
        now = self._clock.wall()
        for coming in list(uploads.coming.values()):
            if now - max(coming.touched, coming.upload.begun_at) > UNFINISHED_FOR and not coming.lock.locked():
                log.info("an upload of %s for run %s was never finished", coming.upload.name, coming.upload.run_id)
                async with coming.lock:
                    if coming.upload.upload in uploads.coming:
                        await self._artifacts.drop(coming)
        for name in await uploads.in_thread(content.parts):
            if name not in uploads.coming:
                await uploads.in_thread(content.part(name).remove)

    async def _drop_unknown(self) -> None:
        artifacts = self._artifacts
        known = {sha256 for sha256, *_ in await self._reader.contents()}
        old = time.time() - UNKNOWN_FOR  # a file's own times are the system's
        found = await artifacts.uploads.in_thread(lambda: list(artifacts.content.contents()))
        await artifacts.collect([name for name, touched in found if name not in known and touched < old])

    async def _mark_missing(self) -> None:
        for sha256, size, whole in await self._reader.contents():
            if whole and not await self._has(sha256, size):
                await self._artifacts.is_lost(sha256, size)

    async def _has(self, sha256: str, size: int) -> bool:
        return await self._artifacts.uploads.in_thread(lambda: self._artifacts.content.has(sha256, size))
