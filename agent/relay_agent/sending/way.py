"""One way off the pod, as an attempt has it: begun with it, and waited for at its end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from relay_agent.outcome.stop import Stop
from relay_agent.process import say
from relay_agent.sending.patience import LAST, patience
from relay_agent.sending.sender import Sender
from relaytui.wire.clock import Clock
from relaytui.wire.reports import TelemetryReport
from relaytui.wire.status import Outcome

VOLUME_ANSWERS = 10.0
"""Seconds that the volume has for what little there is to note, and to say what is not there yet."""


class Way:
    """`wait`: seconds that the end of a run waits for what is left, as `setting` says."""

    hear: Callable[[TelemetryReport], None] | None = None
    """Who wants to know what the trainer tells."""

    def __init__(self, name: str, sender: Sender, stop: Stop, clock: Clock, wait: float, setting: str) -> None:
        self.sender = sender
        self._name = name
        self._stop = stop
        self._clock = clock
        self._wait = wait
        self._setting = setting
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def _run(self) -> None:
        with self._saying():
            await self.sender.run()

    @contextmanager
    def _saying(self) -> Iterator[None]:
        """Whatever goes wrong, training goes on, and so does the end of an attempt."""
        shown = self.sender.shown
        try:
            yield
        except Exception as error:  # noqa: BLE001
            say(f"{shown.what} ended: {type(error).__name__}: {error}{shown.goes_on}")

    async def last(self, outcome: Outcome) -> None:
        """The trainer is gone and all that is whole is published: send what is left, if there is time for it, and wait
        no longer than there is. One more signal ends the wait."""
        with self._saying():
            await self._last(outcome)
        await self.close()

    async def _last(self, outcome: Outcome) -> None:
        sender, task = self.sender, self._task
        sender.shown.training = False
        with suppress(TimeoutError):
            async with asyncio.timeout(VOLUME_ANSWERS):
                await sender.rests()
        if task is None or task.done() or (sender.over and not sender.outdone):
            return
        final = outcome in LAST
        try:
            async with asyncio.timeout(VOLUME_ANSWERS):
                size = await asyncio.to_thread(sender.size_left, final=final)
        except TimeoutError:
            size = 0
        if size and sender.outdone:
            sender.left(sender.outdone)
        elif size and (why := await self._waited(task, outcome, size, final)):
            sender.left(why)

    async def _waited(self, task: asyncio.Task[None], outcome: Outcome, size: int, final: bool) -> str:
        """Why it was not waited for to its end; empty where it was, or where the run goes on and its next attempt sends
        it."""
        changed, before = asyncio.Event(), self._stop.signal
        self._stop.listen(lambda at_once: changed.set())
        seconds, why = self._patience(outcome, size)
        if seconds <= 0:
            return why
        if self.sender.sends:
            signals = "one more signal ends" if before else "Ctrl-C ends"
            say(f"waiting up to {seconds:.0f} s for {self.sender.shown.last}; {signals} the wait")
        sender, began = self.sender, self._clock.boot()
        until = began + seconds
        sender.patience, sender.on_failed = lambda: until - self._clock.boot(), changed.set
        sender.close(final=final)
        while not task.done():
            if self._stop.hurried.is_set() or self._stop.signal != before:
                return "the wait for it was ended"
            changed.clear()
            now = self._clock.boot()
            until = min(until, now + self._patience(outcome, size)[0])
            if until <= now:
                return "the wait for it is over"
            if sender.pause > until - now:
                wait = f"after the {until - began:.0f} s that the end waits"
                if (over := now - began) >= 1.0:
                    wait += f", of which {over:.0f} are over"
                return f"{sender.trouble}: the next try would be in {sender.pause:.0f} s, {wait}"
            told = asyncio.create_task(changed.wait())
            await asyncio.wait({task, told}, timeout=until - now, return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
        return ""

    def _patience(self, outcome: Outcome, size: int) -> tuple[float, str]:
        """Seconds, and why not longer."""
        dead_by = self._stop.dead_by
        left = math.inf if math.isinf(dead_by) else dead_by - self._clock.boot()
        left = 0.0 if self._stop.hurried.is_set() else left
        return patience(self._stop.why, outcome, left, size, self.sender.shown.speed, self._wait, self._setting)

    async def close(self) -> None:
        """At once, with its child process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
