"""An attempt's newest checkpoint goes to the Hub, in its turn, at an operator's word, and on a better metric."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from relay_agent.attempt.orders import Answer
from relay_agent.checkpoints.manifest import Sealed
from relay_agent.checkpoints.publish import Published
from relay_agent.checkpoints.retention import Retention
from relay_agent.hub import attempts, calls, layout
from relay_agent.hub.metrics import Metrics
from relay_agent.hub.parcel import SETTLED, About, NothingChosen, packed, size_of
from relay_agent.hub.protocol import Check, Checked, Sent, Trim, Trimmed
from relay_agent.hub.shown import HubShown
from relay_agent.hub.synced import LastSynced, last_synced, note
from relay_agent.hub.wish import Wish, trouble
from relay_agent.process import say
from relay_agent.sending.schedule import Schedule
from relay_agent.sending.sender import Call, Holder, Sender
from relay_agent.sending.trouble import Trouble

TIDY = 60.0
"""Seconds between two looks, at most: what the trainer told is written down then."""


class HubSync(Sender):
    """`about` asks git, in a thread. `call`: in place of the child process."""

    shown: HubShown
    spoilt = frozenset(("damaged", "no_tag"))
    tries_at_end = True
    hopeless = frozenset(("nothing_chosen",))
    looks_every = TIDY

    def __init__(
        self, wish: Wish, holder: Holder, about: Callable[[], About], retention: Retention, call: Call | None = None
    ) -> None:
        super().__init__(
            HubShown(wish.where.repo, holder.tell, holder.clock),
            Schedule(wish.interval, holder.rng, holder.clock.boot()),
            holder,
            call or functools.partial(calls.call, cache=wish.cache),
        )
        self.sends = not wish.dry
        self.attempt = ""
        """What tells it from another of its epoch (`attempts`)."""
        self._wish = wish
        self._ask_about = about
        self._about: About | None = None
        self._retention = retention
        self._hint: LastSynced | None = None  # what an earlier attempt sent: it may be gone from there
        self._last: LastSynced | None = None
        self._ordered = False  # somebody waits for an end of it
        self._again = False  # an order came while one was sent
        self._ended = False
        self._new = False
        self._trimming = False
        self.on_synced: Callable[[str], None] = lambda revision: None
        self.metrics = Metrics(holder.folder.hf / "metrics.jsonl", holder.epoch)

    # -- what others say ---------------------------------------------------------------------------------------------

    def published(self, done: Published) -> None:
        self._new = True
        super().published(done)

    def now(self, who: str) -> Answer:
        """An operator's order."""
        if wrong := self._trouble():
            return Answer(False, wrong)
        if self._ended:
            return Answer(False, "this attempt has ended its syncs: the next one looks what is there")
        if self._busy:
            self._again = True
            return Answer(True, f"it is syncing already, {self.shown.words}; what is newer then follows at once")
        self._ordered, self._refused, self._gave_up = True, False, False
        self.retry()
        dry = "" if self.sends else " (HF_DRY_RUN: it only says what it would send)"
        return Answer(True, f"syncing the newest checkpoint to {self._wish.where.repo}{dry}")

    def _trouble(self) -> str:
        if wrong := trouble(self._wish):
            return ": ".join(wrong)
        return calls.missing() if self.sends else ""

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            self._ended = True
            if self._ordered:
                self.left("the attempt ended before the sync that was asked for")

    # -- what earlier attempts did, and whether it can come to anything ------------------------------------------------

    async def prepare(self) -> bool:
        if wrong := self._trouble():
            self.shown.failed(Trouble("not_configured", wrong))
            return False
        wish = self._wish
        self._hint = last = await asyncio.to_thread(last_synced, self._folder.hf, wish.where.repo, wish.choices)
        if last is not None:
            self.shown.there = last.step
            self.on_synced(last.revision)
            since = self._clock.wall() - last.at
            self._schedule = Schedule(wish.interval, self._holder.rng, self._clock.boot(), since)
            if self._ordered:
                self._schedule.at_once(self._clock.boot())
        if self.sends:
            await self._check()
        return True

    async def _check(self) -> None:
        """While the trainer starts: a token that is wrong is said at once."""
        try:
            checked: Checked = await self._call(Check(self._wish.where, self._folder.run_id), Checked)
        except Trouble as error:
            if error.kind == "permanent":
                self._schedule.failed(self._clock.boot(), "permanent")
                self.shown.failed(error)
                self._ordered = False
            return  # else the first sync says what is wrong
        private = "private" if checked.private else "public"
        say(f"the Hub knows {checked.user or 'this token'}; {self._wish.where.repo} is {private}")
        if words := layout.fenced(checked.holder, checked.attempt, self._epoch, self.attempt):
            self._failed(await self._outdone(words, checked.holder))

    async def _outdone(self, words: str, holder: int) -> Trouble:
        """An attempt has pushed that the commander which granted ours does not know of: the next grant shall be above
        it."""
        with suppress(OSError):
            await asyncio.to_thread(attempts.note, self._folder.hf, holder)
        words = attempts.advice(words, self._folder.run_id, holder)
        return Trouble("superseded", words)

    # -- which -------------------------------------------------------------------------------------------------------

    def next(self, *, closing: bool, final: bool) -> Sealed | None:
        """In its turn what this attempt sent counts as there, and what an earlier one did, but for the last of a run.
        An order asks the Hub."""
        last = self._last or (None if closing and final else self._hint)
        newest = next(iter(self.line()), None)
        if newest is None or self._ordered or last is None:
            return newest
        return None if (newest.name, newest.sha256) == (last.checkpoint, last.manifest) else newest

    async def send_rest(self) -> bool:
        if self._ordered:
            none = "there is no checkpoint yet that was saved while the loss was well"
            self._ordered = False
            self.shown.say("left", f"nothing is synced: {'none of the checkpoints can be sent' if self._bad else none}")
        return False

    def _failed(self, error: Trouble, sealed: Sealed | None = None) -> None:
        super()._failed(error, sealed)
        if self._gave_up or self._schedule.stopped:
            self._ordered = self._again = False  # as was said

    async def rests(self) -> None:
        with suppress(OSError):
            await asyncio.to_thread(self.metrics.flush)
        if self._wish.on_improve and self._new:
            self._new = False
            if await asyncio.to_thread(self._improved):
                self._schedule.better(self._clock.boot())

    def _improved(self) -> bool:
        """Whether the best one of the line is the newest, and not there. Blocking."""
        best = self._retention.best
        if best is None:
            return False
        try:
            newest = self.next(closing=False, final=False)
            found = best.of(self.line()) if newest is not None else None
        except OSError:
            return False
        return newest is not None and found is not None and found.name == newest.name

    # -- one sync ----------------------------------------------------------------------------------------------------

    async def send(self, sealed: Sealed) -> None:
        with suppress(OSError):
            await asyncio.to_thread(self.metrics.flush)
        if self._about is None:
            self._about = await asyncio.to_thread(self._ask_about)
        before = self._clock.wall() - (0.0 if self._closing else SETTLED)
        try:
            job = await asyncio.to_thread(
                packed,
                self._wish,
                self._folder,
                self._epoch,
                sealed,
                self._about,
                self.metrics.path,
                before,
                self.attempt,
            )
        except NothingChosen as nothing:
            raise Trouble("nothing_chosen", str(nothing)) from None
        size, tag = size_of(job, sealed), layout.tag_of(sealed.name)
        if not self.sends:
            self.shown.dry(sealed, len(job.files), size, tag)
            self._remember(sealed, "", tag)
            return
        self.shown.of(sealed, size, self._schedule.tries)
        began = self._clock.boot()
        try:
            sent = await self.work(replace(job, attempt=self.attempt), Sent)
        except Trouble as error:
            raise await self._explained(error) from None
        self.shown.synced(sealed, sent, size, self._clock.boot() - began)
        last = self._remember(sealed, sent.revision, sent.tag)
        self.on_synced(sent.revision)
        try:
            await asyncio.to_thread(note, self._folder.hf, last)
        except OSError as error:
            say(f"hf/last_synced.json cannot be written: {error.strerror or error}")
        await self._trim(sent.tag)

    async def _explained(self, error: Trouble) -> Trouble:
        if error.code != "superseded" or self._holder.held_for() <= 0:
            return error
        try:
            asked = Check(self._wish.where, self._folder.run_id, make=False, write=False)
            checked: Checked = await self._call(asked, Checked)
        except Trouble:
            return error
        return await self._outdone(error.words, checked.holder)

    def _remember(self, sealed: Sealed, revision: str, tag: str) -> LastSynced:
        self._schedule.done(self._clock.boot())
        if self._again:
            self._schedule.at_once(self._clock.boot())
        self._ordered = self._again = False
        step, at, wish = sealed.manifest.step, self._clock.wall(), self._wish
        self._last = LastSynced(wish.where.repo, revision, step, at, tag, sealed.name, sealed.sha256, wish.choices)
        return self._last

    def left(self, why: str) -> None:
        self._ordered = False
        if self._trimming:  # the checkpoint itself is there
            say(f"old steps stay on {self._wish.where.repo}: {why}")
        else:
            super().left(why)

    async def _trim(self, tag: str) -> None:
        """Old steps go. That they do not is no failure of the sync."""
        if not self._wish.keep or (self._closing and not self._final):  # the next attempt has time for it
            return
        best = self._retention.best
        word = (f"{best.name} max" if best.highest else f"{best.name} min") if best else ""
        job = Trim(
            self._wish.where, self._folder.run_id, self._epoch, self._wish.keep, self._retention.every, word, [tag],
            self.attempt,
        )  # fmt: skip
        self._trimming = True
        try:
            trimmed: Trimmed = await self._call(job, Trimmed, may=self.fence)
        except Trouble as error:
            say(f"old steps stay on {self._wish.where.repo}: {error.words}")
            return
        finally:
            self._trimming = False
        if trimmed.tags:
            self.shown.pruned(trimmed.tags, trimmed.freed)
