"""What a trainer prints, in order and whole: as its guardian passes it on, and what that left out from the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from relay_agent import guardian
from relay_agent.output import printed

CATCH_UP = 4 << 20
"""Bytes an agent may lag behind its trainer; of more, all but the last chunk is only counted."""
AT_ONCE, LEAST = 64 << 10, 1 << 10
"""Bytes that are heard in a row before others have their turn, and what a message counts for at least."""
LOG_WAIT = 5.0
"""Seconds to wait for bytes that the guardian has yet to write to the log."""


class Hearing:
    """`on_output` gets the bytes in order from byte `seen` on, `on_skipped` how many lines and bytes were left out
    instead. `whole`: what was printed before the first word is read whole, however much it is."""

    def __init__(
        self,
        log: Path,
        on_output: Callable[[bytes], None],
        on_skipped: Callable[[int, int], None],
        seen: int,
        *,
        whole: bool,
    ) -> None:
        self._log = log
        self._on_output = on_output
        self._on_skipped = on_skipped
        self._seen = seen
        self._whole = whole
        self._in_a_row = 0

    async def hear(self, offset: int, data: bytes) -> None:
        """`data` was printed from byte `offset` on; none: all up to there was."""
        if offset < self._seen:  # part of it was read from the log already
            data = data[self._seen - offset :]
        elif offset > self._seen:
            await self._catch_up(offset)
        if data:
            self._on_output(data)
            self._seen += len(data)
            self._in_a_row += max(len(data), LEAST)
            if self._in_a_row >= AT_ONCE:  # a flood must not keep the loop from renewing
                self._in_a_row = 0
                await asyncio.sleep(0)

    async def _catch_up(self, end: int) -> None:
        """What came too fast for us is in the log: read it from there up to `end`."""
        if end - self._seen > CATCH_UP and not self._whole:
            until = end - guardian.CHUNK
            lines = await asyncio.to_thread(printed.count_lines, self._log, self._seen, until)
            self._on_skipped(lines, until - self._seen)
            self._seen = until
        self._whole = False
        now = asyncio.get_running_loop().time
        give_up = now() + LOG_WAIT
        while self._seen < end:
            data = await asyncio.to_thread(printed.read, self._log, self._seen, min(guardian.CHUNK, end - self._seen))
            if data:
                self._on_output(data)
                self._seen += len(data)
                give_up = now() + LOG_WAIT
                await asyncio.sleep(0)
            elif now() > give_up:  # the volume lost it, and the guardian said so
                self._on_skipped(0, end - self._seen)
                self._seen = end
            else:
                await asyncio.sleep(0.02)
