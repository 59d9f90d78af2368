"""A run's checkpoints on the Hub, as an attempt that begins asks for them: which there are, and one of them.

Tried again as long as the Hub gives hope, with pauses; told as a transfer while it goes on; ended at once where the
attempt is to stop. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from relay_agent.checkpoints.tree import Cancelled
from relay_agent.hub import calls
from relay_agent.hub.calls import HubError
from relay_agent.hub.protocol import Listed, ListSteps, Pull, Pulled, Step, Where
from relay_agent.outcome.stop import Stop
from relay_agent.process import say
from relaytui.wire.clock import Clock
from relaytui.wire.reports import Transfer
from relaytui.wire.status import TransferKind, TransferPhase
from relaytui.wire.text import clean

T = TypeVar("T")

LIST_TRIES = 3
PULL_TRIES = 5
"""In a row without a byte that came."""
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds; doubled from try to try, any part of it, unless the Hub says how long."""
LIST_TIMEOUT = 20.0
"""Seconds that one small request waits: a pod without a way out is not held up for minutes."""
TELL_EVERY = 1.0


class Source:
    """A repository on the Hub. `tell` takes what is told of a transfer."""

    event = "restore.hub"
    who = "the Hub"

    def __init__(
        self, where: Where, cache: str, stop: Stop, clock: Clock, rng: random.Random, tell: Callable[[Transfer], None]
    ) -> None:
        self.where = where
        self._cache = cache
        self._stop = stop
        self._clock = clock
        self._rng = rng
        self._tell = tell

    @property
    def repo(self) -> str:
        return self.where.repo

    async def steps(self) -> list[Step]:
        """Every step that has a tag there, in no order. HubError; Cancelled where the attempt is to stop."""
        return await self._patiently(lambda attempt: self.ask(), LIST_TRIES, lambda: False, lambda error, attempt: None)

    async def ask(self) -> list[Step]:
        """Once."""
        job = ListSteps(msgspec.structs.replace(self.where, timeout=min(self.where.timeout, LIST_TIMEOUT)))
        listed: Listed = await calls.call(job, Listed, cache=self._cache)
        return listed.steps

    async def pull(self, step: Step, place: Path) -> Path:
        """Bring it into `place`; the folder there that holds all of it. HubError, Cancelled."""
        transfer = _Transfer(step, self._clock, self._tell)

        async def bring(attempt: int) -> str:
            transfer.attempt = attempt
            return await self.bring(step, place, transfer.moved)

        try:
            done = await self._patiently(bring, PULL_TRIES, transfer.got_further, transfer.waits)
        except HubError as error:
            transfer.ended(TransferPhase.FAILED, error.words)
            raise
        except Cancelled:
            transfer.ended(TransferPhase.FAILED, "stopped; what has come stays for the next attempt")
            raise
        return Path(done)

    async def bring(self, step: Step, place: Path, on_progress: Callable[[int, int], None]) -> str:
        """Once."""
        job = Pull(self.where, step.run_id, step.revision, step.manifest, str(place))
        pulled: Pulled = await calls.call(job, Pulled, cache=self._cache, on_progress=on_progress)
        return pulled.folder

    def placed(self, step: Step) -> None:
        """It was read again and is in its place."""
        _Transfer(step, self._clock, self._tell).ended(TransferPhase.DONE)

    async def _patiently(
        self,
        work: Callable[[int], Awaitable[T]],
        tries: int,
        got_further: Callable[[], bool],
        on_wait: Callable[[HubError, int], None],
    ) -> T:
        failed = attempt = 0
        while True:
            attempt += 1
            try:
                return await unless_stopped(self._stop, work(attempt))
            except HubError as error:
                failed = 1 if got_further() else failed + 1
                if error.kind == "permanent" or failed >= tries:
                    raise
                on_wait(error, attempt)
                pause = self._rng.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2**failed))
                pause = pause if error.wait is None else error.wait
                say(f"{self.who}: {error.words}; trying again in {pause:.1f} s")
            await unless_stopped(self._stop, asyncio.sleep(pause))


class _Transfer:
    """What is told of one that comes in."""

    def __init__(self, step: Step, clock: Clock, tell: Callable[[Transfer], None]) -> None:
        self._step = step
        self._clock = clock
        self._tell = tell
        self._done = 0
        self._further = False
        self._began: tuple[float, int] | None = None  # when, and what had come by then
        self._said = float("-inf")
        self.attempt = 1

    def moved(self, done: int, total: int) -> None:
        now = self._clock.boot()
        self._began = self._began or (now, done)
        self._further = self._further or done > self._done
        self._done = done
        if now - self._said >= TELL_EVERY or done == total:
            self._said = now
            self._say(TransferPhase.DOWNLOADING, rate=self._rate(now))

    def _rate(self, now: float) -> float | None:
        since, had = self._began or (now, 0)
        return max(0.0, (self._done - had) / (now - since)) if now > since else None

    def got_further(self) -> bool:
        """Since it was asked last."""
        further, self._further, self._began = self._further, False, None
        return further

    def waits(self, error: HubError, attempt: int) -> None:
        self._say(TransferPhase.WAITING, error.words)

    def ended(self, phase: TransferPhase, error: str | None = None) -> None:
        if phase is TransferPhase.DONE:
            self._done = self._step.bytes
        self._say(phase, error)

    def _say(self, phase: TransferPhase, error: str | None = None, rate: float | None = None) -> None:
        step = self._step
        words = clean(error, 300) if error else None
        self._tell(
            Transfer(
                self._clock.wall(), TransferKind.RESTORE, step.step, step.name, phase, min(self._done, step.bytes),
                step.bytes, rate, self.attempt, words,
            )
        )  # fmt: skip


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
