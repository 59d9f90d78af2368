"""An attempt's checkpoints go off the pod: when it is time for it, one after another, and never in anybody's way.

Which ones, and how one is sent, the Hub and the artifact store say for themselves; the work is a child process's. Here
is when it is done, whether it may be, and what its end means. Only what was saved while the loss was well is sent.
"""

from __future__ import annotations

import asyncio
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

from relay_agent.checkpoints.line import survey
from relay_agent.checkpoints.manifest import Sealed
from relay_agent.checkpoints.publish import Published
from relay_agent.sending.schedule import Schedule
from relay_agent.sending.shown import Shown, Tells
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder, highest_claim
from relaytui.wire.clock import Clock

T = TypeVar("T")
PERMIT = 20.0
"""Seconds that leave for what cannot be taken back holds, at most."""
AGAIN = 15.0
"""Seconds until the fence is asked again, once it said no."""
FIRST_RENEWAL = 150
"""Tenths of a second that a lease which was taken over has until it is renewed; then its holder counts as cut off."""
LOST = frozenset(("superseded", "lease_lost", "not_holder"))
"""Another one has the run: nothing more can come of it."""
Call = Callable[..., Awaitable[Any]]
"""A job, the type of its result, and what `sending.calls.call` takes."""


@dataclass(frozen=True)
class Holder:
    """The attempt whose checkpoints are sent. `held_for`: for how many seconds the lease is safely its."""

    folder: RunFolder
    epoch: int
    held_for: Callable[[], float]
    tell: Tells
    clock: Clock
    rng: random.Random


class Sender(ABC):
    """`call` has the child process do a job."""

    spoilt: ClassVar[frozenset[str]]
    """Errors of one checkpoint, and not of the next."""
    waits_for_lease: ClassVar[bool] = False
    """Whether the end of an attempt that is cut off waits until it is not."""
    tries_at_end: ClassVar[bool] = False
    """Whether the end tries once more what was given up for good."""
    hopeless: ClassVar[frozenset[str]] = frozenset()
    """Errors for good that are no others at the end."""
    looks_every = math.inf
    """Seconds between two looks, at most."""

    def __init__(self, shown: Shown, schedule: Schedule, holder: Holder, call: Call) -> None:
        self.shown = shown
        self.sends = True
        """False: it only says what it would send."""
        self.pins: set[str] = set()
        """Of checkpoints that are not pruned now."""
        self._schedule = schedule
        self._holder = holder
        self._folder, self._epoch, self._clock = holder.folder, holder.epoch, holder.clock
        self._call = call
        self._wake = asyncio.Event()
        self._bad: set[str] = set()  # checkpoints that cannot be sent
        self._busy = False
        self._closing = False
        self._final = False
        self._refused = False  # and it was said
        self._gave_up = False  # the last try, until its next turn
        self._no_use = False  # to try that once more at the end
        self.patience: Callable[[], float] = lambda: math.inf
        """Seconds that somebody waits for it."""
        self.on_failed: Callable[[], None] = lambda: None
        """Told of each try that came to nothing."""
        self.trouble = ""
        """What the last try came to, while the next one waits."""
        self.outdone = ""
        """Why nothing more can come of it: another one has the run."""
        self._left: Sealed | None = None  # what the end found that was not there yet

    # -- what each way says for itself -------------------------------------------------------------------------------

    @abstractmethod
    async def prepare(self) -> bool:
        """Before the first look; False: nothing can come of it, as was said."""

    @abstractmethod
    def next(self, *, closing: bool, final: bool) -> Sealed | None:
        """What is to be sent now; None: it is there. Blocking; OSError. `final`: the run ends, or is let go of."""

    @abstractmethod
    async def send(self, sealed: Sealed) -> None:
        """Trouble; OSError of the volume."""

    async def send_rest(self) -> bool:
        """What goes besides checkpoints; False: nothing is left of that."""
        return False

    async def rests(self) -> None:
        """Between two looks, and before the last of them."""
        return

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For as long as the attempt goes on; ends by itself where nothing can come of it, or at `close`, once all is
        there or nothing helps."""
        if not await self.prepare():
            return
        while not (self._closing and (self._gave_up or self._schedule.stopped)):
            left = self._schedule.left(self._clock.boot())
            if left > 0 and not (self._closing and self._schedule.tries == 1):
                await self._sleep(left)
                continue
            self._wake.clear()
            closing = self._closing  # asked while it looks, it looks once more
            if await self._one(closing):
                continue
            if closing:
                return
            await self._sleep(math.inf)

    async def _sleep(self, seconds: float) -> None:
        seconds = min(seconds, self.looks_every)
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                await self._wake.wait()
                self._wake.clear()
        await self.rests()

    async def _one(self, closing: bool) -> bool:
        """One try to send what is next; False where there is nothing to send."""
        sealed: Sealed | None = None
        try:
            sealed = await asyncio.to_thread(self.next, closing=closing, final=self._final)
            if sealed is None:
                return await self.send_rest()
            await self.see_ours()
            self.pins.add(sealed.name)
            self._busy = True
            try:
                await self.send(sealed)
            finally:
                self._busy = False
                self.pins.discard(sealed.name)
            self._refused = False
        except Trouble as trouble:
            self._failed(trouble, sealed)
        except OSError as error:
            self._failed(Trouble("volume", f"the volume fails: {error.strerror or error}", "transient"), sealed)
        return True

    async def see_ours(self) -> None:
        """Trouble where nothing may be sent now."""
        if self.sends:
            await self._renewed()
        if self.sends and await asyncio.to_thread(self.fence, "begin") <= 0:
            raise Trouble("refused", "this agent is cut off, or another one has the run", "transient")

    async def _renewed(self) -> None:
        """One that was taken over may be ours, and is known to be once it is renewed."""
        for _ in range(FIRST_RENEWAL):
            if self._holder.held_for() > -math.inf:
                return
            await asyncio.sleep(0.1)

    async def work(self, job: Struct, result: type[T]) -> T:
        """Have the child do it, shown while it does. Trouble."""
        done: T = await self._call(
            job, result, may=self.fence, on_phase=self.shown.enters, on_progress=self.shown.moved
        )  # fmt: skip
        return done

    def fence(self, what: str) -> float:
        """For how many seconds it may be done. In any thread: it asks the volume."""
        seconds = min(PERMIT, self._holder.held_for())
        try:
            return seconds if seconds > 0 and highest_claim(self._folder) <= self._epoch else 0.0
        except OSError:
            return 0.0

    def line(self) -> list[Sealed]:
        """Checkpoints that may be sent, the newest first. Blocking; OSError."""
        line = survey(self._folder, self._epoch).line
        return [sealed for sealed in line if sealed.manifest.healthy and sealed.name not in self._bad]

    def _failed(self, error: Trouble, sealed: Sealed | None = None) -> None:
        now = self._clock.boot()
        self.trouble = error.words
        self._sort(error, sealed, now)
        self.on_failed()

    def _sort(self, error: Trouble, sealed: Sealed | None, now: float) -> None:
        if error.code in self.spoilt and sealed is not None:
            self._bad.add(sealed.name)  # the next one may be well
            self.shown.failed(error, spoilt=True)
        elif error.code == "refused" or error.code in LOST:
            again = self._schedule.failed(now, "permanent" if error.code in LOST else "transient", AGAIN)
            self._gave_up = not (again and self.waits_for_lease)
            self.outdone = error.words if error.code in LOST else ""
            if not self._refused:
                self._refused = True
                self.shown.refused(error.words)
        elif self._schedule.failed(now, error.kind, error.wait):
            if self.pause <= self.patience():
                self.shown.retries(error, self._schedule.left(now))
        else:
            self._gave_up, self._no_use = True, error.code in self.hopeless
            self.shown.failed(error)

    # -- what others say ---------------------------------------------------------------------------------------------

    def published(self, done: Published) -> None:
        self._wake.set()

    def close(self, *, final: bool) -> None:
        """Send what is left to be sent, and come to an end."""
        self._closing, self._final, self._gave_up = True, final, False
        if not self.over:
            self.retry()
        self._wake.set()

    def retry(self) -> None:
        """Now, whatever was wrong before: it may be well by now."""
        self.outdone = ""
        self._schedule.at_once(self._clock.boot())
        self._wake.set()

    @property
    def pause(self) -> float:
        """Seconds until the next try of what failed; 0 while one goes on."""
        waits = not self._busy and self._schedule.tries > 1
        return self._schedule.left(self._clock.boot()) if waits else 0.0

    def size_left(self, *, final: bool = False) -> int:
        """Bytes that the end would send, at least 1 where there is anything; 0: all is there. Blocking."""
        try:
            self._left = self.next(closing=True, final=final)
        except OSError:
            return 0
        return max(1, self._left.manifest.total_bytes) if self._left is not None else 0

    def left(self, why: str) -> None:
        """The end does not wait for what is left."""
        if self._left is not None and self._left.name != self.shown.name:
            self.shown.of(self._left)
        self.shown.left(why)

    @property
    def over(self) -> bool:
        """Nothing more can come of it, as was said."""
        return self._schedule.stopped and (bool(self.outdone) or self._no_use or not self.tries_at_end)
