"""One attempt at a run, from the claim to the report that ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
from collections.abc import Coroutine, Mapping
from typing import Any

from relay_agent.acquire import Grant
from relay_agent.checkpoints.publish import Fenced, Published
from relay_agent.checkpoints.resume import Remains, Resume, choose, remains
from relay_agent.checkpoints.salvage import Salvage
from relay_agent.checkpoints.tree import Cancelled
from relay_agent.config import Settings
from relay_agent.follow import Follower
from relay_agent.journal import Journal
from relay_agent.lease import Lease
from relay_agent.leftovers import forget, write_note
from relay_agent.link import Link, LinkLost
from relay_agent.process import say
from relay_agent.progress import Progress
from relay_agent.publisher import Publisher
from relay_agent.spool import Spool
from relay_agent.stop import Stop, Why
from relay_agent.supervise import Supervised
from relay_agent.trainer import Launch, refuse_too_large, trainer_environment
from relay_agent.verdict import Verdict, judge, never_started, volume_failed
from relay_agent.volume import Claim, RunFolder, claim, highest_claim
from relaytui.wire import reports
from relaytui.wire.clock import Clock
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.messages import Order, Refused, Renew, Renewed
from relaytui.wire.status import OrderKind, Outcome
from relaytui.wire.text import clean

LAST_WORD = 300.0
"""Seconds to wait until the commander has acknowledged how it ended, at least; a lease that is longer counts."""
SAY_AFTER = 3.0
"""Seconds of that in silence."""
VOLUME_ANSWERS = 5.0
"""Seconds to wait for the volume's word on who holds the run, where it decides only what a file for people says."""
RENEW_TIMEOUT = 10.0


class Attempt:
    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        launch: Launch,
        grant: Grant,
        incarnation: str,
        link: Link,
        stop: Stop,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._launch = launch
        self._config = grant.answer.config
        self._newest = grant.answer.newest
        self._incarnation = incarnation
        self._link = link
        self._stop = stop
        self._clock = clock
        self._rng = rng
        self._ended = False
        self._cut_off = False
        self._unknown = False
        self._anew = ""  # why it starts from the beginning although there was more
        self._bad: dict[str, str] = {}  # checkpoints that are here and not whole, and why
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self.lease: Lease = grant.lease
        self.epoch = self.lease.epoch
        self.spool = Spool(self.lease.run_id, self.epoch, self.lease.token)
        self.journal = Journal(folder, settings.worker_id, clock)
        self.journal.epoch = self.epoch
        self._guard = f"{settings.run_id}.{self.epoch}.{secrets.token_hex(8)}"

    # -- the story -----------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """The exit code of the agent: the trainer's own, or one of ours where the lease was lost."""
        self.journal.open()
        self._link.spool = self.spool
        renewing = asyncio.create_task(self._renew(), name="renew")
        try:
            await self._granted()
            try:
                verdict = await self._train()
            except OSError as error:
                refused = volume_failed(error, self._settings.l1_root)
            except RelayError as error:
                refused = error
            else:
                await self._end(verdict)
                return verdict.exit_code
            self.event("attempt.refused", str(refused))
            await self._end(never_started(refused, self._stop))
            raise refused
        finally:
            renewing.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(renewing, *self._tasks, return_exceptions=True)
            await self.journal.close()

    async def _train(self) -> Verdict:
        try:
            resume = await asyncio.to_thread(choose, self._folder, self._passed_over, check=self._stop.unless_asked)
        except Cancelled:
            return Verdict.before_start(self._stop, 0)
        resume = self._resumes(resume, await asyncio.to_thread(remains, self._folder))
        claimed = Claim(
            self.epoch,
            self._settings.worker_id,
            self._incarnation,
            resume.name if resume else None,
            self._launch.digest,
            self._clock.wall(),
        )
        await asyncio.to_thread(claim, self._folder, claimed)
        resume = await self._salvaged(resume)
        if self._stop.asked.is_set():
            return Verdict.before_start(self._stop, resume.step if resume else 0)

        progress = Progress(resume.step if resume else 0, self._settings.target_steps)
        follower = Follower(progress, self._clock, self.spool.telemetry.append, self._link.wake)
        publisher = self._publisher(resume, follower)
        follower.on_nonfinite = self._nonfinite
        follower.on_first_step = lambda step: self._first_step(step, resume, publisher)
        trainer = Supervised(self._folder.log(self.epoch), follower.feed, follower.skip)
        await self._start(trainer, resume)
        self._stop.listen(lambda at_once: trainer.kill() if at_once else trainer.stop())
        publishing = self._background(publisher.run(), "publish")
        self._background(_ticking(follower), "tick")

        code = await trainer.exited
        leftovers = await trainer.gone
        follower.finish()
        await asyncio.to_thread(forget, self._settings.agent_state, self._settings.run_id, self._guard)
        self.event(
            "trainer.exited", f"the trainer exited with {code}", {"code": str(code), "leftovers": str(leftovers)}
        )
        publisher.close()
        await asyncio.wait({publishing})  # a publish that has begun is not cut off
        if not self._stop.lost:
            await publisher.finish(code)
        unpublished = publisher.unpublished(progress.step)
        return judge(code, self._stop, progress, publisher.newest_step, follower.last_line, unpublished)

    async def _granted(self) -> None:
        say(f"run {self.lease.run_id}: lease granted, epoch {self.epoch}, {self.lease.seconds:g} s")
        self.event("lease.acquired", f"epoch {self.epoch}", send=False)
        await self._state("RUNNING")
        repo = self._settings.hf_repo or self._config.hf_repo
        if repo:
            dry = str(self._settings.hf_dry_run).lower()
            data = {"repo": repo, "dry_run": dry, "interval_sec": str(self._config.hf_sync_interval_sec)}
            self.event("hub.wish", f"sync to {repo} is wished for; this version does not sync yet", data)

    def _resumes(self, resume: Resume | None, left: Remains) -> Resume | None:
        """What to resume from, said aloud. RelayError where checkpoints are missing or damaged and nobody said what to
        do then: a run that has saved does not quietly go back further than it must, least of all to the beginning."""
        newest = self._newest.name if self._newest is not None else None
        lost = ""
        if newest is not None and not self._has(newest):
            damage = self._bad.get(newest) or (f"it is kept in {left.aside[newest]}" if newest in left.aside else "")
            if not damage:
                lost = f"{newest} is not on this volume"
                self.event("checkpoint.missing", lost, {"name": newest})
            elif resume is not None:
                words = f"{newest} is damaged ({damage}): going on from {resume.name}"
                self.event("checkpoint.bad", words, {"name": newest})
                say(words)
        if resume is None and not lost:
            lost = self._nothing_whole(left)
            if lost:
                self.event("checkpoint.missing", lost)
        if lost and self._settings.on_missing_checkpoint == "restart":
            self._anew, resume = f", as ON_MISSING_CHECKPOINT says: {lost}", None
        elif lost and (resume is None or self._settings.on_missing_checkpoint == "ask"):
            here = f"the newest whole one here is {resume.name}" if resume else "no whole one is here"
            raise RelayError(
                "checkpoint_missing",
                f"the newest checkpoint of run {self.lease.run_id} cannot be resumed from: {lost} ({here})",
                "mount the volume that has it or put a whole copy back, or set ON_MISSING_CHECKPOINT to "
                + ("older or restart" if resume else "restart to train from the beginning"),
                exit_code=Exit.USAGE,
            )
        return resume

    async def _salvaged(self, resume: Resume | None) -> Resume | None:
        """What to resume from once it is seen to what earlier attempts saved and did not publish; said aloud."""
        salvage = Salvage(
            self._folder,
            self.epoch,
            lambda: not self.lease.lost and highest_claim(self._folder) <= self.epoch,
            self._config.ckpt_keep_last_n,
            accept=not self._anew,
            mode=self._settings.mode,
            trainer=self._launch.name,
            check=self._stop.unless_asked,
        )
        try:
            await asyncio.to_thread(salvage.work)
        except Fenced:
            self._fenced()
        except Cancelled:
            pass  # what is not published yet stays where it is
        for told in salvage.told:
            self.event(told.kind, told.message, {"name": told.name} if told.name else None)
            say(told.message)
        for done in salvage.published:
            self.published(done)
            before = resume.last_healthy if resume else None
            well = done.name if salvage.healthy else before
            resume = Resume(done.path, done.name, done.step, self.epoch, healthy=salvage.healthy, last_healthy=well)
        for name in salvage.pruned:
            self.pruned(name)
        if resume is None:
            words = f"no checkpoint to resume from: starting from the beginning{self._anew}"
            self.event("resume.cold", words)
            say(words)
        else:
            self.journal.latest_ckpt = resume.name
            beside = "" if resume.on_line else ", which lies beside the line: nothing on it is whole"
            self.event("resume.checkpoint", f"from {resume.name} at step {resume.step}{beside}", {"name": resume.name})
            say(f"resuming from {resume.name} at step {resume.step}")
            if not resume.healthy:
                before = f"the last one before that is {resume.last_healthy}" if resume.last_healthy else "as all were"
                words = f"{resume.name} was saved while the loss was not finite; {before}"
                self.event("resume.unhealthy", words, {"name": resume.name})
                say(words)
        return resume

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

    def _has(self, name: str) -> bool:
        """Whole, for all that was salvage."""
        return name not in self._bad and (self._folder.ckpt / name / "manifest.json").is_file()

    async def _start(self, trainer: Supervised, resume: Resume | None) -> None:
        with contextlib.suppress(OSError):  # only helps who comes after a kill
            await asyncio.to_thread(
                write_note, self._settings.agent_state, self._settings.run_id, self.epoch, self._guard, self._clock
            )
        path = resume.path if resume else None
        env = trainer_environment(os.environ, self._settings, self._config, self._folder, self.epoch, path)
        refuse_too_large(self._launch, env)
        pid = await trainer.start(self._launch.argv, env, self._guard, self._settings.stop_grace)
        step, name = (resume.step, resume.name) if resume else (0, None)
        self.report(reports.Started(self._clock.wall(), step, name, pid))
        self.event("trainer.started", f"{self._launch.name}, pid {pid}", send=False)
        say(f"trainer started: {self._launch.name}, pid {pid}, log {self._folder.log(self.epoch)}")

    async def _end(self, verdict: Verdict) -> None:
        """The last report, and the wait until it is acknowledged: it frees the run."""
        step = verdict.step
        self.report(
            reports.Ended(self._clock.wall(), verdict.outcome, verdict.trainer_code, step, clean(verdict.message, 1000))
        )
        status = {Outcome.COMPLETED: "COMPLETED", Outcome.FAILED: "FAILED"}.get(verdict.outcome, "PREEMPTED")
        self.event("attempt.ended", f"{verdict.outcome}: {verdict.message}", send=False)
        self._ended = True
        await self._state(status, verdict.exit_code)
        say(f"run {self.lease.run_id} {verdict.outcome} at step {step}: {verdict.message}")
        if not await self._last_word():
            say("the commander has not acknowledged everything; the volume has it all")

    async def _last_word(self) -> bool:
        """Whether everything was acknowledged, in time and before somebody got impatient."""
        seconds = max(LAST_WORD, self.lease.seconds)
        waiting = asyncio.create_task(self._link.drained(seconds))
        hurried = asyncio.create_task(self._stop.hurried.wait())
        either = {waiting, hurried}
        done, _ = await asyncio.wait(either, timeout=SAY_AFTER, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            signals = "one more signal ends" if self._stop.why is Why.SIGNAL else "two signals end"
            say(f"waiting up to {seconds:g} s for the commander to hear how it ended; {signals} the wait")
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        for task in (waiting, hurried):
            task.cancel()
        await asyncio.gather(waiting, hurried, return_exceptions=True)
        return not waiting.cancelled() and waiting.result()

    # -- what goes on beside -------------------------------------------------------------------------------------

    def _background(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(_complain)
        self._tasks.append(task)
        return task

    async def _renew(self) -> None:
        """Renew for as long as the lease is ours; at once when the link comes back."""
        while not self.lease.lost:
            sent = self._clock.boot()
            try:
                answer = await self._link.ask(self._renewal, min(RENEW_TIMEOUT, max(2.0, self.lease.every)))
            except LinkLost:
                self._note_cut_off()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.lease.every):
                        await self._link.up()
                await asyncio.sleep(0.2)
                continue
            if isinstance(answer, Renewed):
                self.lease = self.lease.renewed(sent, answer.lease_seconds)
                self._cut_off = self._unknown = False
            elif isinstance(answer, Refused):
                self.refused(answer)
            await asyncio.sleep(self.lease.every * self._rng.uniform(0.9, 1.0))

    def _renewal(self, number: int) -> Renew:
        return Renew(number, self.lease.run_id, self.epoch, self.lease.token)

    def _note_cut_off(self) -> None:
        if not self._cut_off and self._clock.boot() > self.lease.safe_until:
            self._cut_off = True
            self.event(
                "lease.cut_off", f"no renewal for {self.lease.seconds:g} s; on_lease_loss is continue: training goes on"
            )
            say("cut off from the commander for longer than the lease; training goes on, nothing is pruned")

    def refused(self, refused: Refused) -> None:
        """A renewal or reports were refused. Only a word that the lease is over ends anything."""
        if refused.run_id != self.lease.run_id or refused.epoch != self.epoch:
            return
        message = clean(refused.message, 300)
        if refused.code in ("superseded", "released", "not_holder"):
            self.lose(refused.code, message)
        elif not self._unknown:
            self._unknown = True
            self.event("lease.unknown", f"the commander does not know this lease: {message}; training goes on")
            say(f"the commander does not know this lease ({message}); training goes on")

    def lose(self, code: str, message: str) -> None:
        if not self.lease.lost:
            self.lease = self.lease.over(code)
            self.event("lease.lost", f"{code}: {message}", {"code": code}, send=False)
            say(f"the lease is lost ({code}: {message}): stopping the trainer")
            self._stop.ask(Why.LOST, message or code)

    def _fenced(self) -> None:
        self.lose("superseded", "a later epoch has claimed the run on the volume")

    def order(self, order: Order) -> None:
        """An operator's word, through the commander. Carried out once, acknowledged every time."""
        if order.run_id != self.lease.run_id or order.epoch != self.epoch:
            return
        self._link.acknowledge(order)
        who = clean(f"by {order.by or 'the commander'}" + (f": {order.why}" if order.why else ""), 300)
        if order.kind is OrderKind.STOP:
            self.lose("superseded", who)
        elif self._stop.why is not Why.DRAIN:
            self.event("order.drain", who, send=False)
            say(f"asked to drain {who}: stopping the trainer, publishing what it saves")
            self._stop.ask(Why.DRAIN, f"drained {who}")

    def signalled(self, name: str) -> None:
        self.event("signal.received", name)
        if not self._ended:
            self._background(self._state("PREEMPTED"), "state")

    async def _state(self, status: str, exit_code: int | None = None) -> None:
        """Into state.json, which is the successor's once there is one."""
        if self.lease.lost:
            return
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(VOLUME_ANSWERS):
                if await asyncio.to_thread(highest_claim, self._folder) > self.epoch:
                    return
        if exit_code is not None or not self._ended:
            self.journal.state(status, exit_code)

    # -- what is told --------------------------------------------------------------------------------------------

    def report(self, report: reports.StateReport) -> None:
        self.spool.state.append(report)
        self._link.wake()

    def event(self, kind: str, message: str, data: Mapping[str, str] | None = None, *, send: bool = True) -> None:
        """Into events.jsonl; and to the commander, unless it hears of it in another way."""
        data = {key: clean(value, 300) for key, value in (data or {}).items()}
        message = clean(message, 500)
        self.journal.event(kind, message, data)
        if send:
            self.report(reports.Event(self._clock.wall(), kind, message, data))

    def published(self, done: Published) -> None:
        self.journal.latest_ckpt = done.name
        self.report(
            reports.Published(self._clock.wall(), done.name, done.step, done.bytes, done.files, done.manifest_sha256)
        )
        self.event("checkpoint.published", f"{done.name}, {done.bytes} bytes", {"name": done.name}, send=False)
        self.journal.state()

    def pruned(self, name: str) -> None:
        self.report(reports.Pruned(self._clock.wall(), name))
        self.event("checkpoint.pruned", name, {"name": name}, send=False)

    def _passed_over(self, name: str, reason: str) -> None:
        """Called in a thread."""
        self._bad[name] = reason
        self._loop.call_soon_threadsafe(
            lambda: self.event("checkpoint.bad", f"{name} is not used: {reason}", {"name": clean(name, 128)})
        )

    def _first_step(self, step: int, resume: Resume | None, publisher: Publisher) -> None:
        if resume is not None and step < resume.step:
            publisher.may_prune = False
            self.event(
                "resume.ignored",
                f"the trainer began at step {step}, below the checkpoint's {resume.step}: nothing is pruned any more",
                {"step": str(step), "checkpoint": resume.name},
            )
            say(f"the resume did not take: the trainer began at step {step}, not after {resume.step}")

    def _nonfinite(self, step: int) -> None:
        words = (
            f"the loss is not finite from step {step} on; what was saved before is kept, what is saved now is marked"
        )
        self.event("loss.nonfinite", words, {"step": str(step)})
        say(words)

    def _publisher(self, resume: Resume | None, follower: Follower) -> Publisher:
        publisher = Publisher(
            self._folder,
            self.epoch,
            self._settings.mode,
            self._launch.name,
            self._settings.settle_seconds,
            self._config.ckpt_keep_last_n,
            self._clock,
            self,
            held=lambda: not self.lease.lost,
            safe=lambda: self.lease.safe(self._clock.boot()),
            on_fenced=self._fenced,
            healthy=follower.health.healthy,
            check=self._stop.unless_hurried,
        )
        if resume is not None:
            publisher.protect.add(resume.name)
        return publisher


async def _ticking(follower: Follower) -> None:
    while True:
        await asyncio.sleep(0.25)
        follower.tick()


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        say(f"internal error in {task.get_name()}: {type(error).__name__}: {error}")
