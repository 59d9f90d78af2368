"""Whether a run whose trainer failed is tried again, and when: by how it ended, and whether trying got it further.

What was tried is kept in `tries.json`, in the run's folder and on the pod: it outlives the agent and the pod. It counts
failures since the run last got further; a step or a published checkpoint beyond all before it gives the budget back.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace as changed

from relay_agent.attempt.telling import Teller
from relay_agent.checkpoints.disk import SYSTEM, Disk, folder, read_file, replace_file
from relay_agent.config import Settings
from relay_agent.outcome.endings import ENDINGS, Again
from relay_agent.outcome.stop import Stop
from relay_agent.outcome.verdict import Verdict
from relay_agent.process import say
from relay_agent.volume.volume import RunFolder, highest_claim
from relaytui.wire.clock import Clock
from relaytui.wire.codec import decode, encode
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.ids import Epoch
from relaytui.wire.status import Outcome
from relaytui.wire.text import clean, counted

TRIES = "tries.json"
MAX_TRIES = 64 << 10
"""Bytes of it that are read."""
REMEMBERED = 100
"""Failures that are kept."""
TWICE = 2
STALLED, BACK = "stalled", "diverged"
"""Endings that the watchdog makes, where it was told to (ON_STALL, ON_NAN, ON_DIVERGE)."""
STALLS = 3
"""How often in a row one that stalls is started anew without getting further, where RETRIES, for crashes, is 0."""
VOLUME_ANSWERS = 5.0
"""Seconds that the volume has to give and to take it."""

_Step = Annotated[int, Meta(ge=-1, le=2**53)]


class Failure(Struct, frozen=True):
    epoch: Epoch
    ending: str
    step: _Step
    at: float


class Tries(Struct, frozen=True):
    """`best`: the furthest step printed, `saved`: the furthest published, `completed`: what the run was completed with
    last; `reached`: the furthest of the run, whatever the command; -1: none."""

    digest: str = ""  # of the trainer's command: another one has a budget of its own
    epoch: Epoch = 0
    best: _Step = -1
    saved: _Step = -1
    since: tuple[Failure, ...] = ()
    completed: _Step = -1
    reached: _Step = -1


class Policy(NamedTuple):
    """`retries`: in a row without getting further. Pauses in seconds: the first, doubling up to the longest."""

    retries: int
    first: float
    longest: float
    on: frozenset[str] = frozenset()  # endings that are tried again although they come again as a rule
    never: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        return cls(
            settings.retries,
            settings.retry_backoff,
            settings.retry_backoff_max,
            frozenset(settings.retry_on),
            frozenset(settings.no_retry_on),
        )


class Choice(NamedTuple):
    """Number `number` of `limit` retries (0: somebody else counts them), after `wait` seconds; 0: none, `why` not."""

    number: int = 0
    limit: int = 0
    wait: float = 0.0
    why: str = ""

    @property
    def told(self) -> tuple[str, str]:
        """When, in words: for whoever reads it later, and for now."""
        if not self.wait:
            return "at once", ""
        # However short it is, it is none that was left out.
        seconds = f"{max(self.wait, 0.1):.1f}" if self.wait < 9.95 else f"{self.wait:.0f}"
        return f"after {seconds} s", f" in {seconds} s"


def choose(policy: Policy, ending: str, tries: Tries, rng: random.Random) -> Choice:
    """What is done after the last failure in `tries.since`, which ended so."""
    again = ENDINGS.get(ending, ENDINGS["crash"]).again
    limit = policy.retries or (STALLS if ending == STALLED else 0)
    if limit == 0 and ending != BACK:
        return Choice()
    if ending in policy.never:
        return Choice(why=f"NO_RETRY_ON names {ending}")
    if ending == BACK:  # decided with its own limit, and nothing has to pass first
        return Choice(sum(failure.ending == BACK for failure in tries.since))
    if again is Again.NEVER and ending not in policy.on:
        return Choice(why="it would end so again")
    number = sum(failure.ending != BACK for failure in tries.since)
    if again is Again.TWICE and ending not in policy.on:
        same = [failure for failure in tries.since if failure.ending == ending]
        if len(same) > TWICE:
            return Choice(why=f"it ended so {len(same)} times without getting further")
    if number > limit:
        tried = counted(limit, "retry", "retries")
        return Choice(why=f"{tried} in a row brought it no further than step {max(0, tries.best, tries.saved)}")
    if again is Again.AT_ONCE and number == 1:
        return Choice(number, limit)
    wait = min(policy.longest, policy.first * 2 ** min(number - 1, 30))
    return Choice(number, limit, wait * rng.uniform(0.5, 1.0))


def after(tries: Tries, failure: Failure | None, printed: int | None, published: int | None) -> Tries:
    """With one more attempt, that got as far as these steps; `failure`: where it failed."""
    best, saved = max(tries.best, printed if printed is not None else -1), max(tries.saved, published or -1)
    since = () if best > tries.best or saved > tries.saved else tries.since
    if failure is not None:
        since = (*since, failure)[-REMEMBERED:]
    return changed(tries, best=best, saved=saved, since=since, reached=max(best, saved, tries.reached))


class Retries:
    """Of one run and this agent, over all of its attempts. `pod`: the folder on the pod's own disk."""

    def __init__(
        self,
        policy: Policy,
        run: RunFolder,
        pod: Path,
        digest: str,
        clock: Clock,
        rng: random.Random,
        disk: Disk = SYSTEM,
    ) -> None:
        self._policy = policy
        self._run = run
        self._places = (run.root / TRIES, pod / TRIES)
        self._clock = clock
        self._rng = rng
        self._disk = disk
        self._tries = Tries(digest)
        self._next = Choice()
        self._last = ""
        self._came_to = -1
        self.trying = False
        """This attempt is a retry of this agent's."""

    @property
    def prints(self) -> bool:
        """Whether this command has ever printed a step that was understood."""
        return self._tries.best >= 0

    @property
    def completed(self) -> int:
        """The step of the checkpoint that this command completed the run with; -1: it never did."""
        return self._tries.completed

    @property
    def reached(self) -> int:
        """The furthest step of the run that is known."""
        return max(0, self._came_to, _furthest(self._tries))

    def came_to(self, step: int) -> None:
        """An attempt before this one had, as something else than what was tried tells."""
        self._came_to = max(self._came_to, step)

    async def load(self) -> None:
        """What was tried so far, by whoever knows the latest of it."""
        found = [self._tries]
        for place in self._places:
            with suppress(OSError, TimeoutError, RelayError):
                async with asyncio.timeout(VOLUME_ANSWERS):
                    found.append(await asyncio.to_thread(_read, place))
        mine = [tries for tries in found if tries.digest == self._tries.digest]
        self._tries = changed(max(mine, key=lambda tries: tries.epoch), reached=max(map(_furthest, found)))

    async def hold_off(self, stop: Stop, tell: Teller) -> bool:
        """The pause before a retry, said aloud; False where somebody wants no trainer any more."""
        choice, self._next = self._next, Choice()
        self.trying = choice.number > 0
        if self.trying:
            words = self._last
            if choice.limit:
                words = f"retry {choice.number} of {choice.limit}{choice.told[1]}: {words}"
            data = {"retry": str(choice.number), "of": str(choice.limit), "wait": f"{choice.wait:.1f}"}
            tell.event("attempt.retry", words, data)
            say(words)
            with suppress(TimeoutError):
                async with asyncio.timeout(choice.wait):
                    await stop.asked.wait()
        return not stop.asked.is_set()

    async def settle(self, verdict: Verdict, stop: Stop, epoch: int, tell: Teller) -> Verdict:
        """The verdict with what comes of it: a failure is tried again, or final. Noted before anybody hears of it."""
        if stop.lost:
            return verdict
        failed = verdict.outcome in (Outcome.FAILED, Outcome.CRASHED)
        failure = Failure(epoch, verdict.ending, verdict.step, self._clock.wall()) if failed else None
        before = self._tries
        tries = after(before, failure, verdict.printed, verdict.published)
        tries = changed(tries, epoch=epoch, reached=max(tries.reached, self._came_to))
        choice = Choice()
        self._last = clean(verdict.message, 300)
        if failed:
            choice = choose(self._policy, verdict.ending, tries, self._rng)
            verdict = _with(verdict, choice)
            if not choice.number:  # the end; whoever queues it again means it
                tries = changed(tries, since=())
        if verdict.outcome is Outcome.COMPLETED and verdict.published is not None:
            tries = changed(tries, completed=verdict.published)
        self._tries, self._next = tries, choice
        if tries != changed(before, epoch=epoch):
            await self._note(tries, tell)
        return verdict

    async def _note(self, tries: Tries, tell: Teller) -> None:
        for place in self._places:
            try:
                async with asyncio.timeout(VOLUME_ANSWERS):
                    await asyncio.to_thread(self._write, place, tries)
            except (OSError, TimeoutError) as error:
                words = getattr(error, "strerror", None) or "it does not answer"
                tell.event("retries.unwritten", f"{place.parent} does not take what was tried: {words}")

    def _write(self, place: Path, tries: Tries) -> None:
        """On the volume only while nobody has claimed the run after us. Blocking."""
        if place.parent != self._run.root or highest_claim(self._run) <= tries.epoch:
            replace_file(self._disk, place, encode(tries) + b"\n")


def _furthest(tries: Tries) -> int:
    return max(tries.best, tries.saved, tries.reached)


def _with(verdict: Verdict, choice: Choice) -> Verdict:
    if choice.number and not choice.limit:
        return replace(verdict, outcome=Outcome.CRASHED)
    if choice.number:
        words = f"{verdict.message}; retry {choice.number} of {choice.limit} {choice.told[0]}"
        return replace(verdict, outcome=Outcome.CRASHED, message=words)
    words = f"{verdict.message}; not tried again: {choice.why}" if choice.why else verdict.message
    code = verdict.exit_code or int(Exit.FAILED)
    # No trainer ran: another pod, or this one once there is room, goes on with it.
    outcome = Outcome.FAILED if verdict.trainer_code is not None else Outcome.PREEMPTED
    return replace(verdict, outcome=outcome, exit_code=code, message=words)


def _read(place: Path) -> Tries:
    """OSError or RelayError where it cannot be; whatever is there, nobody waits for it."""
    with folder(place.parent) as at:
        return decode(read_file(at, place.name, MAX_TRIES), Tries)
