"""Keeps a backup of each day, a bounded history and orderly artifacts, beside the commander's work, not in its way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from relaytui.commander.services import endings
from relaytui.commander.services.core import Core
from relaytui.commander.store import history
from relaytui.commander.store.backup import back_up, is_due
from relaytui.wire.errors import RelayError
from relaytui.wire.text import sayable

T = TypeVar("T")
log = logging.getLogger(__name__)

LOOK_EVERY = 600.0
FIRST_LOOK = 5.0
"""Seconds from one look to the next while there is nothing to lose yet: the first backup is made of the first grant."""
MAX_HISTORY = 200_000
"""Events that are kept: each start reads them all."""
TRIM_BATCH = 1_000
"""Events that go in one transaction: what else is written waits no longer than for that."""
LEAVE_WITHIN = 0.5
"""Seconds that a stop waits for a backup on its way; what is left of one that takes longer goes another day."""


class Keeper:
    """`run()` for as long as the commander serves."""

    def __init__(self, core: Core, state: Path, kept: int = MAX_HISTORY) -> None:
        self._core = core
        self._state = state
        self._kept = kept
        self._said = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self) -> None:
        core = self._core
        while True:
            begun = bool(core.board.runs)  # what is granted after this is seen by the next look
            for keep in (self.backup_if_due, self.trim, core.room.make, core.care.sweep):
                try:
                    await keep()
                except Exception as error:  # noqa: BLE001 - a disk that fails today is no reason to look no more tomorrow
                    log.error("%s", error)
            await asyncio.sleep(LOOK_EVERY if begun else FIRST_LOOK)

    async def backup_if_due(self) -> None:
        """Makes one where the newest is older than a day and there is something to lose; a failure is said once."""
        at = self._core.clock.wall()
        if not self._core.board.runs or not await _in_thread(lambda: is_due(self._state, at)):
            return
        self._idle.clear()
        try:
            made = await _in_thread(lambda: back_up(self._state, at))
        except RelayError as error:
            log.error("no backup was made: %s", sayable(str(error)))
            if not self._said:
                self._said = True
                message = error.message
                await self._core.relay.run(
                    lambda tx: history.add_event(tx, at, "commander.backup_failed", endings.COMMANDER, message)
                )
            return
        finally:
            self._idle.set()
        self._said = False
        log.info("backup: %s", sayable(str(made)))

    async def trim(self) -> None:
        """The oldest events go, a few at a time."""
        events = self._core.board.events
        upto = events[-1].id - self._kept if events else 0
        left = upto > 0
        while left:
            gone = await self._core.relay.run(lambda tx: history.trim_events(tx, upto, TRIM_BATCH))
            self._core.board.events_ever -= gone
            left = gone > 0

    async def leave(self, task: asyncio.Task[None]) -> None:
        """Ends `run()`, after a moment for what is on its way."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), LEAVE_WITHIN)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _in_thread(work: Callable[[], T]) -> T:
    """Its result, from a thread that no stop has to wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as failure:  # noqa: BLE001 - it is raised where the result is waited for
            error = failure
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=run, name="backup", daemon=True).start()
    return await future
