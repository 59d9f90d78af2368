"""An attempt's checkpoints go to the Hub: when it is time for it, one after another, and never in anybody's way.

What is sent is the newest published checkpoint of the line that was saved while the loss was well. The work is a child
process's (`calls`); here is when it is done, whether it may be, and what its end means.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from relay_agent.attempt.orders import Answer
from relay_agent.checkpoints.line import survey
from relay_agent.checkpoints.manifest import Sealed
from relay_agent.checkpoints.publish import Published
from relay_agent.checkpoints.retention import Retention
from relay_agent.hub import calls, layout
from relay_agent.hub.calls import HubError
from relay_agent.hub.metrics import Metrics
from relay_agent.hub.parcel import SETTLED, About, NothingChosen, packed, size_of
from relay_agent.hub.protocol import Check, Checked, Send, Sent, Trim, Trimmed
from relay_agent.hub.schedule import Schedule
from relay_agent.hub.shown import Shown
from relay_agent.hub.synced import LastSynced, last_synced, note
from relay_agent.hub.wish import Wish, trouble
from relay_agent.process import say
from relay_agent.volume.volume import RunFolder, highest_claim
from relaytui.wire.clock import Clock

PERMIT = 20.0
"""Seconds that leave to commit holds, at most."""
TIDY = 60.0
"""Seconds between two looks, at least: what the trainer told is written down then."""
AGAIN = 15.0
"""Seconds until the fence is asked again, once it said no."""
Call = Callable[..., Awaitable[Any]]


class HubSync:
    """`held_for`: for how many seconds the lease is safely ours. `about` asks git, in a thread."""

    def __init__(
        self,
        wish: Wish,
        folder: RunFolder,
        epoch: int,
        shown: Shown,
        clock: Clock,
        rng: random.Random,
        *,
        held_for: Callable[[], float],
        about: Callable[[], About],
        retention: Retention,
        call: Call = calls.call,
    ) -> None:
        self._wish = wish
        self._folder = folder
        self._epoch = epoch
        self._shown = shown
        self._clock = clock
        self._rng = rng
        self._held_for = held_for
        self._ask_about = about
        self._about: About | None = None
        self._retention = retention
        self._call = call
        self._wake = asyncio.Event()
        self._schedule = Schedule(wish.interval, rng, clock.boot())
        self._last: LastSynced | None = None
        self._bad: set[str] = set()  # checkpoints that cannot be sent
        self._busy = False
        self._closing = False
        self._refused = False
        self._gave_up = False  # the last try, until its next turn
        self._new = False
        self.pins: set[str] = set()
        """What pruning spares: the publisher's own."""
        self.on_synced: Callable[[str], None] = lambda revision: None
        self.metrics = Metrics(folder.hf / "metrics.jsonl", epoch)

    # -- what others say ---------------------------------------------------------------------------------------------

    def published(self, done: Published) -> None:
        self._new = True
        self._wake.set()

    def now(self, who: str) -> Answer:
        """An operator's order."""
        if wrong := self._trouble():
            return Answer(False, wrong)
        if self._busy:
            return Answer(True, f"it is at it, {self._shown.words}")
        self._schedule.at_once(self._clock.boot())
        self._wake.set()
        dry = " (HF_DRY_RUN: it only says what it would send)" if self._wish.dry else ""
        return Answer(True, f"syncing the newest checkpoint to {self._wish.where.repo}{dry}")

    def _trouble(self) -> str:
        return trouble(self._wish) or ("" if self._wish.dry else calls.missing())

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For as long as the attempt goes on; ends by itself only where nothing can come of it, or at `last`."""
        if wrong := self._trouble():
            self._shown.failed(HubError("not_configured", wrong, "permanent"))
            return
        await self._recall()
        if not self._wish.dry:
            await self._check()
        while not (self._closing and (self._gave_up or self._schedule.stopped)):
            left = self._schedule.left(self._clock.boot())
            if left > 0 and not (self._closing and self._schedule.tries == 1):
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
            async with asyncio.timeout(min(seconds, TIDY)):
                await self._wake.wait()
                self._wake.clear()
        await self._tidy()
        if self._wish.on_improve and self._new:
            self._new = False
            if await asyncio.to_thread(self._improved):
                self._schedule.better(self._clock.boot())

    async def _tidy(self) -> None:
        with suppress(OSError):
            await asyncio.to_thread(self.metrics.flush)

    async def _recall(self) -> None:
        """What earlier attempts synced."""
        self._last = last = await asyncio.to_thread(last_synced, self._folder.hf, self._wish.where.repo)
        if last is not None:
            self._shown.synced = last.step
            self.on_synced(last.revision)
            since = self._clock.wall() - last.at
            self._schedule = Schedule(self._wish.interval, self._rng, self._clock.boot(), since)

    async def _check(self) -> None:
        """Whether it can come to anything, while the trainer starts: a token that is wrong is said at once."""
        try:
            checked: Checked = await self._call(
                Check(self._wish.where, self._folder.run_id), Checked, cache=self._wish.cache
            )
        except HubError as error:
            if error.kind == "permanent":
                self._schedule.failed(self._clock.boot(), "permanent")
                self._shown.failed(error)
            return  # else the first sync says what is wrong
        private = "private" if checked.private else "public"
        say(f"the Hub knows {checked.user or 'this token'}; {self._wish.where.repo} is {private}")

    async def _one(self) -> bool:
        """One try to send what is newest; False where there is nothing to send."""
        try:
            sealed = await asyncio.to_thread(self._newest)
        except OSError as error:
            words = f"the volume cannot be read: {error.strerror or error}"
            self._failed(HubError("volume", words, "transient"))
            return True
        if sealed is None:
            return False
        if not self._wish.dry and await asyncio.to_thread(self._fence, "begin") <= 0:
            self._refuse("this agent is cut off, or another one has the run")
            return True
        pinned = sealed.name not in self.pins
        self.pins.add(sealed.name)
        self._busy = True
        try:
            await self._send(sealed)
        except HubError as error:
            self._failed(error, sealed)
        finally:
            self._busy = False
            if pinned:
                self.pins.discard(sealed.name)
        return True

    async def _send(self, sealed: Sealed) -> None:
        await self._tidy()
        if self._about is None:
            self._about = await asyncio.to_thread(self._ask_about)
        before = self._clock.wall() - (0.0 if self._closing else SETTLED)
        try:
            job = await asyncio.to_thread(
                packed, self._wish, self._folder, self._epoch, sealed, self._about, self.metrics.path, before
            )
        except NothingChosen as nothing:
            raise HubError("nothing_chosen", str(nothing), "permanent") from None
        size = size_of(job, sealed)
        if self._wish.dry:
            self._shown.dry(sealed, len(job.files), size, layout.tag_of(sealed.name))
            self._remember(sealed, "", layout.tag_of(sealed.name))
            return
        sent = await self._sent(job, sealed, size)
        self._remember(sealed, sent.revision, sent.tag)
        self.on_synced(sent.revision)
        try:
            assert self._last is not None
            await asyncio.to_thread(note, self._folder.hf, self._last)
        except OSError as error:
            say(f"hf/last_synced.json cannot be written: {error.strerror or error}")
        await self._trim(sent.tag)

    async def _sent(self, job: Send, sealed: Sealed, size: int) -> Sent:
        self._shown.begin(sealed, size, self._schedule.tries)
        began = self._clock.boot()
        sent: Sent = await self._call(
            job, Sent, cache=self._wish.cache, may=self._fence, on_phase=self._shown.phase,
            on_progress=self._shown.progress,
        )  # fmt: skip
        self._shown.synced_to(sealed, sent, size, self._clock.boot() - began)
        return sent

    def _remember(self, sealed: Sealed, revision: str, tag: str) -> None:
        self._refused = False
        self._last = LastSynced(
            self._wish.where.repo, revision, sealed.manifest.step, self._clock.wall(), tag, sealed.name, sealed.sha256
        )
        self._schedule.done(self._clock.boot())

    async def _trim(self, tag: str) -> None:
        """Old steps go. That they do not is no failure of the sync."""
        if not self._wish.keep or self._closing:
            return
        best = self._retention.best
        word = (f"{best.name} max" if best.highest else f"{best.name} min") if best else ""
        job = Trim(
            self._wish.where, self._folder.run_id, self._epoch, self._wish.keep, self._retention.every, word, [tag]
        )
        try:
            trimmed: Trimmed = await self._call(job, Trimmed, cache=self._wish.cache, may=self._fence)
        except HubError as error:
            say(f"old steps stay on {self._wish.where.repo}: {error.words}")
            return
        if trimmed.tags:
            self._shown.pruned(trimmed.tags, trimmed.freed)

    # -- which, and whether ------------------------------------------------------------------------------------------

    def _newest(self) -> Sealed | None:
        """What is to be sent; None where it is there. Blocking."""
        for sealed in survey(self._folder, self._epoch).line:
            if self._last is not None and (sealed.name, sealed.sha256) == (self._last.checkpoint, self._last.manifest):
                return None
            if sealed.manifest.healthy and sealed.name not in self._bad:
                return sealed
        return None

    def _improved(self) -> bool:
        """Whether the best one of the line is the newest, and not there. Blocking."""
        best = self._retention.best
        if best is None:
            return False
        try:
            newest = self._newest()
            found = best.of(survey(self._folder, self._epoch).line) if newest is not None else None
        except OSError:
            return False
        return newest is not None and found is not None and found.name == newest.name

    def _fence(self, what: str) -> float:
        """For how many seconds it may be done. In any thread: it asks the volume."""
        seconds = min(PERMIT, self._held_for())
        try:
            return seconds if seconds > 0 and highest_claim(self._folder) <= self._epoch else 0.0
        except OSError:
            return 0.0

    # -- what came of it ---------------------------------------------------------------------------------------------

    def _refuse(self, words: str) -> None:
        if not self._refused:
            self._refused = True
            self._shown.refused(words)
        self._schedule.failed(self._clock.boot(), "transient", AGAIN)
        self._gave_up = True  # an end waits for no commander here

    def _failed(self, error: HubError, sealed: Sealed | None = None) -> None:
        now = self._clock.boot()
        if error.code == "superseded":
            self._schedule.failed(now, "permanent")
        if error.code in ("refused", "superseded"):
            self._refuse(error.words)
        elif error.code in ("damaged", "no_tag") and sealed is not None:
            self._bad.add(sealed.name)  # the next one may be well
            self._shown.failed(HubError(error.code, error.words, "transient"))
        elif self._schedule.failed(now, error.kind, error.wait):
            self._shown.waits(error, self._schedule.left(now))
        else:
            self._gave_up = True
            self._shown.failed(error)

    # -- the end -----------------------------------------------------------------------------------------------------

    def size_left(self) -> int:
        """Bytes that the newest has, where it is not there yet; 0: it is. Blocking."""
        try:
            newest = self._newest()
        except OSError:
            return 0
        return newest.manifest.total_bytes if newest is not None else 0

    @property
    def speed(self) -> float | None:
        return self._shown.speed

    @property
    def stopped(self) -> bool:
        """Nothing more can come of it, as was said."""
        return self._schedule.stopped

    def close(self) -> None:
        """Send what is newest now, and come to an end."""
        self._closing, self._gave_up = True, False
        if not self._schedule.stopped:
            self._schedule.at_once(self._clock.boot())
        self._wake.set()
