"""Where an attempt begins: the checkpoint to resume from, what earlier attempts left, and what is said about both."""

from __future__ import annotations

import asyncio
import errno
import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from relay_agent.attempt.assembly import MARKS, progress_of
from relay_agent.attempt.telling import Teller
from relay_agent.attempt.tenure import Tenure, is_ours
from relay_agent.attempt.whence import TABLE, Act, Found, Here, There
from relay_agent.checkpoints.line import survey
from relay_agent.checkpoints.publish import Fenced
from relay_agent.checkpoints.rescue import rescue
from relay_agent.checkpoints.resume import Remains, Resume, choose, is_another, is_passed_over, of_name, remains
from relay_agent.checkpoints.rollback import spoilt_last
from relay_agent.checkpoints.salvage import Salvage, Told
from relay_agent.checkpoints.taking import checkpoint_dir, kinds_of
from relay_agent.checkpoints.tree import Cancelled, Torn
from relay_agent.config import Settings
from relay_agent.outcome.stop import Stop
from relay_agent.output.recorded import Recorded
from relay_agent.process import say
from relay_agent.volume.spoilt_claims import set_aside
from relay_agent.volume.volume import RunFolder, claimed_epochs, read_claim
from relaytui.wire.clock import Clock
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.messages import CheckpointRef
from relaytui.wire.text import clean, counted

if TYPE_CHECKING:
    from relay_agent.attempt.forking import Forking
    from relay_agent.attempt.restoring import Restoring


class Past(NamedTuple):
    """The furthest `step` of a run, and the `total` that its command told last; what is not known is none."""

    step: int = 0
    total: int | None = None


LOGS = 8
"""Of as many attempts before this one, the newest, the logs are asked how far they had come."""


class Beginning:
    """`newest`: of the checkpoints that the commander knows. `healthy`: go back to the last one saved while the loss
    was well, as also where the attempt before left a note that it was not; the claim that names it takes later ones off
    the line, where they stay."""

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        newest: CheckpointRef | None,
        keep: int,
        trainer: str,
        tenure: Tenure,
        tell: Teller,
        stop: Stop,
        healthy: bool = False,
        restoring: Restoring | None = None,
        forking: Forking | None = None,
        *,
        clock: Clock,
    ) -> None:
        self._healthy = healthy
        self._settings = settings
        self._folder = folder
        self._newest = newest
        self._keep = keep
        self._trainer = trainer
        self._tenure = tenure
        self._tell = tell
        self._stop = stop
        self._restoring = restoring
        self._forking = forking
        self._clock = clock
        self._begins = False  # there is nothing that it could go on from
        self._anew = ""  # why it starts from the beginning although there was more
        self._bad: dict[str, str] = {}  # checkpoints that are here and not whole, and why
        self._loop = asyncio.get_running_loop()

    async def resume(self) -> Resume | None:
        """What to resume from, said aloud. RelayError where checkpoints are missing or damaged and nobody said what to
        do then: a run that has saved does not quietly go back further than it must, least of all to the beginning.
        Cancelled where somebody has no time for it."""
        for words in await asyncio.to_thread(set_aside, self._folder, self._tenure.lease.epoch):
            self._tell.event("claim.damaged", words)
            say(words)
        resume = await self._choose()
        if self._anew:
            return None
        left = await asyncio.to_thread(remains, self._folder)
        known = self._newest if self._newest is not None and not self._is_behind(resume) else None
        newest = known.name if known is not None else ""
        lost = damage = ""
        if newest and (lost := await asyncio.to_thread(self._of_another, newest)):
            self._tell.event("checkpoint.missing", lost, {"name": newest})
        elif newest and self._has(newest):
            resume = await self._named(newest, resume)
        if newest and not lost and not self._has(newest):
            damage = self._bad.get(newest) or (f"it is kept in {left.aside[newest]}" if newest in left.aside else "")
            if not damage:
                lost = f"{newest} is not on this volume"
                self._tell.event("checkpoint.missing", lost, {"name": newest})
        if resume is None and not lost:
            lost = self._nothing_whole(left)
            if lost:
                self._tell.event("checkpoint.missing", lost)
        here = self._here(resume, known, lost, damage)
        found = Found(TABLE[here, There.NOTHING, self._settings.on_missing_checkpoint])
        if self._restoring is not None:
            found = await self._restoring.find(here, resume, known, healthy=self._healthy)
        if found.act is not Act.ASK:
            await asyncio.to_thread(self._forget)
        if found.act is Act.HUB:
            return found.resume
        if found.act is Act.ASK:
            raise self._missing(lost, resume, found)
        if found.act is Act.BEGIN:
            self._begins = True
            self._anew = f", as ON_MISSING_CHECKPOINT says: {lost}" if lost else ""
            return None
        if damage and resume is not None:
            words = f"{newest} is damaged ({damage}): going on from {resume.name}"
            self._tell.event("checkpoint.bad", words, {"name": newest})
            say(words)
        return resume

    def _forget(self) -> None:
        """What came in from elsewhere and is not wanted any more. Blocking."""
        if not self._folder.incoming.is_dir() or not self._mine():
            return
        from relay_agent.checkpoints.receiving import forget

        forget(self._folder)

    def _mine(self) -> bool:
        return is_ours(self._tenure, self._folder)

    def _here(self, resume: Resume | None, known: CheckpointRef | None, lost: str, damage: str) -> Here:
        if resume is None:
            return Here.LOST if lost else Here.EMPTY
        if lost:
            return Here.OLDER
        best = resume.on_line and not damage and not (known is None and self._bad)
        return Here.NEWEST if best else Here.NEXT

    def _missing(self, lost: str, resume: Resume | None, found: Found) -> RelayError:
        here = f"the newest whole one here is {resume.name}" if resume else "no whole one is here"
        unreached = found.there is There.UNREACHED
        hint = "mount the volume that has it or put a whole copy back, or set ON_MISSING_CHECKPOINT to "
        hint += "older or restart" if resume or found.older else "restart to train from the beginning"
        if unreached:
            hint = "see to that and start the agent again"
        hint = self._copies() + hint
        return RelayError(
            "hub_unreached" if unreached else "checkpoint_missing",
            f"the newest checkpoint of run {self._settings.run_id} cannot be resumed from: "
            + "; ".join(filter(None, (lost, here, found.words))),
            hint,
            exit_code=Exit.UNAVAILABLE if unreached else Exit.USAGE,
        )

    def _copies(self) -> str:
        """Where the commander knows of a copy, and this pod was not told to look: a hint to begin with."""
        newest, places = self._newest, []
        if newest is not None and newest.stored and self._settings.artifacts == "none":
            places.append(
                f"the commander has {newest.name} in the artifact store: set ARTIFACTS to final to go on from it"
            )
        if newest is not None and newest.hub and not self._settings.hf_repo:
            places.append(
                f"{newest.name} is on the Hub as {newest.hub}: set HF_REPO to that repository to go on from it"
            )
        return "".join(f"{place}; or " for place in places)

    async def _choose(self) -> Resume | None:
        check = self._stop.unless_asked
        self._healthy = self._healthy or await asyncio.to_thread(spoilt_last, self._folder)
        if not self._healthy:
            return await asyncio.to_thread(choose, self._folder, self._passed_over, check=check)
        resume = await asyncio.to_thread(choose, self._folder, self._passed_over, check=check, healthy=True)
        order = await asyncio.to_thread(survey, self._folder)
        ahead = list(takewhile(lambda sealed: resume is None or sealed.name != resume.name, order.line))
        if resume is None and ahead and not self._bad:
            self._anew = ": none of its checkpoints is known to have been saved while the loss was well"
        if ahead:
            counts = counted(len(ahead), "later checkpoint stays", "later checkpoints stay")
            back = f"to {resume.name}, the last one saved while the loss was well" if resume else "to the beginning"
            words = f"back {back}: {counts} in ckpt and out of the line, the newest is {ahead[0].name}"
            self._tell.event(
                "resume.rolled_back", words, {"name": resume.name if resume else "", "from": ahead[0].name}
            )
            say(words)
        return resume

    async def salvage(self, resume: Resume | None) -> Resume | None:
        """What to resume from once it is seen to what earlier attempts saved and did not publish; said aloud.
        RelayError where the volume is too full for the newest of it and nobody said what to do then, or where what it
        should begin with cannot be had."""
        lease = self._tenure.lease
        salvage = Salvage(
            self._folder,
            lease.epoch,
            self._mine,
            self._keep,
            accept=not (self._anew or self._healthy),
            restarts=self._settings.counter_restarts,
            mode=self._settings.mode,
            trainer=self._trainer,
            marks=MARKS[self._settings.complete_marker],
            rescue=self._rescue,
            well=self._recorded.well,
            over=self._recorded.over,
            retention=self._settings.retention,
            check=self._stop.unless_asked,
        )
        try:
            await asyncio.to_thread(salvage.work)
        except Fenced:
            self._tenure.fenced()
        except Cancelled:
            pass  # what is not published yet stays where it is
        for told in salvage.told:
            self._tell.event(told.kind, told.message, {"name": told.name} if told.name else None)
            say(told.message)
        for done in salvage.published:
            self._tell.published(done)
            before = resume.last_healthy if resume else None
            healthy = done.name not in salvage.unhealthy
            well = done.name if healthy else before
            resume = Resume(done.path, done.name, done.step, lease.epoch, healthy=healthy, last_healthy=well)
        for name in salvage.pruned:
            self._tell.pruned(name)
        last = max((at for at, told in enumerate(salvage.told, 1) if told.kind == "checkpoint.salvaged"), default=0)
        waits = [told for told in salvage.told[last:] if told.kind in ("checkpoint.no_space", "checkpoint.refused")]
        if waits and self._settings.on_missing_checkpoint == "ask":
            full = waits[-1].kind == "checkpoint.no_space"
            mend = "make room on the volume" if full else "see to it that the volume takes it"
            raise RelayError(
                "volume_full" if full else "volume_refuses",
                f"run {self._settings.run_id} does not go on without what was saved last: {waits[-1].message}",
                f"{mend}, or set ON_MISSING_CHECKPOINT to older to train that part again",
                exit_code=Exit.STATE,
            ) from (OSError(errno.ENOSPC, waits[-1].message) if full else None)
        if resume is None and self._begins and self._forking is not None and not self._stop.asked.is_set():
            resume = await self._forking.fork()
        if resume is None and self._settings.base_model.startswith("/"):
            await asyncio.to_thread(_refuse_missing, self._settings.base_model)
        self._say(resume)
        return resume

    def _rescue(self, dead: int) -> list[Told]:
        """Called in a thread."""
        root = checkpoint_dir(self._settings, self._folder, dead)
        return rescue(
            self._folder, dead, root, kinds_of(self._settings), restarts=self._settings.counter_restarts,
            last_step=self._recorded.last_step, over=self._recorded.over, check=self._stop.unless_asked,
        )  # fmt: skip

    async def past(self) -> Past:
        """How far the attempts before this one had come, as the newest logs tell."""
        with suppress(OSError, Cancelled):
            return await asyncio.to_thread(self._past)
        return Past()

    def _past(self) -> Past:
        now, past = read_claim(self._folder, self._tenure.lease.epoch), Past()
        for epoch in reversed(claimed_epochs(self._folder)[-LOGS - 1 :]):
            claim = read_claim(self._folder, epoch)
            if now is None or claim is None or epoch >= now.epoch:
                continue
            total = self._recorded.total(epoch) if claim.config_hash == now.config_hash else None
            past = Past(max(past.step, self._recorded.last_step(epoch)), total if past.total is None else past.total)
        return past

    @functools.cached_property
    def _recorded(self) -> Recorded:
        return Recorded(
            self._folder, functools.partial(progress_of, self._settings), self._clock, self._stop.unless_asked,
            self._in_the_loop if self._settings.patterns else lambda read: read(),
        )  # fmt: skip

    def _in_the_loop(self, read: Callable[[], bool]) -> bool:
        """Called in a thread: only the main one can stop a pattern that takes too long."""
        if threading.current_thread() is threading.main_thread():
            return read()

        async def reads() -> bool:
            return read()

        return asyncio.run_coroutine_threadsafe(reads(), self._loop).result()

    def _say(self, resume: Resume | None) -> None:
        if resume is None:
            words = f"no checkpoint to resume from: starting from the beginning{self._anew}"
            if model := self._settings.base_model:
                words += f", with {model}"
            self._tell.event("resume.cold", words)
            say(words)
            return
        self._tell.journal.latest_ckpt = resume.name
        at = "" if resume.name == f"step_{resume.step:08d}" else f" at step {resume.step}"
        beside = "" if resume.on_line else ", which lies beside the line: nothing on it is whole"
        self._tell.event("resume.checkpoint", f"from {resume.name}{at}{beside}", {"name": resume.name})
        say(f"resuming from {resume.name} at step {resume.step}")
        if not resume.healthy:
            before = f"the last one that is: {resume.last_healthy}" if resume.last_healthy else "nor is any other"
            words = f"{resume.name} is not known to have been saved while the loss was well; {before}"
            self._tell.event("resume.unhealthy", words, {"name": resume.name})
            say(words)

    def _nothing_whole(self, left: Remains) -> str:
        """Why none is whole although the run had checkpoints; empty where it never had one."""
        damaged = [f"{name} is damaged ({reason})" for name, reason in self._bad.items()]
        damaged += [
            f"{name} is damaged (it is kept in {path})" for name, path in left.aside.items() if name not in self._bad
        ]
        if damaged:
            more = f", and {len(damaged) - 3} more" if len(damaged) > 3 else ""
            return "; ".join(damaged[:3]) + more
        return f"there was one, as {left.traces[0]} tells, and it is gone" if left.traces else ""

    def _is_behind(self, resume: Resume | None) -> bool:
        """The line on this volume goes on beyond the newest one that the commander knows of: it lost its books, or
        never heard of the later ones, and its newest may be pruned by now."""
        if self._newest is None or resume is None or not resume.on_line:
            return False
        return (resume.epoch, resume.step) > (self._newest.epoch, self._newest.step)

    def _has(self, name: str) -> bool:
        """Whole, for all that was found."""
        return name not in self._bad and (self._folder.ckpt / name / "manifest.json").is_file()

    def _of_another(self, name: str) -> str:
        """What is wrong with a checkpoint here that only has the name of the one that the commander knows. Blocking."""
        assert self._newest is not None
        path = self._folder.ckpt / name
        if name in self._bad or not is_another(path, self._settings.run_id, self._newest.manifest):
            return ""
        return f"the {name} on this volume is another one than that of epoch {self._newest.epoch}, which is missing"

    async def _named(self, name: str, resume: Resume | None) -> Resume | None:
        """The newest that the commander knows of is here: that one, where the claims lead past it and nobody noted why.
        They may tell of an attempt that saved nothing, or be damaged."""
        known = resume is not None and resume.name == name
        if known or self._healthy or not await asyncio.to_thread(is_passed_over, self._folder, name):
            return resume
        try:
            found = await asyncio.to_thread(of_name, self._folder, name, self._stop.unless_asked)
        except Torn as torn:
            self._bad[name] = f"{torn.reason}; it stays in {self._folder.ckpt / name}"
            return resume
        beyond = f"those here lead to {resume.name}" if resume is not None else "those here lead to none"
        words = f"{name} is the newest that the commander knows, whatever the claims say: {beyond}"
        self._tell.event("resume.named", words, {"name": name})
        say(words)
        return found

    def _passed_over(self, name: str, reason: str) -> None:
        """Called in a thread."""
        self._bad[name] = reason
        words = f"{name} is not used: {reason}"
        self._loop.call_soon_threadsafe(lambda: self._tell.event("checkpoint.bad", words, {"name": clean(name, 128)}))


def _refuse_missing(model: str) -> None:
    if not Path(model).is_dir():
        raise RelayError(
            "base_model_missing",
            f"BASE_MODEL {model!a} is not a folder on this pod, and the run has no checkpoint to go on from",
            "mount it there, or name a model on the Hub",
            exit_code=Exit.USAGE,
        )
