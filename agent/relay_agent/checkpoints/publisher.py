"""Watches the staging folder of an attempt: publishes what is whole, prunes what is old, sets aside what is torn."""

from __future__ import annotations

import asyncio
import errno
import math
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

from relay_agent.beat import to_next
from relay_agent.checkpoints.aside import staged_aside, was_taken_away
from relay_agent.checkpoints.begun import ANY, Begun
from relay_agent.checkpoints.disk import FULL, is_spoilt, refusal
from relay_agent.checkpoints.exit_word import was_stopped
from relay_agent.checkpoints.heard import Heard
from relay_agent.checkpoints.line import marks_so_far, published
from relay_agent.checkpoints.lost import Lost
from relay_agent.checkpoints.measured import Measured
from relay_agent.checkpoints.missed import Miss, Missed
from relay_agent.checkpoints.output_watch import Ready
from relay_agent.checkpoints.prune import prune
from relay_agent.checkpoints.publish import Fenced, Published, publish
from relay_agent.checkpoints.recorder import Recorder
from relay_agent.checkpoints.remarks import Remarks
from relay_agent.checkpoints.retention import NEWEST_ONLY, Retention
from relay_agent.checkpoints.staging import EARLY, Staged, StagingWatch, saved_at
from relay_agent.checkpoints.taking import Taking
from relay_agent.checkpoints.tree import Cancelled, Check, Torn, Unreadable, Unsettled, never
from relay_agent.checkpoints.unused import Unused
from relay_agent.checkpoints.watching import Settling
from relay_agent.process import say
from relay_agent.volume.mounted import Mounted
from relay_agent.volume.volume import RunFolder, highest_claim
from relaytui.wire.clock import Clock

LOOK_EVERY = 0.5
CALM, CALM_AFTER = 2, 10.0
"""It is looked so many times more seldom where for so many seconds nothing lay there that is to be published, and
nothing was asked for: most trainers save once in many minutes."""
RETRY_AFTER = 15.0
"""Seconds until a publish that the volume had no room for is tried again."""
ROOM_WITHIN = 120.0
"""Seconds that the last checkpoints of a trainer that has ended wait for room: somebody may make some, and what it
learned is worth more than that."""
ROOM_PAUSE = (1.0, 15.0)
"""Between two tries of these, at first and at last: each reads the whole checkpoint."""
STILL_WITHIN = 120.0
"""Seconds that the last checkpoints of a trainer that has ended are given to be written to their end, where somebody
else does that: another node, a process that nobody knows of."""
STILL_PAUSE = 5.0
"""Between two looks whether they are."""

_WRITTEN = "somebody wrote to it still"
_BEHIND = "another of its step waits"
_LEFT = "one of its processes may have been saving still, and failed, was killed or had to be stopped"
_OOM = "the kernel had killed something for want of memory, maybe in the middle of a save"
_STOPPED = "as it was stopped, maybe in the middle of a save"


def _step(name: str) -> int:
    return int(name.removeprefix("step_"))


class Publisher:
    """One attempt's. `held` says whether the lease is ours for all we know, `safe` whether nobody else can have it,
    `healthy` whether the loss was finite at a step, `metric` how one was told last up to a step. `check` raises
    Cancelled once nothing is waited for; `patient`: whether anybody has the time to wait for room."""

    def __init__(
        self,
        folder: RunFolder,
        epoch: int,
        mode: str,
        trainer: str,
        settle: float,
        keep: int,
        clock: Clock,
        recorder: Recorder,
        *,
        taking: Taking | None = None,
        retention: Retention = NEWEST_ONLY,
        metric: Callable[[str, int], float | None] = lambda name, step: None,
        held: Callable[[], bool],
        safe: Callable[[], bool],
        on_fenced: Callable[[], None],
        healthy: Callable[[int], bool] = lambda step: True,
        check: Check = never,
        patient: Callable[[], bool] = lambda: True,
        marks: bool | None = None,
    ) -> None:
        self._folder = folder
        self._epoch = epoch
        self._taking = taking
        self._retention = retention
        self._metric = metric
        self._gently = taking.gently if taking else asyncio.to_thread
        self._mode = mode
        self._trainer = trainer
        self._keep = keep
        self._clock = clock
        self._recorder = recorder
        self._held = held
        self._safe = safe
        self._on_fenced = on_fenced
        self._healthy = healthy
        self._check = check
        self._patient = patient
        self._settle = settle
        self._watch = StagingWatch(folder.staging(epoch), settle, clock, marks)
        self._watch.demanded = marks is True
        self._look_back = marks is None  # whether earlier attempts are still to be asked
        self._remarks = Remarks(recorder)
        self._done = asyncio.Event()
        self._soon = asyncio.Event()  # there is a reason to look before it is time
        self._stirred = -math.inf  # when there was something to look at last
        self._wait_until = 0.0
        self._again = False
        self._over = False  # the trainer is gone
        self._awaits_still = False  # somebody else writes to what it saved
        self._written: set[str] = set()  # what did at the end, as of the last look
        self._changed: dict[str, int] = {}  # what changed under our hands since: when it was written to last
        self._passed: set[Staged] = set()  # they had to wait, and one saved after them was published
        self._mounted = Mounted(folder, epoch)
        self._lost = Lost(folder, epoch, recorder, on_fenced)
        self._cleared = False  # our staging folder was not there at the last look
        self._begun = Begun(folder, epoch, self._watch, taking, settle)
        self._missed = Missed()
        self._unused = Unused(folder, recorder, self._missed, self._begun.was_asked_for)
        self._waits = False  # for room or whatever else it needs, at the end
        self._said: set[str] = set()  # on the pod, what the volume refuses and why
        self.measured = Measured()
        self.answers = self._begun.answers
        self.protect: set[str] = set()
        self.sending: Callable[[], set[str]] = set  # what is on its way off the pod is spared, too
        self.undecided = True
        """Something may lie there that is whole once it has kept still; as of the last look, and while it goes on."""
        self.newest_step: int | None = None
        self.may_prune = True
        """False once there is doubt whether the resume took."""
        self.only_healthy = False
        """What was saved while the loss was bad stays where it is."""
        self.catch_up: Callable[[], Awaitable[bool]] | None = None
        """Has what the trainer printed until now heard: the loss with which something was saved may be in it. False: it
        may not have been."""
        self.tell_listing: Callable[[], Awaitable[None]] | None = None
        """Tells what is on the volume, where somebody is to hear of it."""
        self._heard = Heard(clock, patient)

    async def run(self) -> None:
        """Until `finish` asks for the last look."""
        await asyncio.to_thread(self._mounted.begin)
        self._stirred = self._clock.boot()
        while not self._done.is_set():
            self._soon.clear()
            await self.look()
            calm = self._clock.boot() - self._stirred >= CALM_AFTER
            with suppress(TimeoutError):
                async with asyncio.timeout(to_next(LOOK_EVERY * (CALM if calm else 1))):
                    await self._soon.wait()

    def heed_frozen(self, frozen: Callable[[], bool]) -> None:
        """What keeps still while its trainer is stopped says nothing by that. `frozen`: whether it is; blocking."""
        self._watch.watching.frozen = frozen
        if self._taking:
            self._taking.heed_frozen(frozen)

    async def trainer_stops(self) -> None:
        """To be called right before it is asked to."""
        await self._begun.trainer_stops()

    async def asked_to_save(self) -> None:
        """To be called right before its trainer is."""
        self._stirred = self._clock.boot()
        self._soon.set()
        await self._begun.asked_to_save()

    @property
    def awaited(self) -> str:
        """As `Begun` has it."""
        return self._begun.awaited

    def wish_is_taken(self) -> None:
        """Its trainer was seen to take the wish for a checkpoint."""
        self._begun.heeded = True

    def settling(self) -> list[Settling]:
        """As `Begun` has it."""
        return self._begun.settling()

    def close(self) -> None:
        """No look is begun any more; the one that is going on ends first."""
        self._done.set()
        self._soon.set()

    async def finish(
        self,
        exit_code: int,
        over: Callable[[int], bool] = lambda step: True,
        *,
        stopped: bool = False,
        leftovers: int = 0,
        oom: bool = False,
    ) -> None:
        """The last look, when the trainer's tree is gone. An exit with 0 proves no save that may have been cut: of one
        that was `stopped`, that had `leftovers`: processes which were, or failed, or were killed before it (`oom`: for
        want of memory), or that ended before its last step. `over`: whether a run that has saved that step can be at
        its end."""
        self._wait_until = 0.0
        self._over = True
        if self._begun.at_stop is None and not stopped:  # the word of its guardian, or of an agent before this one
            stopped = await asyncio.to_thread(was_stopped, self._folder, self._epoch)
        begun = self._begun.at_stop
        if leftovers or (begun is None and stopped):
            begun = ANY
        left = _OOM if oom else _LEFT
        self._watch.why_cut = left if leftovers else _STOPPED if begun is not None else EARLY
        self._watch.may_be_cut = lambda name: name in (begun or ()) or not over(_step(name))
        if self._taking:
            self._taking.doubt_exit(lambda step: begun is not None or not over(step))
        await self.look(exit_code)
        if self._again:  # it changed although nobody is left to write: the clock of the volume is behind
            await self.look(exit_code)
        await self._wait_until_still(exit_code)
        await self._wait_for_room(exit_code)
        if self._lost.what:
            self._missed.add_new(await asyncio.to_thread(self._mounted.saved_elsewhere))
            return
        for doubt in self._taking.unproven() if self._taking else ():
            self._missed.add({doubt.path: (doubt.saved_at, doubt.step)}, doubt.why)
        for torn in self._watch.torn():
            await self._unused.torn(Staged(_step(torn.path.name), torn.path, torn.saved_at), torn.reason)

    async def _wait_until_still(self, exit_code: int) -> None:
        """Nobody of this pod is left to write to them; others may be."""
        self._awaits_still = bool(self._written)
        names = ", ".join(sorted(self._written))
        words = f"{names} is written to still: waiting up to {STILL_WITHIN:g} s until it is whole"
        await self._wait_while(lambda: bool(self._written), exit_code, STILL_WITHIN, (STILL_PAUSE, STILL_PAUSE), words)
        if self._written and not self._lost.what:
            self._recorder.event("checkpoint.left", f"{self.unpublished(0)}; it stays where it is")

    async def _wait_for_room(self, exit_code: int) -> None:
        """Nothing comes after these: try for a while before the attempt ends without them."""
        self._waits = self.kept
        names = ", ".join(self._missed.names)
        words = f"{names} waits up to {ROOM_WITHIN:g} s to be published"
        if self._missed.only_room:
            words = f"the volume is full: {words}; make room on it"
        else:
            words = f"{words}: {self._missed.why('')}"
        await self._wait_while(lambda: self.kept, exit_code, ROOM_WITHIN, ROOM_PAUSE, words)
        if self.kept:
            for name in self._missed.names:
                await self._unused.whole(self._folder.staging(self._epoch) / name)
            self._recorder.event("checkpoint.left", f"{self.unpublished(0)}; {self._next('what is kept')}")

    async def _wait_while(
        self, missing: Callable[[], bool], exit_code: int, within: float, pauses: tuple[float, float], words: str
    ) -> None:
        """Looks again and again, at most `within` seconds long; `words` are said first."""
        pause, longest = pauses
        until = self._clock.boot() + within

        def waits() -> bool:
            return missing() and not self._lost.what and self._patient() and self._clock.boot() < until

        if waits():
            say(words)
        while waits():
            await asyncio.sleep(min(pause, until - self._clock.boot()))
            pause = min(2 * pause, longest)
            self._wait_until = 0.0
            await self.look(exit_code)

    def published_before(self) -> list[Published]:
        """What an earlier agent of this attempt published, oldest first: it goes on from there. Blocking."""
        try:
            found = [sealed for sealed in published(self._folder)[0] if sealed.manifest.epoch == self._epoch]
        except OSError:
            return []  # the looks to come say what is wrong with the volume
        found.sort(key=lambda sealed: sealed.manifest.seq)
        if found:
            self.newest_step = found[-1].manifest.step
            for sealed in found:
                at = sealed.manifest.saved_at or saved_at(sealed.path)
                self._missed.published(at, sealed.manifest.step)
            self.measured.bytes = found[-1].manifest.total_bytes
        for step, path in staged_aside(self._folder, self._epoch):
            where = str(path.relative_to(self._folder.root))
            why = "an agent before this one set it aside"
            self._missed.add_aside(f"step_{step}", why, (saved_at(path), step), where, before=True)
        return [Published.of(sealed) for sealed in found]

    def unpublished(self, step: int) -> str:
        """Which checkpoints did not come onto the volume although the volume should have them, and why; or nothing.
        `step`: where the trainer ended. One that was published later makes up for those before it."""
        return self._missed.words(self._lost.what, self.newest_step, step)

    @property
    def kept(self) -> bool:
        """Whether all that was not published is whole and waits where it was saved: the next attempt will."""
        return self._missed.only_waits and not self._lost.what

    @property
    def asked_for(self) -> bool:
        """As `Unused` has it."""
        return self._unused.asked_for

    @property
    def torn(self) -> bool:
        """Whether nobody can publish what was not published."""
        return self._missed.only_aside and not self._lost.what

    async def look(self, exit_code: int | None = None) -> None:
        """One look at the staging folder; the last one where `exit_code` is given."""
        try:
            # In one thread, one after the other: most looks find nothing, and to wake a thread costs more than they do.
            lost, found, whole = await self._gently(self._see, exit_code)
            if not await self._lost.note(lost, self._cleared):
                return
            self.undecided |= bool(found)  # taking takes long, and more may come meanwhile
            if self._taking and not lost:
                await self._take(self._taking, found, exit_code)
            if whole is None:
                whole = await asyncio.to_thread(self._watch.scan, self._clock.boot(), exit_code)
        except OSError as error:
            if not self._lost.what:
                self._trouble("checkpoint.unseen", f"the staging folder cannot be read: {error.strerror or error}")
            return
        self.undecided = undecided = bool(self._watch.waiting or (self._taking and self._taking.waiting))
        if found or self._watch.any or (self._taking and self._taking.any):
            self._stirred = self._clock.boot()
        if self._lost.what:
            self._missed.add({staged.path.name: staged.saved for staged in whole}, self._lost.what)
            return
        if self.tell_listing is not None:
            await self.tell_listing()
        self._remarks.make(self._watch)
        if self._taking:
            self._taking.say_if_none(self.newest_step is not None or self._watch.found)
        self._missed.keep({staged.path.name for staged in whole})
        if self._taking and self._taking.held:
            self._missed.add(self._taking.held, self._taking.held_why, self._taking.held_as)
        if self._clock.boot() < self._wait_until:
            return
        self._again = False
        self._written.clear()
        if self._over and self._taking:
            self._again = bool(self._taking.unsettled or self._taking.behind)
            self._written |= self._taking.unsettled.keys()
            self._missed.add(self._taking.unsettled, _WRITTEN)
            self._missed.add(self._taking.behind, _BEHIND, Miss.NO_ROOM)
        self.undecided |= bool(whole)  # so do hearing and publishing
        heard = await self._heard.ask(self.catch_up) if whole else True
        if heard is None:
            return
        waiting: set[Staged] = set()
        for staged in whole:
            if self.only_healthy and not (heard and self._healthy(staged.step)):
                continue
            if staged in self._passed:
                await self._unused.beside(staged, self.newest_step)
            elif self._awaits_still and self._changed.get(staged.path.name, staged.saved_at) != staged.saved_at:
                self._unsettled(staged)
                waiting.add(staged)
            elif await self._publish(staged, heard):
                self._passed |= waiting
            else:
                waiting.add(staged)
        self.undecided = undecided

    def _see(self, exit_code: int | None) -> tuple[str, list[Ready] | None, list[Staged] | None]:
        """What of the volume is missing; what can be taken from the trainer's own folder; what is whole in the staging
        folder, or None where that is to be seen later. Blocking."""
        if lost := self._mounted.missing():
            return lost, None, None
        self._cleared = not os.path.lexists(self._folder.staging(self._epoch))
        if self._look_back:
            self._look_back = False
            self._watch.marks = marks_so_far(self._folder, self._mode, self._trainer)
        found = self._taking.scan(exit_code) if self._taking else None
        return "", found, None if found else self._watch.scan(self._clock.boot(), exit_code)

    async def _take(self, taking: Taking, found: list[Ready] | None, exit_code: int | None) -> None:
        """What the trainer saved in its own folder, into the staging folder."""
        try:
            await taking.take(found, exit_code, self.answers.taken)
        except Cancelled:
            self._done.set()
        if taking.held and taking.held_as is Miss.NO_ROOM:
            await self._prune()

    async def _publish(self, staged: Staged, heard: bool) -> bool:
        """Whether it is in the line now. `heard`: all that its trainer printed before it was whole."""
        older = await self._begun.began_before(staged.path, self._missed.last_saved)
        began = self._clock.boot()
        self._begun.publishing = staged.path.name
        try:
            done = await self._gently(
                publish,
                self._folder,
                staged,
                self._epoch,
                self._still_mine,
                mode=self._mode,
                trainer=self._trainer,
                healthy=heard and self._healthy(staged.step),
                metrics=self._metrics(staged.step),
                point=self._safe,
                check=self._check,
            )
        except Cancelled:
            await self._unused.whole(staged.path)
            words = f"{staged.path.name} stays in the staging folder: {self._next('it')}"
            self._recorder.event("checkpoint.left", words, {"name": staged.path.name})
            self._done.set()
        except Fenced:
            self._on_fenced()
        except Unsettled:
            self._unsettled(staged)
        except Unreadable as trouble:
            self._missed.add({staged.path.name: staged.saved}, str(trouble))
            self._trouble("checkpoint.unread", f"{staged.path.name} waits: {trouble}")
        except Torn as torn:
            await self._unused.torn(staged, torn.reason)
        except OSError as error:
            await self._refused(staged, error)
        else:
            self.answers.published(staged.path.name, older)
            self._begun.publishing = ""
            self.newest_step = done.step
            self._missed.published(*staged.saved)
            if done.fresh:
                self.measured.published(done.bytes, self._clock.boot() - began)
                self._recorder.published(done)
                if self._taking and staged.linked:
                    await self._taking.published(done.path)
                await self._prune()
            return True
        finally:
            self._begun.publishing = ""
        return False

    def _unsettled(self, staged: Staged) -> None:
        """Once more; at the end it must not have been written to in between."""
        name = staged.path.name
        self._again = True
        self._watch.doubt(name)
        if self._over:
            self._written.add(name)
            self._changed[name] = staged.saved_at
            self._missed.add({name: staged.saved}, _WRITTEN)

    def _metrics(self, step: int) -> dict[str, float]:
        """What pruning goes by, as it is known of that step."""
        best = self._retention.best
        value = self._metric(best.name, step) if best else None
        return {best.name: value} if best and value is not None and math.isfinite(value) else {}

    async def _refused(self, staged: Staged, error: OSError) -> None:
        """There may be room again, or rights, or a server that answers. What a device lost does not come back."""
        words, name = error.strerror or str(error), staged.path.name
        if error.errno == errno.ENOENT and await asyncio.to_thread(was_taken_away, staged.path):
            return
        if lost := await asyncio.to_thread(self._mounted.missing):  # it went under our hands
            if await self._lost.note(lost):
                self._missed.add({name: staged.saved}, lost)
            return
        if is_spoilt(error):
            self._trouble("checkpoint.failed", f"{name} is set aside, the volume failed: {words}")
            await self._unused.failed(staged, words)
        elif error.errno in FULL:
            self._missed.add({name: staged.saved}, words, Miss.NO_ROOM)
            if not self._waits:
                self._trouble("checkpoint.no_space", f"{name} waits, the volume is full: {words}")
            await self._prune()
        else:
            self._missed.add({name: staged.saved}, refusal(error, staged.path), Miss.HELD)
            words = f"{name} waits, {refusal(error, staged.path)}"
            if not self._waits:
                self._trouble("checkpoint.refused", words)
            if words not in self._said:
                self._said.add(words)
                say(words)

    def _trouble(self, kind: str, message: str) -> None:
        if self._clock.boot() >= self._wait_until:
            self._recorder.event(kind, message)
            self._wait_until = self._clock.boot() + RETRY_AFTER

    async def _prune(self) -> None:
        if not (self.may_prune and self._safe()):
            return
        try:
            removed = await asyncio.to_thread(
                prune, self._folder, self._keep, self.protect | self.sending(), self._safe, retention=self._retention
            )
        except OSError as error:
            self._recorder.event("prune.failed", f"old checkpoints stay: {error.strerror or error}")
            return
        for name in removed:
            self._recorder.pruned(name)

    def _next(self, what: str) -> str:
        """What becomes of what is left. Who lost the run knows of an attempt that has looked already."""
        return f"the next attempt publishes {what}" if self._held() else "another attempt has the run"

    def _still_mine(self) -> bool:
        """Asked in a thread right before a checkpoint enters the line: the volume's own word counts too."""
        return self._held() and highest_claim(self._folder) <= self._epoch
