"""A place that keeps checkpoints of runs, as an attempt that begins asks for them: which there are, and one of them.

Tried again as long as it gives hope, with pauses; told as a transfer while it goes on; ended at once where the attempt
is to stop. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from relay_agent.checkpoints.tree import Cancelled
from relay_agent.outcome.stop import Stop
from relay_agent.process import say
from relay_agent.sending.backoff import full_jitter
from relay_agent.sending.protocol import Step
from relay_agent.sending.transfer import Moving
from relay_agent.sending.trouble import Trouble
from relaytui.wire.clock import Clock
from relaytui.wire.reports import Transfer
from relaytui.wire.status import TransferKind, TransferPhase

T = TypeVar("T")

LIST_TRIES = 3
LIST_WITHIN = 45.0
"""Seconds, all tries together, unless more and more comes: then it counts as one that cannot be asked."""
LEAST = 5.0
"""Seconds that a try has, at least."""
PULL_TRIES = 5
"""In a row without a byte that came."""
FIRST_PAUSE, LONGEST_PAUSE = 4.0, 60.0
"""Seconds, unless the other side says how long."""
LONGEST_WAIT = 300.0
"""Seconds that the other side may ask for, at most: who waits holds a lease, and a GPU that does nothing."""


class Source(ABC):
    """`where`: what people call it; `tell` takes what is told of a transfer."""

    event: ClassVar[str]
    """Told of what came from there."""

    def __init__(
        self, where: str, stop: Stop, clock: Clock, rng: random.Random, tell: Callable[[Transfer], None]
    ) -> None:
        self.where = where
        self._stop = stop
        self._clock = clock
        self._rng = rng
        self._tell = tell

    @abstractmethod
    async def ask(self, within: float) -> list[Step]:
        """Every checkpoint that is there, in no order; once. Trouble, after so many seconds in which nothing came."""

    @abstractmethod
    async def bring(self, step: Step, place: Path, on_progress: Callable[[int, int], None]) -> str:
        """One into `place`, where a part of it may be; the folder there that holds all of it. Once. Trouble."""

    async def steps(self) -> list[Step]:
        """Trouble; Cancelled where the attempt is to stop."""
        until = self._clock.boot() + LIST_WITHIN
        return await self._patiently(
            lambda attempt: self.ask(max(LEAST, until - self._clock.boot())), LIST_TRIES, until=until
        )

    async def pull(self, step: Step, place: Path) -> Path:
        """Trouble; Cancelled where the attempt is to stop."""
        moving = self._moving(step)

        def moved(done: int, total: int) -> None:
            moving.phase = TransferPhase.DOWNLOADING
            moving.moved(min(done, step.bytes), step.bytes)

        async def bring(attempt: int) -> str:
            moving.attempt = attempt
            return await self.bring(step, place, moved)

        try:
            done = await self._patiently(bring, PULL_TRIES, moving.further, lambda error: moving.waits(error.words))
        except Trouble as error:
            moving.ends(TransferPhase.FAILED, error.words)
            raise
        except Cancelled:
            moving.ends(TransferPhase.FAILED, "stopped; what has come stays for the next attempt")
            raise
        return Path(done)

    def placed(self, step: Step) -> None:
        """It was read again and is in its place."""
        self._moving(step).ends(TransferPhase.DONE)

    def _moving(self, step: Step) -> Moving:
        moving = Moving(TransferKind.RESTORE, self._tell, self._clock)
        moving.step, moving.name, moving.total = step.step, step.name, step.bytes
        return moving

    async def _patiently(
        self,
        work: Callable[[int], Awaitable[T]],
        tries: int,
        got_further: Callable[[], bool] = lambda: False,
        on_wait: Callable[[Trouble], None] = lambda error: None,
        until: float = math.inf,
    ) -> T:
        failed = attempt = 0
        while True:
            attempt += 1
            try:
                return await unless_stopped(self._stop, work(attempt))
            except Trouble as error:
                failed = 1 if got_further() else failed + 1
                if error.kind == "permanent" or failed >= tries:
                    raise
                pause = full_jitter(self._rng, failed - 1, FIRST_PAUSE, LONGEST_PAUSE)
                pause = pause if error.wait is None else error.wait
                if pause > LONGEST_WAIT or self._clock.boot() + pause > until:
                    again = f"; it wants to be asked again in {pause:.0f} s" if error.wait else ""
                    raise Trouble(error.code, error.words + again, error.kind) from None
                on_wait(error)
                say(f"{self.where}: {error.words}; trying again in {pause:.1f} s")
            await unless_stopped(self._stop, asyncio.sleep(pause))


async def unless_stopped(stop: Stop, work: Awaitable[T]) -> T:
    """What comes of it; Cancelled, and it is ended, where the attempt is to stop first."""
    task: asyncio.Future[Any] = asyncio.ensure_future(work)
    asked = asyncio.ensure_future(stop.asked.wait())
    try:
        await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Cancelled
        result: T = task.result()
        return result
    finally:
        for each in (task, asked):
            each.cancel()
        await asyncio.gather(task, asked, return_exceptions=True)
