"""How the end of an attempt waits for what is still to be sent, and what is told where it does not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import ManualClock, new_run, put
from commander_kit import until

from relay_agent.artifacts.far.commander import Commander
from relay_agent.artifacts.jobs import Store
from relay_agent.checkpoints.manifest import Sealed
from relay_agent.outcome.stop import Stop, Why
from relay_agent.sending.backoff import Backoff
from relay_agent.sending.schedule import Schedule
from relay_agent.sending.sender import Holder, Sender
from relay_agent.sending.shown import Shown
from relay_agent.sending.trouble import Trouble
from relay_agent.sending.way import Way
from relaytui.wire.reports import Transfer
from relaytui.wire.status import Outcome, TransferKind


class Told:
    """Stands where a Teller does."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.transfers: list[Transfer] = []

    def event(self, kind: str, message: str, data: Any = None, *, send: bool = True) -> None:
        self.events.append((kind, message))

    def transfer(self, report: Transfer) -> None:
        self.transfers.append(report)


class Shows(Shown):
    kind = TransferKind.HUB
    until = "nothing more comes", "it comes later"


class Sends(Sender):
    """The newest of the line, which never gets there while `hangs`."""

    spoilt = frozenset(("damaged",))

    def __init__(self, root: Path, told: Told, clock: ManualClock) -> None:
        self.wrong: list[Trouble] = []
        self.hangs = False
        self.finals: list[bool] = []
        shown = Shows("the sync to there", "the newest is not there", told, clock)
        holder = Holder(new_run(root), 1, lambda: 100.0, told, clock, random.Random(1))
        super().__init__(shown, Schedule(0.0, holder.rng, clock.boot()), holder, self._work)

    async def prepare(self) -> bool:
        return True

    def next(self, *, closing: bool, final: bool) -> Sealed | None:
        return next(iter(self.line()), None) if closing and not self.finals else None

    async def send(self, sealed: Sealed) -> None:
        self.shown.of(sealed)
        await self._work()
        self._schedule.done(self._clock.boot())
        self.finals.append(self._final)
        self.shown.arrived(sealed, 10, 10, 1.0)

    async def _work(self, *given: Any, **more: Any) -> Any:
        if self.hangs:
            await asyncio.Event().wait()
        if self.wrong:
            raise self.wrong.pop(0)


class Kit:
    def __init__(self, root: Path, wait: float = 60.0) -> None:
        self.told, self.clock, self.stop = Told(), ManualClock(), Stop()
        self.sender = Sends(root, self.told, self.clock)
        self.way = Way("hub", self.sender, self.stop, self.clock, wait, "HF_END_WAIT")
        put(self.sender._folder, 1, 20)

    def late(self) -> None:
        self.clock.now += 61
        self.stop.ask(Why.DRAIN, "it looks at the clock again")

    async def last(self, outcome: Outcome, meanwhile: Callable[[], Any] = lambda: None) -> None:
        self.way.begin()
        ending = asyncio.create_task(self.way.last(outcome))
        if self.sender.hangs:
            await until(lambda: self.sender._busy)
            meanwhile()
        await asyncio.wait_for(ending, 10)


@pytest.mark.parametrize(
    ("outcome", "why", "final"),
    [
        (Outcome.COMPLETED, None, [True]),
        (Outcome.FAILED, None, [True]),
        (Outcome.CANCELLED, Why.CANCEL, [True]),
        (Outcome.DRAINED, Why.DRAIN, [True]),
        (Outcome.PREEMPTED, Why.SIGNAL, [False]),
        (Outcome.CRASHED, Why.AGAIN, []),
        (Outcome.PREEMPTED, Why.CUT_OFF, []),
    ],
)
async def test_what_a_run_ends_or_is_drained_with_is_the_last_of_it(
    tmp_path: Path, outcome: Outcome, why: Why | None, final: list[bool]
) -> None:
    kit = Kit(tmp_path)
    kit.stop.dead_by = kit.clock.boot() + 1000
    if why is not None:
        kit.stop.ask(why, "so", 15 if why is Why.SIGNAL else 0)
    await kit.last(outcome)
    assert kit.sender.finals == final
    left = [kind for kind, _ in kit.told.events]
    assert left == (["hub.left"] if why is Why.CUT_OFF else [])


@pytest.mark.parametrize(
    ("wait", "meanwhile", "words"),
    [
        (60.0, lambda kit: kit.stop.ask(Why.SIGNAL, "Ctrl-C", 2), "the wait for it was ended"),
        (60.0, lambda kit: kit.late(), "the wait for it is over"),
        (0.0, None, "HF_END_WAIT is 0"),
    ],
)
async def test_a_last_one_that_was_not_waited_for_shows_as_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wait: float, meanwhile: Any, words: str
) -> None:
    kit = Kit(tmp_path, wait)
    kit.sender.hangs = meanwhile is not None

    await kit.last(Outcome.COMPLETED, lambda: meanwhile(kit))
    shown = kit.told.transfers[-1]
    assert (shown.phase, shown.step, shown.error) == ("failed", 20, words)
    assert kit.told.events == [("hub.left", f"the newest is not there: {words}")]
    assert "training goes on" not in capsys.readouterr().err


async def test_what_it_failed_of_is_not_forgotten_over_that(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.sender.wrong = [Trouble("unreachable", "the Hub cannot be reached", "transient")]
    kit.way.begin()
    ending = asyncio.create_task(kit.way.last(Outcome.COMPLETED))
    await until(lambda: any(report.error for report in kit.told.transfers))
    kit.stop.ask(Why.SIGNAL, "Ctrl-C", 2)
    await asyncio.wait_for(ending, 10)
    assert kit.told.transfers[-1].error == "the wait for it was ended; the Hub cannot be reached"


async def test_an_end_does_not_wait_for_a_try_that_comes_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = Kit(tmp_path)
    kit.sender.wrong = [Trouble("rate_limited", "too many requests", "transient", 3600.0)]
    await kit.last(Outcome.COMPLETED)
    (kind, words), *_ = kit.told.events
    assert kind == "hub.left"
    assert words.startswith("the newest is not there: too many requests: the next try would be in 36")
    assert "after the 60 s that the end waits" in words
    assert "waits 36" not in capsys.readouterr().err, "it does not wait"


async def test_how_much_of_the_wait_is_over_is_said_too(tmp_path: Path) -> None:
    kit = Kit(tmp_path, 12.0)

    class Slow(list[Trouble]):
        def pop(self, index: Any = 0) -> Trouble:
            kit.clock.now += 9
            return super().pop(index)

    kit.sender.wrong = Slow([Trouble("rate_limited", "too many requests", "transient", 6.0)])
    await kit.last(Outcome.COMPLETED)
    ((kind, words),) = kit.told.events
    assert kind == "hub.left"
    assert words.endswith("s, after the 12 s that the end waits, of which 9 are over")


async def test_nothing_is_said_to_go_on_once_the_trainer_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = Kit(tmp_path)
    kit.sender.wrong = [Trouble("quota", "there is no room for more")]
    await kit.last(Outcome.COMPLETED)
    assert capsys.readouterr().err.splitlines()[-1] == (
        "relay-agent: the sync to there failed: there is no room for more"
    )
    assert kit.told.transfers[-1].phase == "failed"


def test_pauses_are_any_part_of_what_doubles_and_end() -> None:
    slept: list[float] = []
    nobody = Store("http://127.0.0.1:9", "secret of some length", "run-1", 1, "token")
    backoff = Backoff(tries=6, first=0.5, longest=4.0, sleep=slept.append, rng=random.Random(1))
    with pytest.raises(Trouble, match="cannot be reached"):
        Commander(nobody, backoff).ask("GET", "/api/artifacts", dict)
    assert len(slept) == backoff.tries - 1
    assert all(pause <= most for pause, most in zip(slept, (0.5, 1, 2, 4, 4), strict=True))
    assert len({round(pause / most, 3) for pause, most in zip(slept, (0.5, 1, 2, 4, 4), strict=True)}) == 5


async def test_what_goes_wrong_at_the_end_of_one_way_is_said_and_ends_no_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = Kit(tmp_path)

    def wrong(*, final: bool = False) -> int:
        raise ValueError("a name that is none")

    monkeypatch.setattr(kit.sender, "size_left", wrong)
    await kit.last(Outcome.COMPLETED)
    assert "the sync to there ended: ValueError: a name that is none" in capsys.readouterr().err
    assert kit.way._task is not None
    assert kit.way._task.done()


async def test_what_a_way_keeps_between_two_looks_it_keeps_at_the_end_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last lines of a run's metrics, where nothing is left to be sent."""
    kit, rested = Kit(tmp_path), list[bool]()

    async def rests() -> None:
        rested.append(kit.sender.shown.training)

    monkeypatch.setattr(kit.sender, "rests", rests)
    kit.sender.finals.append(False)  # all is there
    await kit.last(Outcome.COMPLETED)
    assert rested[-1] is False
