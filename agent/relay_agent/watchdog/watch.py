"""The watchdog of one attempt: looks once a second whether the trainer gets on and its loss is well, says what it sees,
and has the trainer stopped where that is the policy."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from relay_agent.beat import to_next
from relay_agent.process import say
from relay_agent.trainer.command import pod_environment
from relay_agent.watchdog import growth, stacks
from relay_agent.watchdog.phases import Phase
from relay_agent.watchdog.spoilt import Spoilt
from relay_agent.watchdog.stalls import Moving, Seen, Stalled, Watch
from relay_agent.watchdog.watched import Watched
from relaytui.wire.text import clean

LOOK_EVERY = 1.0
QUIET = 10.0
"""Seconds without a sign of life from which on it is looked whether something that is saved grows, …"""
QUIET_EVERY = (5.0, 60.0)
"""… and how often: a quarter of the time that it was quiet, between these."""
STACKS_WITHIN = 60.0

_SILENCE = {
    Phase.STARTING: "it has printed nothing",
    Phase.LOADING: "it has made no step, and nothing that it loads moved",
    Phase.TRAINING: "it has made no step",
    Phase.EVALUATING: "its evaluation has not moved",
    Phase.SAVING: "nothing that it saves has grown",
}


class Watchdog:
    """`trainer`: pids of all that is alive of it, blocking. `saves_in`: where it saves, if not in its own folders on
    the volume."""

    def __init__(self, of: Watched, *, trainer: Callable[[], set[int]], saves_in: Path | None = None) -> None:
        self._of = of
        self._spoilt = Spoilt(of)
        self._trainer = trainer
        # Nothing but what is saved grows in the first; to the others it writes what it likes.
        output = of.folder.output(of.epoch)
        elsewhere = (saves_in,) if saves_in and not saves_in.is_relative_to(output) else ()
        self._roots = (of.folder.staging(of.epoch),), (output, *elsewhere)
        self._sizes: tuple[growth.Size, growth.Size] | None = None  # as last looked at while it is quiet
        self._measuring: asyncio.Task[None] | None = None
        self._measure_at = QUIET
        self._saves = False
        self._stalls = 0
        self.watch = Watch(of.rules.budgets, of.clock.boot(), of.follower.heard, self._step())

    async def run(self) -> None:
        """Until it is cancelled, when nothing is left of the trainer."""
        try:
            while True:
                await asyncio.sleep(to_next(LOOK_EVERY))
                await self.look()
        finally:
            if self._measuring is not None:
                self._measuring.cancel()

    async def look(self) -> None:
        if self._of.stop.asked.is_set():
            return
        lines = tuple(self._of.follower.recent)
        self._of.follower.recent.clear()
        seen = Seen(self._step(), self._of.follower.heard, lines, self._saves)
        self._saves = False
        told = self.watch.look(self._of.clock.boot(), seen)
        if isinstance(told, Moving):
            self._moving(told)
        elif isinstance(told, Stalled):
            await self._stalled(told)
        self._look_at_files()
        await self._spoilt.look()

    def save_asked(self) -> None:
        """The trainer was asked to save."""
        self._saves = True

    def _step(self) -> int | None:
        progress = self._of.follower.progress
        return progress.step if progress.first is not None else self._of.publisher.newest_step

    # -- what it saves -------------------------------------------------------------------------------------------

    def _look_at_files(self) -> None:
        quiet = self.watch.quiet
        if quiet < QUIET:
            self._measure_at, self._sizes = QUIET, None
        elif quiet >= self._measure_at and (self._measuring is None or self._measuring.done()):
            least, most = QUIET_EVERY
            self._measure_at = quiet + min(max(least, quiet / 4), most)
            since = self._of.clock.wall() - quiet
            self._measuring = asyncio.create_task(self._measure(since), name="growth")

    async def _measure(self, since: float) -> None:
        """In a thread, and never waited for: a volume may hang. `since`: when it last gave a sign of life."""
        sizes = await asyncio.to_thread(lambda: (growth.measure(self._roots[0]), growth.measure(self._roots[1])))
        before, self._sizes = self._sizes, sizes
        if before is None:
            self._saves |= sizes[0].newest > since * 1e9
            return
        self._saves |= growth.grew(before[0], sizes[0], mixed=False) or growth.grew(before[1], sizes[1], mixed=True)

    # -- stalls --------------------------------------------------------------------------------------------------

    async def _stalled(self, stalled: Stalled) -> None:
        self._stalls += 1
        since = self._of.clock.wall() - stalled.seconds
        last = clean(self._of.follower.last_line, 200)
        short, kept = await self._stacks(stalled)
        words = f"stalled in {stalled.phase}: {_SILENCE[stalled.phase]} for {duration(stalled.seconds)}"
        words += f" (allowed: {duration(stalled.budget)})"
        if last:
            words += f"; its last words: {last}"
        data = {
            "phase": str(stalled.phase),
            "seconds": f"{stalled.seconds:.0f}",
            "budget": f"{stalled.budget:.0f}",
            "since": f"{since:.0f}",
            "stacks": short,
            "kept": kept,
        }
        self._of.tell.event("trainer.stalled", words, {name: value for name, value in data.items() if value})
        again = self._of.rules.on_stall == "restart"
        say(f"the trainer has {words}" + ("; starting it anew, as ON_STALL says" if again else ""))
        if again and not self._of.stop.asked.is_set():
            self._of.stop.again(f"stalled in {stalled.phase} for {duration(stalled.seconds)}", "stalled")

    async def _stacks(self, stalled: Stalled) -> tuple[str, str]:
        """What its processes do, in short; and the file beside the log that has it at length."""
        head = f"{self._of.clock.wall():.0f}: stalled in {stalled.phase} for {stalled.seconds:.0f} s\n\n"
        environ = pod_environment(os.environ)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(STACKS_WITHIN):
                text = await asyncio.to_thread(lambda: stacks.look(self._trainer(), environ))
                short = stacks.short(text)
                number = (self._stalls - 1) % stacks.FILES + 1
                with suppress(OSError):
                    kept = await asyncio.to_thread(
                        stacks.keep, self._of.folder.logs, self._of.epoch, number, head + text
                    )
                    return short, str(kept.relative_to(self._of.folder.root))
                return short, ""
        return "", ""

    def _moving(self, moving: Moving) -> None:
        words = f"moving again, in {moving.phase}, after {duration(moving.seconds)} in {moving.stalled.phase}"
        self._of.tell.event("trainer.moving", words, {"phase": str(moving.phase), "seconds": f"{moving.seconds:.0f}"})
        say(f"the trainer is {words}")


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 05 min`."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
