"""One attempt at a run, from the claim to the report that ends it; or from where an agent that is gone left it."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from relay_agent.attempt.around import Around
from relay_agent.attempt.assembly import progress_of, publisher_of
from relay_agent.attempt.background import Background
from relay_agent.attempt.beginning import Beginning, Past
from relay_agent.attempt.holding import Holding
from relay_agent.attempt.last_word import last_word
from relay_agent.attempt.once_more import is_due, make_way
from relay_agent.attempt.orders import Orders
from relay_agent.attempt.rejoin import Rejoining, known_to, replay
from relay_agent.attempt.running import Ready, Running
from relay_agent.attempt.sending import Sending, forking_of, restoring_of
from relay_agent.attempt.spoken import Spoken
from relay_agent.attempt.standing import Standing
from relay_agent.attempt.telling import Teller
from relay_agent.attempt.tenure import Tenure
from relay_agent.checkpoints.disk import is_full
from relay_agent.checkpoints.handing import Handed
from relay_agent.checkpoints.looked import names
from relay_agent.checkpoints.publisher import Publisher
from relay_agent.checkpoints.resume import Resume, floor, is_fork
from relay_agent.checkpoints.taking import Taking
from relay_agent.checkpoints.tree import Cancelled
from relay_agent.config import Settings
from relay_agent.link.link import Link
from relay_agent.outcome.retry import Retries
from relay_agent.outcome.stop import Stop, Why
from relay_agent.outcome.verdict import Ended, Verdict, given_back, judge, never_started, no_room, volume_failed
from relay_agent.output.follow import Follower
from relay_agent.output.printed import last_lines
from relay_agent.pod.pod import Pod
from relay_agent.pod.takeover import Act
from relay_agent.preempt.departure import Departure
from relay_agent.process import say
from relay_agent.trainer.command import Launch, refuse_too_large, trainer_environment
from relay_agent.trainer.supervise import Supervised
from relay_agent.volume.journal import Journal
from relay_agent.volume.volume import Claim, RunFolder, claim, highest_claim
from relay_agent.watchdog.resumed import Resumed
from relaytui.wire import reports
from relaytui.wire.clock import Clock
from relaytui.wire.errors import RelayError
from relaytui.wire.ids import shown
from relaytui.wire.messages import Order, Refused
from relaytui.wire.status import Outcome
from relaytui.wire.text import clean

ENDINGS = (Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED)
"""After any other the run goes on elsewhere."""


class Attempt:
    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        launch: Launch,
        holding: Holding,
        incarnation: str,
        pod: Pod,
        link: Link,
        stop: Stop,
        clock: Clock,
        rng: random.Random,
        retries: Retries,
        departure: Departure,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._launch = launch
        self._holding = holding
        self._incarnation = incarnation
        self._pod = pod
        self._link = link
        self._stop = stop
        self._clock = clock
        self._rng = rng
        self._retries = retries
        self._departure = departure
        self._ended = False
        self._retried = False
        self._first_line = 1  # its number, of this trainer's
        self._background = Background()
        self.epoch = holding.lease.epoch
        self.journal = Journal(folder, settings.worker_id, clock)
        self.journal.epoch = self.epoch
        self.tell = departure.tell = Teller(holding.spool, self.journal, clock, link.wake)
        grace = settings.stop_grace if settings.on_lease_loss == "stop" else None
        self.tenure = Tenure(holding.lease, link, stop, self.tell, clock, rng, settings.mode, grace)
        self._standing = Standing(folder, self.epoch, self.tenure, self.journal)
        self.orders = Orders(self.tenure, link, stop, self.tell, self._background.begin)
        found = holding.found
        self._around = Around(settings, folder, launch, holding, self.tenure, self.orders, self.tell, stop, clock, rng)
        self._running = Running(self._around, link, departure, self._background)
        self._sending = Sending(self._around)
        self._rejoining = Rejoining(found, holding.same, self.tenure, self.tell, stop) if found else None
        self._claimed = found is not None

    @property
    def again(self) -> bool:
        """Once it has ended: whether the run is to be acquired anew at once."""
        if self._retried and self._stop.why in (None, Why.AGAIN):
            return True
        return self._rejoining is not None and self._rejoining.again

    # -- the story -----------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """The exit code of the agent: the trainer's own, or one of ours where the lease was lost."""
        self.journal.open()
        self._link.spool = self._holding.spool
        renewing = asyncio.create_task(self.tenure.renew(), name="renew")
        try:
            await self._retries.load()
            if self._rejoining is None:
                await self._granted()
            self._sending.begin()
            try:
                verdict = await (self._try() if self._rejoining is None else self._rejoin(self._rejoining))
                verdict = await self._settled(verdict)
            except OSError as error:
                refused = volume_failed(error, self._settings.l1_root)
            except RelayError as error:
                refused = error
            else:
                await self._sending.last(verdict.outcome)
                await self._end(verdict)
                stopped = self._retried and self._stop.why is Why.SIGNAL  # after it had ended: nothing is tried again
                return self._stop.exit_code if stopped else verdict.exit_code
            self.tell.event("attempt.refused", str(refused))
            await self._end(never_started(refused, self._stop))
            raise refused
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, self._background.close(), self._sending.close(), return_exceptions=True)
            await self.journal.close()
            self._leave_spool()

    async def _settled(self, verdict: Verdict) -> Verdict:
        """With what comes of it; after as many more tries as begin without a commander."""
        continues = self._settings.on_lease_loss == "continue"
        while True:
            verdict = await self._retries.settle(verdict, self._stop, self.epoch, self.tell)
            taken = self._rejoining is None or (self._holding.same and not self._rejoining.again)
            taken = taken and self._claimed
            if not (taken and await is_due(verdict, self._stop, self.tenure, self._folder, continues)):
                return verdict
            await self._heed_claims()
            if self._stop.why not in (None, Why.AGAIN):  # meanwhile
                return verdict
            say(f"{verdict.message}; no commander answers: under the lease that is held")
            self._stop.anew()
            self._departure.again()
            self._departure.tell = self.tell
            before, verdict = verdict, await self._try(once_more=True)
            if verdict.trainer_code is None:  # stopped before it was started
                verdict = replace(verdict, step=before.step)

    async def _heed_claims(self) -> None:
        """Whoever has claimed the run in a later epoch trains it, whether a commander tells us so or not."""
        if await asyncio.to_thread(highest_claim, self._folder) > self.epoch:
            self.tenure.fenced()

    async def _granted(self) -> None:
        lease = self._holding.lease
        self._note(None, 0, started=False)  # whoever comes next can deliver what is told from here on
        say(f"run {lease.run_id}: lease granted, epoch {self.epoch}, {lease.seconds:g} s")
        self.tell.event("lease.acquired", f"epoch {self.epoch}", send=False)
        await self._standing.is_now("RUNNING")

    async def _try(self, once_more: bool = False) -> Verdict:
        """One that is tried again needs room on the volume before there is a trainer: for want of it, it has failed as
        a trainer would have."""
        made_way = once_more and await self._made_way()
        if not await self._retries.hold_off(self._stop, self.tell):
            return Verdict.before_start(self._stop, 0)
        try:
            if once_more and not made_way:
                await asyncio.to_thread(make_way, self._folder, self.epoch, self._holding.spool.folder)
            ready = await self._ready(once_more)
        except (OSError, RelayError) as error:
            if not (self._retries.trying and is_full(error)):
                raise
            if self._stop.asked.is_set():
                return Verdict.before_start(self._stop, self._retries.reached)
            refused = error if isinstance(error, RelayError) else volume_failed(error, self._settings.l1_root)
            return no_room(refused, self._retries.reached)
        return ready if isinstance(ready, Verdict) else await self._train(ready)

    async def _made_way(self) -> bool:
        """Before the pause, where there is room: an agent that dies in it leaves no end that is counted twice."""
        try:
            await asyncio.to_thread(make_way, self._folder, self.epoch, self._holding.spool.folder)
        except OSError as error:
            if not is_full(error):
                raise
            return False
        return True

    async def _ready(self, once_more: bool) -> Verdict | Ready:
        """All that is to be done on the volume before the trainer starts; the verdict where it does not."""
        self.tenure.refuse_too_short()
        beginning = Beginning(
            self._settings, self._folder, self._holding.newest, self._holding.config.ckpt_keep_last_n,
            self._launch.name, self.tenure, self.tell, self._stop, self._holding.healthy, restoring_of(self._around),
            forking_of(self._around), clock=self._clock,
        )  # fmt: skip
        try:
            resume = await beginning.resume()
        except Cancelled:
            return Verdict.before_start(self._stop, 0)
        base = resume.name if resume else None
        holder, who = self._settings.worker_id, shown(self._incarnation)
        claimed = Claim(self.epoch, holder, who, base, self._launch.digest, self._clock.wall())
        if once_more:
            await self._heed_claims()
        else:
            await asyncio.to_thread(claim, self._folder, claimed)
            self._claimed = True
        resume = await beginning.salvage(resume)
        step, name = (resume.step, resume.name) if resume else (0, None)
        if self._stop.asked.is_set():
            return Verdict.before_start(self._stop, step)
        follower = self._follower(step)
        if once_more and (mark := self._holding.spool.telemetry.mark) is not None:
            self._first_line = mark.line
            follower.begin_log(mark.line)
        trainer = Supervised(self._folder.log(self.epoch), follower.feed, follower.skip)
        trainer.on_unheard = follower.hear_no_more
        taking = self._taking(follower)
        least = await asyncio.to_thread(floor, self._folder, name)
        publisher = self._publisher(step, name, follower, taking, bool(resume and resume.forked), least)
        try:
            handed = await taking.prepare(resume)
        except Cancelled:
            return Verdict.before_start(self._stop, step)
        return Ready(trainer, follower, publisher, resume, handed, beginning.past)

    async def _train(self, ready: Ready) -> Verdict:
        trainer, follower, publisher, resume, handed, past = ready
        await self._heed_claims()  # after all that took time: the lease may have run out meanwhile
        if self._stop.asked.is_set():
            return Verdict.before_start(self._stop, resume.step if resume else 0)
        await self._start(trainer, resume, handed)
        code = await self._running.until_gone(trainer, follower, publisher, resume.name if resume else None)
        return await self._judge(code, trainer, follower, publisher, past)

    async def _rejoin(self, rejoining: Rejoining) -> Verdict:
        """The trainer of an agent that is gone: still running, or what became of it."""
        note = rejoining.note
        follower = self._follower(note.resume_step)
        forked = await asyncio.to_thread(is_fork, self._folder, note.resume)
        least = await asyncio.to_thread(floor, self._folder, note.resume)
        taking = self._taking(follower)
        publisher = self._publisher(note.resume_step, note.resume, follower, taking, forked, least)
        log = self._folder.log(self.epoch)
        self._first_line = note.line
        mark = known_to(self._holding.spool.telemetry.mark, note.line)
        await replay(log, mark, follower)
        trainer = Supervised(log, follower.feed, follower.skip, mark.offset, taken_over=True)
        trainer.on_unheard = follower.hear_no_more
        await rejoining.join(trainer)
        if rejoining.found.line is not None:
            self._note(note.resume, note.resume_step)
        before = await asyncio.to_thread(publisher.published_before)
        self.tell.found(before)
        for done in before:
            self._resumed.found(done.step)
        code = await self._running.until_gone(trainer, follower, publisher, note.resume, taken_over=True)
        verdict = await self._judge(code, trainer, follower, publisher)
        if trainer.stopped and self._stop.why is None:
            rejoining.stopped_before()
        if rejoining.act is Act.AGAIN and self._stop.why is None:
            story = "; ".join(filter(None, (rejoining.story, trainer.unheard)))
            verdict = given_back(story, verdict, note.resume_step)
            if verdict.finished:
                rejoining.act = Act.FINISH
        return verdict

    async def _judge(
        self, code: int, trainer: Supervised, follower: Follower, publisher: Publisher,
        past: Callable[[], Awaitable[Past]] | None = None,
    ) -> Verdict:  # fmt: skip
        self.tenure.trains = False
        self.tenure.note_cut_off(stopped=code != 0)
        unpublished, last = publisher.unpublished(follower.progress.step), follower.last_line
        lines = [*await last_lines(self._folder.log(self.epoch)), last] if code else []  # the log may be cut off
        ended = Ended(
            code, self._stop, follower.progress, publisher.newest_step, last, unpublished, publisher.kept,
            publisher.torn, publisher.asked_for, lines=lines, oom=trainer.oom, prints=self._retries.prints,
            completed=self._retries.completed, signalled=trainer.signalled, ignored=self._resumed.ignored,
            left=trainer.cut, trained_on=trainer.trained_on, unheard=trainer.unheard,
            looked=" and ".join(names(self._settings)),
        )  # fmt: skip
        if past is not None and code == 0 and ended.made_nothing:  # else nobody asks
            before = await past()
            self._retries.came_to(before.step)
            ended.progress.total = ended.progress.total or before.total
        return judge(replace(ended, before=self._retries.reached))

    async def _start(self, trainer: Supervised, resume: Resume | None, handed: Handed) -> None:
        step, name = (resume.step, resume.name) if resume else (0, None)
        folder = self._note(name, step)
        env = trainer_environment(
            os.environ, self._settings, self._holding.config, self._folder, self.epoch, handed.path, handed.args
        )
        refuse_too_large(self._launch, env)
        orphan = self._settings.orphan_timeout
        grace = self._settings.stop_grace
        stops = self._settings.on_lease_loss == "stop"
        pid = await trainer.start(
            self._launch.resuming(handed.args), env, self._holding.guard, grace, orphan, folder, self._settings.pty,
            (self.tenure.lease.safe_until, self.tenure.notice) if stops else None,
        )  # fmt: skip
        self.tell.report(reports.Started(self._clock.wall(), step, name, pid))
        self.tell.event("trainer.started", f"{self._launch.name}, pid {pid}", send=False)
        say(f"trainer started: {self._launch.name}, pid {pid}, log {self._folder.log(self.epoch)}")

    def _note(self, resume: str | None, resume_step: int, *, started: bool = True) -> Path | None:
        return self._holding.note(
            self._pod, self._settings, self._folder, self._launch, self._incarnation, resume, resume_step,
            self._first_line, started=started,
        )  # fmt: skip

    async def _end(self, verdict: Verdict) -> None:
        """The last report, and the wait until it is acknowledged: it frees the run."""
        step = verdict.step
        self.tenure.trains, self.tenure.ended = False, True
        self.tell.report(
            reports.Ended(
                self._clock.wall(), verdict.outcome, verdict.trainer_code, step, clean(verdict.message, 1000),
                verdict.ending,
            )
        )  # fmt: skip
        if self._holding.spool.folder is not None:
            self._pod.done(self._holding.spool.folder)
        status = verdict.outcome.upper() if verdict.outcome in ENDINGS else "PREEMPTED"
        data = {"outcome": str(verdict.outcome), "ending": verdict.ending}
        self.tell.event("attempt.ended", f"{verdict.outcome}: {verdict.message}", data, send=False)
        self._ended = True
        self._retried = verdict.outcome is Outcome.CRASHED
        await self._standing.is_now(status, verdict.exit_code)
        say(last_line(self._holding.lease.run_id, verdict))
        if not await last_word(self._link, self._stop, self._holding.lease.seconds):
            where = self._holding.kept(self.tenure.lease.lost)
            say(f"the commander has not acknowledged everything; {where}")

    def _leave_spool(self) -> None:
        """Delivered, it goes; else it waits for the next agent."""
        spool = self._holding.spool
        if self._ended and spool.empty:
            spool.delete()
            if spool.folder is not None:
                self._pod.forget(spool.folder)
        else:
            spool.close()

    # -- what goes on beside -------------------------------------------------------------------------------------

    def order(self, order: Order) -> None:
        self.orders.take(order)

    def refused(self, refused: Refused) -> None:
        self.tenure.refused(refused)

    def signalled(self, name: str) -> None:
        self.tell.event("signal.received", name)
        if not self._ended:
            self._background.begin(self._standing.is_now("PREEMPTED"), "state")

    def _taking(self, follower: Follower) -> Taking:
        return Taking(
            self._settings, self._folder, self.epoch, self._clock, self.tell,
            lambda: follower.progress.step, self._stop.unless_hurried,
        )  # fmt: skip

    def _follower(self, step: int) -> Follower:
        note, wake = self._holding.spool.telemetry.note, self._link.wake
        report = Spoken(self._sending.feeding(), self._clock)
        return Follower(progress_of(self._settings, step), self._clock, report, note, wake)

    def _publisher(
        self, step: int, name: str | None, follower: Follower, taking: Taking, forked: bool, least: int | None
    ) -> Publisher:  # fmt: skip
        base = None if self._settings.counter_restarts else name
        self._resumed = resumed = Resumed(step, base, self.tell, forked=forked, floor=least)
        publisher = publisher_of(
            self._settings, self._folder, self._launch, self._holding, self.tenure, self._stop, self._clock,
            follower, taking, resumed,
        )  # fmt: skip
        if name is not None:
            publisher.protect.add(name)
        publisher.sending = self._sending.pins
        return publisher


def last_line(run_id: str, verdict: Verdict) -> str:
    """How the attempt ended, for the pod's log. Where no trainer ran, the step says nothing of the run."""
    at = f" at step {verdict.step}" if verdict.trainer_code is not None or verdict.step else ""
    why = verdict.message if verdict.ending != "not_started" else "the trainer was not started"  # an error says it
    return f"run {run_id} {verdict.outcome}{at}: {why}"
