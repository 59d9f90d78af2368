"""Contents read again where they lie: one at a time, in threads, and what was found whole is believed for a while.

A disk may turn a bit at any time; a file that says that nothing touched it may have. So what is offered again is read
before it counts as stored, and so is what somebody got other bytes of. What was read, or hashed as it came, is not read
again within `BELIEVED_FOR`, as long as the file is the one that it was.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable

from relaytui.commander.services.uploads import Uploads
from relaytui.commander.store.content import SLICE, Content, Sight, sight_of
from relaytui.wire.clock import Clock
from relaytui.wire.errors import RelayError

GONE = "its content is missing, or cut off"
BELIEVED_FOR = 3_600.0
"""Seconds."""
DOUBTED_AFTER = 60.0
"""Seconds after a reading that a doubt is worth another one."""
BEGIN_WITHIN = 20.0
"""Seconds that who offers a content waits for its reading; asked again, the reading has gone on."""
REMEMBERED = 1_024
TRIES = 3
"""Readings in a row of a file that gives way to another one, each time, before its end: then nothing is said of it."""

Found = Callable[[str, str, Sight | None], Awaitable[bool]]
"""(sha256, why it is damaged or "", the file that was read); False where that is not what is there now."""


class Reading:
    """One content on its way through the hash."""

    def __init__(self) -> None:
        self.hashed = 0
        self.task: asyncio.Task[str] | None = None
        self.ended: float | None = None
        """On the boot clock."""


class Readings:
    """`found`: told of each content that was read."""

    def __init__(self, uploads: Uploads, clock: Clock, found: Found) -> None:
        self._in_thread = uploads.in_thread
        self._content: Content = uploads.content
        self._clock = clock
        self._found = found
        self._going: dict[str, Reading] = {}
        self._whole: dict[str, tuple[Sight, float]] = {}  # of each: as it was seen, and when
        self._one = asyncio.Lock()

    def close(self) -> None:
        for reading in self._going.values():
            if reading.task is not None:
                reading.task.cancel()

    def begin(self, sha256: str, size: int) -> Reading:
        """One that goes on, or a new one. Its task gives why the content is damaged, or ""."""
        reading = self._going.get(sha256)
        if reading is None or reading.task is None or reading.task.done():
            reading = self._going[sha256] = Reading()
            reading.task = asyncio.create_task(self._read(sha256, size, reading))
            reading.task.add_done_callback(lambda task: self._over(sha256, task))
        return reading

    def _over(self, sha256: str, task: asyncio.Task[str]) -> None:
        reading = self._going.get(sha256)
        if reading is not None and reading.task is task:
            del self._going[sha256]
        if not task.cancelled():
            task.exception()  # whoever waits has it; nobody may

    async def believed(self, sha256: str, within: float | None = None) -> bool:
        """It was read, or came, within that time, and nothing has touched its file since."""
        seen, at = self._whole.get(sha256, (None, 0.0))
        within = BELIEVED_FOR if within is None else within
        if seen is None or self._clock.boot() - at > within:
            return False
        return await self._in_thread(lambda: self._content.sight(sha256)) == seen

    async def came(self, sha256: str) -> None:
        """It was hashed on its way to its place."""
        self._believe(sha256, await self._in_thread(lambda: self._content.sight(sha256)))

    async def see(self, sha256: str, size: int) -> None:
        """Read, unless it is believed. RelayError 503 `busy` where that takes long: it goes on."""
        if await self.believed(sha256):
            return
        task = self.begin(sha256, size).task
        assert task is not None
        await asyncio.wait([task], timeout=BEGIN_WITHIN)
        if not task.done():
            words = "its bytes are here, and are being read again before they count as stored"
            raise RelayError("busy", words, "ask again in a moment", status=503)
        task.result()

    async def doubt(self, sha256: str, size: int) -> None:
        """Somebody got other bytes: read it in the background, unless that has just been done."""
        if not await self.believed(sha256, DOUBTED_AFTER):
            self.begin(sha256, size)

    def _believe(self, sha256: str, seen: Sight | None) -> None:
        self._whole.pop(sha256, None)
        if seen is not None:
            self._whole[sha256] = seen, self._clock.boot()
            while len(self._whole) > REMEMBERED:
                del self._whole[next(iter(self._whole))]

    async def _read(self, sha256: str, size: int, reading: Reading) -> str:
        async with self._one:
            try:
                return await self._read_what_is_there(sha256, size, reading)
            finally:
                reading.ended = self._clock.boot()

    async def _read_what_is_there(self, sha256: str, size: int, reading: Reading) -> str:
        for _ in range(TRIES):
            wrong, seen = await self._wrong(sha256, size, reading)
            if await self._found(sha256, wrong, seen):
                self._believe(sha256, None if wrong else seen)
                return wrong
        return "its file was another one each time that it was read"

    async def _wrong(self, sha256: str, size: int, reading: Reading) -> tuple[str, Sight | None]:
        """Why it is damaged, or "", and the file that this is said of."""
        digest, reading.hashed = hashlib.sha256(), 0
        seen = await self._in_thread(lambda: self._content.sight(sha256))
        try:
            file = await self._in_thread(lambda: self._content.open(sha256))
        except OSError as error:
            return f"it cannot be read: {error.strerror}", seen
        if file is None:
            return GONE, seen
        with file:
            seen = sight_of(os.fstat(file.fileno()))

            def more() -> int:
                data = file.read(SLICE)
                digest.update(data)
                return len(data)

            try:
                while count := await self._in_thread(more):
                    reading.hashed += count
            except OSError as error:
                return f"it cannot be read: {error.strerror}", seen
        if reading.hashed != size:
            return f"it has {reading.hashed} of {size} bytes", seen
        whole = hmac.compare_digest(digest.hexdigest(), sha256)
        return "" if whole else "its bytes are not what they were", seen
