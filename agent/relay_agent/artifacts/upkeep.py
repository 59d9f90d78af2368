"""An attempt's checkpoints go to the artifact store: which, when, and whether they may; the work is a child process's.

Never in training's way: one at a time, of published checkpoints alone, and where they come faster than they can be
sent the newest is sent and those before it are not.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

from msgspec import Struct

from relay_agent.artifacts.jobs import CHILD, Archive, Attach, Attached, Kept, Put, Seal, Store
from relay_agent.artifacts.noted import Entry, Noted
from relay_agent.artifacts.shown import Shown
from relay_agent.artifacts.wish import MAX_FILE, MAX_FILES, Wish
from relay_agent.checkpoints.line import survey
from relay_agent.checkpoints.manifest import Sealed
from relay_agent.checkpoints.publish import Published
from relay_agent.hub import calls
from relay_agent.hub.calls import HubError
from relay_agent.hub.schedule import Schedule
from relay_agent.process import say
from relay_agent.volume.volume import RunFolder, highest_claim
from relaytui.wire.clock import Clock

PERMIT = 20.0
"""Seconds that leave to finish holds, at most."""
AGAIN = 15.0
"""Seconds until the fence is asked again, once it said no."""
SPOILT = frozenset(("damaged", "changed"))
"""Errors of one checkpoint, and not of the next."""
LOST = frozenset(("lease_lost", "not_holder", "superseded"))
QUIET = {**calls.QUIET, "commit": 1800.0}
"""Seconds: before it says that all is well the commander may have to read all of it."""
Call = Callable[..., Awaitable[Any]]


class Upkeep:
    """`held_for`: for how many seconds the lease is safely ours. `store` is asked when it is needed: the lease's token
    may be another by then."""

    def __init__(
        self,
        wish: Wish,
        store: Callable[[], Store],
        folder: RunFolder,
        epoch: int,
        shown: Shown,
        clock: Clock,
        rng: random.Random,
        *,
        held_for: Callable[[], float],
        call: Call = calls.call,
    ) -> None:
        self._wish = wish
        self._store = store
        self._folder = folder
        self._epoch = epoch
        self._shown = shown
        self._clock = clock
        self._held_for = held_for
        self._call = call
        self._schedule = Schedule(0.0, rng, clock.boot())
        self._noted = Noted(folder.root / "artifacts")
        self._wake = asyncio.Event()
        self._bad: set[str] = set()  # checkpoints that cannot be sent
        self._closing = False
        self._final = False
        self._gave_up = False
        self._attached = not wish.files
        self.pins: set[str] = set()
        """Of checkpoints that are not pruned now."""

    def published(self, done: Published) -> None:
        self._wake.set()

    def close(self, *, final: bool) -> None:
        """Send what is left to be sent, and come to an end. `final`: the run ends with it."""
        self._closing, self._final, self._gave_up = True, final, False
        self._schedule.at_once(self._clock.boot())  # whatever was wrong may be well by now
        self._wake.set()

    def size_left(self) -> int:
        """Bytes of what is not there yet; 0: it is. Blocking."""
        try:
            left = [sealed.manifest.total_bytes for sealed in self._wanted(closing=True)]
        except OSError:
            return 0
        return sum(left) or (0 if self._attached else 1)

    @property
    def speed(self) -> float | None:
        return self._shown.speed

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For as long as the attempt goes on; ends by itself at `close`, once all is there or nothing helps."""
        await asyncio.to_thread(self._noted.load)
        self._shown.stored = self._noted.last_step
        while not (self._closing and (self._gave_up or self._schedule.stopped)):
            left = self._schedule.left(self._clock.boot())
            if left > 0:
                await self._sleep(left)
                continue
            self._wake.clear()
            closing = self._closing  # asked while it looks, it looks once more
            if await self._one():
                continue
            if closing:
                return
            await self._sleep(math.inf)

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                await self._wake.wait()
                self._wake.clear()

    async def _one(self) -> bool:
        """One try to send what is next; False where there is nothing to send."""
        sealed: Sealed | None = None
        try:
            sealed = await asyncio.to_thread(self._next)
            if sealed is None and (self._attached or not self._closing):
                return False
            if await asyncio.to_thread(self._fence, "begin") <= 0:
                raise HubError("refused", "this agent is cut off, or another one has the run", "transient", AGAIN)
            if sealed is None:
                await self._attach()
                return True
            self.pins.add(sealed.name)
            try:
                await self._send(sealed)
            finally:
                self.pins.discard(sealed.name)
        except HubError as error:
            self._failed(error, sealed)
        except OSError as error:
            self._failed(HubError("volume", f"the volume fails: {error.strerror or error}", "transient"), sealed)
        return True

    async def _send(self, sealed: Sealed) -> None:
        self._shown.begin(sealed, self._schedule.tries)
        store, path, final = self._store(), str(sealed.path), self._final
        known = self._noted.of(sealed.sha256)
        if known is None:
            archive: Archive = await self._ask(Seal(store, path, sealed.sha256), Archive)
            known = Entry(sealed.name, sealed.manifest.step, sealed.sha256, archive.sha256, archive.size)
            await self._note(lambda: self._noted.sealed(known))
        began = self._clock.boot()
        kept: Kept = await self._ask(Put(store, path, sealed.sha256, known.archive, final), Kept)
        self._schedule.done(self._clock.boot())
        self._shown.kept(sealed, kept, known.size, self._clock.boot() - began)
        at = self._clock.wall()
        await self._note(lambda: self._noted.stored(sealed.sha256, kept.artifact, at, final=final))

    async def _note(self, keep: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(keep)
        except OSError as error:
            say(f"artifacts/stored.json cannot be written: {error.strerror or error}")

    async def _attach(self) -> None:
        root = str(self._folder.output(self._epoch))
        job = Attach(self._store(), root, list(self._wish.files), MAX_FILE, MAX_FILES)
        attached: Attached = await self._call(job, Attached, cache=self._wish.cache, child=CHILD, may=self._fence)
        self._attached = True
        self._schedule.done(self._clock.boot())
        self._shown.attached(attached)

    async def _ask(self, job: Struct, result: type[Any]) -> Any:
        return await self._call(
            job, result, cache=self._wish.cache, child=CHILD, may=self._fence, on_phase=self._shown.phase,
            on_progress=self._shown.progress, quiet=QUIET,
        )  # fmt: skip

    # -- which, and whether ------------------------------------------------------------------------------------------

    def _next(self) -> Sealed | None:
        return next(self._wanted(closing=self._closing), None)

    def _wanted(self, *, closing: bool) -> Iterator[Sealed]:
        """What should be there and is not, as it is sent: the newest is what stays longest, so it comes last. Only what
        was saved while the loss was well. Blocking; OSError."""
        which = self._wish.which
        if which == "none" or (which == "final" and not closing):
            return
        line = [
            sealed for sealed in survey(self._folder, self._epoch).line
            if sealed.manifest.healthy and sealed.name not in self._bad
        ]  # fmt: skip
        wanted: list[Sealed] = []
        if which == "best" and self._wish.best is not None and (best := self._wish.best.of(line)) is not None:
            wanted.append(best)
        if line and (which == "every" or closing) and line[0] not in wanted:
            wanted.append(line[0])
        for sealed in wanted:
            known = self._noted.of(sealed.sha256)
            final = closing and self._final and sealed is wanted[-1]
            if known is None or not known.artifact or (final and not known.final):
                yield sealed

    def _fence(self, what: str) -> float:
        """For how many seconds it may be done. In any thread: it asks the volume."""
        seconds = min(PERMIT, self._held_for())
        try:
            return seconds if seconds > 0 and highest_claim(self._folder) <= self._epoch else 0.0
        except OSError:
            return 0.0

    def _failed(self, error: HubError, sealed: Sealed | None) -> None:
        now = self._clock.boot()
        if error.code == "wrong_hash" and sealed is not None:
            self._noted.forget(sealed.sha256)  # what the volume says of it is wrong, or it changed: it is read again
        if error.code in SPOILT and sealed is not None:
            self._bad.add(sealed.name)  # the next one may be well
            self._shown.failed(HubError(error.code, error.words, "transient"))
        elif error.code in LOST or error.kind == "permanent":
            self._schedule.failed(now, "permanent")
            self._attached = True
            self._shown.failed(error)
        elif self._schedule.failed(now, error.kind, error.wait):
            self._shown.waits(error, self._schedule.left(now))
        else:
            self._gave_up = True
            self._shown.failed(error)
