"""Drain and cancel: a trainer that would only die of SIGTERM is asked for a checkpoint first, within bounds."""

from __future__ import annotations

import asyncio
import errno
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from signal import Signals
from types import SimpleNamespace
from typing import Any

import pytest
from agent_rig import Rig, eventually, rigged
from commander_kit import FakeClock
from preempt_kit import virtually

from relay_agent.attempt.gently import LAST, Gently
from relay_agent.attempt.orders import Answer, Orders
from relay_agent.attempt.wish import HEED, Asked
from relay_agent.checkpoints.watching import Settling
from relay_agent.outcome.stop import Stop, Why
from relay_agent.process import say, tell_time
from relaytui.wire.messages import Order
from relaytui.wire.status import OrderKind

GRACE = 60.0
MORE = 50.0
"""Seconds besides for a save that has to keep still."""
ASKED = ["the trainer is to save before it is stopped, in 60 s at the latest", "the trainer was asked to save"]


class Told:
    def __init__(self) -> None:
        self.kinds: list[str] = []

    def event(self, kind: str, message: str, data: object = None, *, send: bool = True) -> None:
        self.kinds.append(kind)


class Trainer:
    """Times are seconds after it was asked to save."""

    def __init__(
        self,
        clock: FakeClock,
        *,
        sigterm: bool = False,
        signalled: bool = False,
        takes_after: float = math.inf,
        publishes_after: float = math.inf,
        exits_after: float = math.inf,
        saves: tuple[float, float] = (math.inf, math.inf),
        settles: tuple[float, ...] = (),
        writes_at: float = math.inf,
        unasked: str = "",
    ) -> None:
        self._clock = clock
        self._sigterm, self._signalled = sigterm, signalled
        self._takes, self._publishes, self._exits = takes_after, publishes_after, exits_after
        self._saves = saves
        self._settles, self._writes_at = settles, writes_at
        self._unasked = unasked
        self.asked_at: float | None = None

    def _since(self) -> float:
        return -1.0 if self.asked_at is None else self._clock.boot() - self.asked_at

    @property
    def published(self) -> int:
        return int(self._since() >= self._publishes)

    @property
    def undecided(self) -> bool:
        """What it began to save keeps still, and nobody knows yet that it is whole."""
        begun, whole = self._saves
        return begun <= self._since() < whole

    @property
    def awaited(self) -> str:
        return "step_91 is there" if self.undecided else ""

    def settling(self) -> list[Settling]:
        """Saves from before the order: when each is whole, and when the last of them is written to again."""
        found = []
        for n, at in enumerate(self._settles, 1):
            written = n == len(self._settles) and self._since() >= self._writes_at
            if at > self._since():
                found.append(Settling(f"step_{n}0", n, 0.5 if written else max(5.0, 60 - at + self._since()), 60))
        return found

    @property
    def gone(self) -> bool:
        return self._since() >= self._exits

    async def ask_to_save(self) -> Asked:
        self.asked_at = self._clock.boot()
        how = f"could not be asked to save: {self._unasked}" if self._unasked else "was asked to save"
        return Asked(self._signalled, f"the trainer {how}", self._unasked)

    async def took_the_wish(self) -> bool:
        return self.asked_at is None or self._since() >= self._takes

    async def knows_sigterm(self) -> bool:
        return self._sigterm


def waits(*, grace: float = GRACE, answers: bool = False, **behaviour: Any) -> tuple[float, list[str], bool]:
    """Seconds until it may be stopped, what is told meanwhile, and whether it was asked."""
    clock, told = FakeClock(), Told()
    trainer = Trainer(clock, **behaviour)
    gently = Gently(trainer, clock, told, grace, lambda: answers, lambda: trainer.gone, MORE)  # type: ignore[arg-type]
    began = clock.boot()
    virtually(clock, gently.save)
    return round(clock.boot() - began, 1), told.kinds, trainer.asked_at is not None


def test_who_saves_on_sigterm_gets_it_at_once() -> None:
    assert waits(sigterm=True) == (0.0, [], False)


def test_who_would_only_die_of_it_is_asked_first_and_stopped_once_that_is_published() -> None:
    assert waits(takes_after=1, publishes_after=4) == (4.0, [], True)
    assert waits(signalled=True, publishes_after=30) == (30.0, [], True), "its own signal was heard"


def test_so_is_who_is_known_to_answer_the_file_whoever_handles_sigterm_around_it() -> None:
    """torchrun does, and passes it on to ranks that do not."""
    assert waits(sigterm=True, answers=True, takes_after=1, publishes_after=3) == (3.0, [], True)


def test_who_answered_the_file_before_has_its_grace_to_come_to_it_again() -> None:
    """A step may take longer than a minute; and what is said of who never looks is not said of it."""
    assert waits(answers=True, takes_after=30, publishes_after=32) == (32.0, [], True)
    assert waits(answers=True, sigterm=True) == (GRACE, [], True)


def test_nobody_waits_long_for_who_does_not_look_for_the_file() -> None:
    assert waits() == (HEED, ["order.unheeded"], True)
    assert waits(grace=2.0) == (2.0, ["order.unheeded"], True), "who has less time to save has less time to heed"


def test_what_it_saved_before_is_waited_for_where_nothing_will_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """It was whole, and stopped seconds before anybody could know that: the next attempt began from the beginning."""
    assert waits(settles=(20, 47)) == (47.0, ["order.unheeded"], True)
    *_, waits_for, stops = capsys.readouterr().err.splitlines()
    assert waits_for == (
        "relay-agent: the trainer takes no wish for a checkpoint and knows no SIGTERM: it is stopped once"
        " step_20, which it saved before, has kept still for 60 s, in 37 s"
    )
    assert stops == "relay-agent: stopping the trainer"


def test_who_could_not_be_asked_is_not_waited_for_nor_called_deaf(capsys: pytest.CaptureFixture[str]) -> None:
    why = "the file .save-now could not be made: No such file or directory"
    assert waits(unasked=why) == (0.0, ["order.unheeded"], True)
    assert waits(unasked=why, answers=True) == (0.0, ["order.unheeded"], True), "whoever answered before"
    _, *said = [line.removeprefix("relay-agent: ") for line in capsys.readouterr().err.splitlines()[:3]]
    assert said == [
        f"the trainer could not be asked to save: {why}",
        f"the trainer could not be asked for a checkpoint ({why}) and knows no SIGTERM: it is stopped",
    ]
    assert waits(unasked=why, settles=(20,)) == (20.0, ["order.unheeded"], True)


def test_but_not_longer_than_for_one_that_answers() -> None:
    assert waits(settles=(GRACE + MORE + 0.5,)) == (GRACE + MORE, ["order.unheeded"], True)
    assert waits(settles=(47,), writes_at=30) == (30.0, ["order.unheeded"], True), "it is no save from before any more"
    assert waits(settles=(47,), writes_at=0) == (12.0, ["order.unheeded"], True), "nor soon one that is whole"
    assert waits(settles=(40, 47), writes_at=30) == (40.0, ["order.unheeded"], True), "but the one before it is"
    assert waits(settles=(47,), exits_after=20) == (20.0, ["order.unheeded"], True)
    assert waits(settles=(47,), takes_after=1, publishes_after=4) == (4.0, [], True), "the answer is later than these"


def test_nor_for_ever_for_a_save_that_does_not_come() -> None:
    assert waits(takes_after=1) == (GRACE, [], True)


def test_nor_at_all_once_it_has_ended() -> None:
    assert waits(exits_after=2) == (2.0, [], True)


def dead_by(clock: FakeClock, trainer: Trainer) -> float:
    """Seconds from the order on that it has."""
    gently = Gently(trainer, clock, Told(), GRACE, lambda: True, lambda: trainer.gone, MORE)  # type: ignore[arg-type]
    said: list[float] = []

    async def save() -> None:
        said.append(await gently.save())

    began = clock.boot()
    virtually(clock, save)
    (at,) = said
    return at - began


@pytest.mark.parametrize(("sigterm", "left"), [(False, GRACE + LAST), (True, math.inf)])
def test_who_handles_no_sigterm_has_its_grace_from_the_order_on(sigterm: bool, left: float) -> None:
    """Or what ignores it would run on for as long again."""
    clock = FakeClock()
    trainer = Trainer(clock, sigterm=sigterm, takes_after=1, publishes_after=4)
    assert dead_by(clock, trainer) == left


def test_a_save_that_has_yet_to_keep_still_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    """One that could not be known to be whole within the grace was never the answer."""
    assert waits(takes_after=1, saves=(2, 90), publishes_after=90) == (90.0, [], True)
    said = [line for line in capsys.readouterr().err.splitlines() if "step_91" in line]
    assert said == ["relay-agent: step_91 is there"], "once"


def test_but_not_for_ever() -> None:
    assert waits(takes_after=1, saves=(2, math.inf)) == (GRACE + MORE, [], True)


def test_nor_once_nothing_is_to_be_decided_any_more() -> None:
    assert waits(takes_after=1, saves=(2, 75)) == (75.0, [], True)
    assert waits(takes_after=1, saves=(61, 200)) == (GRACE, [], True), "it was not there in time"


def test_nor_once_its_trainer_ended_or_somebody_stops_it() -> None:
    assert waits(takes_after=1, saves=(2, math.inf), exits_after=70) == (70.0, [], True)


def test_what_handles_no_sigterm_dies_right_after_such_a_wait() -> None:
    clock = FakeClock()
    trainer = Trainer(clock, takes_after=1, saves=(2, 90), publishes_after=90)
    assert dead_by(clock, trainer) == 90 + LAST


# -- the order -----------------------------------------------------------------------------------------------------


class Scene:
    """An attempt's orders, and what it takes until the trainer may be stopped."""

    def __init__(self) -> None:
        self.stop = Stop()
        self.saved = asyncio.Event()
        self.answers: list[tuple[str, bool]] = []
        self.tasks: list[asyncio.Task[None]] = []
        link = SimpleNamespace(
            acknowledge=lambda order, accepted, message: self.answers.append((str(order.kind), accepted)),
            training=False,
        )
        tenure = SimpleNamespace(lease=SimpleNamespace(run_id="run-1", epoch=1))
        self.orders = Orders(
            tenure, link, self.stop, Told(), lambda work, name: self.tasks.append(asyncio.create_task(work))
        )  # type: ignore[arg-type]
        self.orders.trainer_is_up(SimpleNamespace(), Path("unused"), None)  # type: ignore[arg-type]
        self.orders.before_stop = self.before_stop

    async def before_stop(self) -> float:
        await self.saved.wait()
        return 100.0

    def give(self, number: int, kind: OrderKind) -> None:
        self.orders.take(Order(number, "run-1", 1, kind, by="root"))


async def test_an_order_is_answered_at_once_and_carried_out_once_it_is_saved() -> None:
    scene = Scene()
    scene.give(1, OrderKind.DRAIN)
    await asyncio.sleep(0)
    assert (scene.answers, scene.stop.why) == ([("drain", True)], None)
    scene.saved.set()
    await asyncio.gather(*scene.tasks)
    assert (scene.stop.why, scene.stop.message, scene.stop.kill_by) == (Why.DRAIN, "drained by root", 100.0)


async def test_a_cancel_that_comes_meanwhile_counts_and_asks_nobody_again() -> None:
    scene = Scene()
    scene.give(1, OrderKind.DRAIN)
    scene.give(2, OrderKind.CANCEL)
    scene.give(3, OrderKind.DRAIN)
    scene.saved.set()
    await asyncio.gather(*scene.tasks)
    assert (scene.stop.why, len(scene.tasks)) == (Why.CANCEL, 1)


@pytest.mark.parametrize(("completed", "why"), [(False, Why.DRAIN), (True, None)])
async def test_who_ends_by_itself_meanwhile_was_to_stop_unless_it_was_done(completed: bool, why: Why | None) -> None:
    scene = Scene()
    scene.give(1, OrderKind.DRAIN)
    await asyncio.sleep(0)
    scene.orders.trainer_is_gone()
    scene.saved.set()
    await asyncio.gather(*scene.tasks)
    assert scene.stop.why is None, "how far it got is not all heard yet"
    scene.orders.all_is_heard(completed)
    assert scene.stop.why is why
    scene.orders.all_is_heard(completed)


async def test_where_it_is_being_stopped_already_nobody_waits() -> None:
    scene = Scene()
    scene.stop.ask(Why.SIGNAL, "the pod got SIGTERM")
    scene.give(1, OrderKind.DRAIN)
    assert (scene.stop.why, scene.tasks) == (Why.DRAIN, [])


async def test_what_fails_on_the_way_stops_it_all_the_same() -> None:
    async def fail() -> None:
        raise OSError("the volume is gone")

    scene = Scene()
    scene.orders.before_stop = fail
    scene.give(1, OrderKind.DRAIN)
    await asyncio.gather(*scene.tasks, return_exceptions=True)
    assert scene.stop.why is Why.DRAIN


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ({"sigterm": True}, ["stopping the trainer, publishing what it saves"]),
        ({}, [*ASKED, "the trainer takes no wish for a checkpoint and knows no SIGTERM: it is stopped"]),
        ({"takes_after": 1, "publishes_after": 4}, [*ASKED, "the checkpoint is published: stopping the trainer"]),
        ({"takes_after": 1}, [*ASKED, "no checkpoint came in 60 s: stopping the trainer"]),
        ({"exits_after": 2}, ASKED),
    ],
)
def test_what_is_said_of_a_drain_is_said_once_and_as_it_happens(
    capsys: pytest.CaptureFixture[str], behaviour: dict[str, Any], said: list[str]
) -> None:
    """That it was asked to drain was said ten seconds later, after what it did for that."""
    clock, told = FakeClock(), Told()
    trainer = Trainer(clock, **behaviour)

    async def drained() -> None:
        scene = Scene()
        gently = Gently(trainer, clock, told, GRACE, lambda: False, lambda: trainer.gone, MORE)  # type: ignore[arg-type]
        scene.orders.before_stop = gently.save
        scene.give(1, OrderKind.DRAIN)
        await asyncio.gather(*scene.tasks)

    virtually(clock, drained)
    lines = [line.removeprefix("relay-agent: ") for line in capsys.readouterr().err.splitlines()]
    assert lines == ["asked to drain by root", *said]


async def test_a_refusal_is_said_on_the_pod_too(capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene()
    scene.give(1, OrderKind.SYNC)
    assert capsys.readouterr().err.splitlines()[-1] == (
        "relay-agent: refused to sync: it has no repository on the Hub: HF_REPO is not set"
    )
    scene.orders.on_sync = lambda who: Answer()
    scene.give(2, OrderKind.SYNC)
    assert "refused" not in capsys.readouterr().err
    scene.orders.trainer_is_gone()
    scene.give(3, OrderKind.SAVE)
    assert capsys.readouterr().err.splitlines()[-1] == "relay-agent: refused to save: the trainer has exited"
    assert [accepted for _, accepted in scene.answers] == [False, True, False]


async def test_a_save_is_answered_where_the_system_shows_no_processes(tmp_path: Path) -> None:
    """Whoever ordered it would wait for ever."""

    def signal(number: int) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    scene = Scene()
    scene.orders.trainer_is_up(SimpleNamespace(signal=signal), tmp_path / ".save-now", Signals.SIGUSR1)  # type: ignore[arg-type]
    scene.give(1, OrderKind.SAVE)
    await asyncio.gather(*scene.tasks)
    assert scene.answers == [("save", True)]
    assert (tmp_path / ".save-now").exists(), "the other way is gone all the same"


async def test_a_running_agent_says_when(capsys: pytest.CaptureFixture[str]) -> None:
    """And none that has not begun: an error is no line of a log."""
    clock = FakeClock()

    async def agent() -> None:
        tell_time(clock)
        await asyncio.create_task(in_a_task())
        await asyncio.to_thread(say, "in a thread")
        clock.wall = lambda: 1e30  # type: ignore[method-assign]
        say("with a clock that is off")

    async def in_a_task() -> None:
        say("in a task")

    when = datetime.fromtimestamp(clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    await asyncio.create_task(agent())
    say("nobody's")
    assert capsys.readouterr().err.splitlines() == [
        f"{when} relay-agent: in a task",
        f"{when} relay-agent: in a thread",
        "relay-agent: with a clock that is off",
        "relay-agent: nobody's",
    ]


# -- with a process ------------------------------------------------------------------------------------------------


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rigged(tmp_path) as rig:
        yield rig


PLAIN = """
step=0
while :; do
  step=$((step + 1)); echo "step $step/100000 loss 1"
  if [ -e "$RELAY_SAVE_FILE" ]; then
    rm "$RELAY_SAVE_FILE"; d=$RELAY_CKPT_STAGING_ROOT/step_$step; mkdir "$d"; echo x > "$d/x"; touch "$d/COMPLETE"
  fi
  sleep 0.05
done
"""


SAVES = """
for step in 40 80; do
  d=$RELAY_CKPT_STAGING_ROOT/step_$step; mkdir "$d"; echo $step > "$d/x"; echo "step $step/100000 loss 1"
done
echo "step 83/100000 loss 1"
while :; do sleep 0.05; done
"""


OWN = """
echo "step 80/100000 loss 1"; sleep 1; echo nothing marks its end > $RELAY_OUTPUT_DIR/last.bin
sleep 2; echo "step 83/100000 loss 1"
while :; do sleep 0.05; done
"""


@pytest.mark.parametrize(("command", "settle"), [(SAVES, "0.5"), (OWN, "6")], ids=["staging", "own"])
@pytest.mark.parametrize(("kind", "status"), [("drain", "queued"), ("cancel", "cancelled")])
def test_a_plain_trainer_that_looks_for_nothing_loses_what_came_after_its_last_save(
    rig: Rig, kind: str, status: str, command: str, settle: str
) -> None:
    """In its first minute, too."""
    agent = rig.agent(command, RELAY_STOP_GRACE="1", RELAY_SETTLE_SECONDS=settle)
    eventually(lambda: rig.run()["step"] >= 83, "its steps")
    assert rig.run()["newest_step"] == 0, "not yet still for long enough"
    rig.call(f"/api/runs/{rig.run_id}/{kind}", expected_epoch=1, why="a test")
    assert agent.wait() == 143, agent.says()
    run = rig.run()
    assert (run["status"], run["newest_step"]) == (status, 80), agent.says()
    assert "its newest checkpoint is of step 80; steps 81-83 are in none" in run["attempts"][0]["message"]


@pytest.mark.parametrize(("kind", "status"), [("drain", "queued"), ("cancel", "cancelled")])
def test_a_plain_trainer_that_looks_for_the_file_loses_next_to_nothing(rig: Rig, kind: str, status: str) -> None:
    """No handler of SIGTERM: it was ended at once, and all since its last checkpoint was lost."""
    agent = rig.agent(PLAIN)
    eventually(lambda: rig.run()["step"] >= 10, "ten steps")
    rig.call(f"/api/runs/{rig.run_id}/{kind}", expected_epoch=1, why="a test")
    assert agent.wait() == 143, agent.says()
    run = rig.run()
    assert run["status"] == status
    assert run["newest_step"] >= 10, agent.says()
