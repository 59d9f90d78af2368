"""A trainer that runs: what goes on beside it, and what is seen to once it has ended."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from relay_agent.attempt.around import Around
from relay_agent.attempt.background import Background
from relay_agent.attempt.beginning import Past
from relay_agent.attempt.gently import Gently
from relay_agent.checkpoints.handing import Handed
from relay_agent.checkpoints.listing import Listing
from relay_agent.checkpoints.publisher import Publisher
from relay_agent.checkpoints.resume import Resume
from relay_agent.checkpoints.staging import FIRST
from relay_agent.checkpoints.taking import checkpoint_dir
from relay_agent.guardian import EARLY
from relay_agent.link.link import Link
from relay_agent.outcome.verdict import describe
from relay_agent.output.beside import Beside
from relay_agent.output.follow import Follower
from relay_agent.preempt.departure import Departure
from relay_agent.preempt.training import Training
from relay_agent.trainer.supervise import Supervised
from relay_agent.watchdog.rules import Rules
from relay_agent.watchdog.watch import Watchdog
from relay_agent.watchdog.watched import Watched

LEFT_EVERY = 0.5
"""Seconds between two looks at whether what a trainer left behind is still of use."""
LATE = 1.6
"""Seconds after its exit in which what it had said may come yet: `tail -f` of a log looks once a second."""


class Ready(NamedTuple):
    """A trainer that is about to start. `past`: how far attempts before it had come."""

    trainer: Supervised
    follower: Follower
    publisher: Publisher
    resume: Resume | None
    handed: Handed
    past: Callable[[], Awaitable[Past]]


class Running:
    def __init__(self, around: Around, link: Link, departure: Departure, background: Background) -> None:
        self._settings = around.settings
        self._folder = around.folder
        self._epoch = around.holding.lease.epoch
        self._tenure = around.tenure
        self._orders = around.orders
        self._tell = around.tell
        self._stop = around.stop
        self._clock = around.clock
        self._link = link
        self._departure = departure
        self._background = background

    async def until_gone(
        self, trainer: Supervised, follower: Follower, publisher: Publisher, base: str | None, taken_over: bool = False
    ) -> int:
        """Until nothing is left of the trainer and all that is whole is published. Its exit code. `base`: the
        checkpoint that it resumed from; `taken_over`: from another agent."""
        self._stop.listen(lambda at_once: self._stop_trainer(trainer, publisher, at_once))
        if self._settings.on_lease_loss == "stop":
            if math.isfinite(self._tenure.lease.safe_until):  # else its guardian keeps the end that it was told before
                trainer.dead_by(self._tenure.lease.safe_until, self._tenure.notice)
            self._tenure.on_renewed = lambda lease: trainer.dead_by(lease.safe_until, self._tenure.notice)
        elif taken_over:
            trainer.dead_by(0.0)  # the agent before may have had the other rule
        listing = Listing(self._folder, self._clock, self._tell.report, self._stop.unless_asked)
        publisher.tell_listing, self._link.on_forgotten = listing.tell, listing.want
        publishing = self._background.begin(publisher.run(), "publish")
        ticking = self._background.begin(_ticking(follower), "tick")
        beside = Beside(self._folder.output(self._epoch), follower)
        looking = self._background.begin(beside.run(), "beside")
        rules = Rules.of(self._settings)
        watched = Watched(
            rules, self._folder, self._epoch, base, follower, self._stop, self._tell, self._clock, publisher
        )  # fmt: skip
        saves_in = checkpoint_dir(self._settings, self._folder, self._epoch)
        watchdog = Watchdog(watched, trainer=trainer.pids, saves_in=saves_in)
        watching = self._background.begin(watchdog.run(), "watchdog")
        self._orders.on_save = watchdog.save_asked
        wish = self._folder.save_file(self._epoch)
        self._orders.trainer_is_up(trainer, wish, self._settings.save_signal)
        self._link.on_watched = lambda on: trainer.hear(on or rules.acts_on_loss)
        self._link.on_watched(self._link.watched)
        publisher.catch_up = trainer.catch_up
        publisher.heed_frozen(trainer.frozen)
        training = Training(self._orders, publisher, trainer, wish)
        self._orders.before_stop = Gently(
            training, self._clock, self._tell, self._settings.stop_grace,
            lambda: self._orders.asked_by_file, lambda: self._orders.hurried, FIRST * self._settings.settle_seconds,
        ).save  # fmt: skip
        self._departure.begin(training)
        code = await trainer.exited
        watching.cancel()
        self._orders.trainer_is_gone()
        self._departure.ended(code)
        leftovers = await self._until_nothing_is_left(code, trainer, follower, publisher)
        await beside.last()
        reached = max(follower.progress.step, publisher.newest_step or 0)
        self._orders.all_is_heard(completed=code == 0 and follower.progress.complete(reached))
        ticking.cancel()
        looking.cancel()
        data = {"code": str(code), "leftovers": str(leftovers)}
        self._tell.event("trainer.exited", f"the trainer {describe(code, trainer.signalled)}", data)
        publisher.close()
        await asyncio.wait({publishing})  # a publish that has begun is not cut off
        if not self._stop.lost:
            complete = follower.progress.complete
            await publisher.finish(
                code,
                lambda step: complete(max(reached, step)),
                stopped=trainer.stopped,
                leftovers=leftovers,
                oom=trainer.oom,
            )
        return code

    async def _until_nothing_is_left(
        self, code: int, trainer: Supervised, follower: Follower, publisher: Publisher
    ) -> int:
        """How many processes that it left behind had to be stopped, or failed, or were killed shortly before.

        One that saves still is not told from one that never did: between two files it has none open. So an unmarked
        save is not believed beside a process that was cut; but while one lives it is as beside a trainer, whole once it
        has kept still, and it has the time for that.
        """
        now = self._clock.boot()
        until, late = now + 2 * FIRST * self._settings.settle_seconds, now + LATE
        heard, made = follower.heard, follower.progress.step
        while code == 0 and not trainer.stopped and not self._stop.asked.is_set():
            if publisher.undecided and self._clock.boot() < until:
                trainer.leave()
            done, _ = await asyncio.wait({trainer.gone}, timeout=LEFT_EVERY)
            if self._clock.boot() < late:
                heard, made = follower.heard, follower.progress.step
            if done:
                break
        leftovers = await trainer.gone  # its guardian has handed on all that it printed
        follower.finish()
        trainer.trained_on = trainer.cut > 0 and follower.heard > heard and follower.progress.step > made
        return leftovers

    def _stop_trainer(self, trainer: Supervised, publisher: Publisher, at_once: bool) -> None:
        if at_once:
            trainer.kill()
        else:
            self._background.begin(self._ask_to_stop(trainer, publisher), "stop")

    async def _ask_to_stop(self, trainer: Supervised, publisher: Publisher) -> None:
        try:
            await publisher.trainer_stops()
        finally:  # whatever becomes of that
            by = min(self._stop.dead_by, self._stop.kill_by)
            trainer.stop(by - self._clock.boot())
            if math.isfinite(by):
                lease_ends = self._tenure.lease.safe_until if self._settings.on_lease_loss == "stop" else math.inf
                trainer.dead_by(min(by + EARLY, lease_ends))


async def _ticking(follower: Follower) -> None:
    while True:
        await follower.waits.wait()
        await asyncio.sleep(0.25)
        follower.tick()
