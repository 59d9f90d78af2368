"""What an agent does with the time that its pod has left: by the clock alone, nothing here waits."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from commander_kit import FakeClock
from preempt_kit import serving, settings, virtually

from relay_agent.attempt.wish import HEED, Asked
from relay_agent.outcome.stop import Stop, Why
from relay_agent.preempt.clues import Clues
from relay_agent.preempt.departure import Departure, grace_of
from relay_agent.preempt.metadata import Metadata
from relay_agent.preempt.notice import Notice
from relay_agent.preempt.places import PLACES
from relay_agent.preempt.plan import Act, kill_margin, leave_margin, plan

GB = 10**9
SPOT = Notice("aws", "EC2 will terminate this spot instance")


class Told:
    """In place of an attempt's teller."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, dict[str, str]]] = []

    def event(self, kind: str, message: str, data: dict[str, str] | None = None) -> None:
        self.events.append((kind, message, data or {}))

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.events]


class Trainer:
    """In place of an attempt whose trainer runs. Times are seconds after it was asked to save."""

    def __init__(
        self,
        clock: FakeClock,
        *,
        size: int | None = None,
        speed: float | None = None,
        signalled: bool = False,
        takes_file_after: float = math.inf,
        publishes_after: float = math.inf,
        sigterm: bool = True,
        unasked: str = "",
    ) -> None:
        self.size, self.speed = size, speed
        self._unasked = unasked
        self._clock = clock
        self._signalled, self._sigterm = signalled, sigterm
        self._takes, self._publishes = takes_file_after, publishes_after
        self.asked_at = math.inf

    @property
    def published(self) -> int:
        return int(self._clock.boot() - self.asked_at >= self._publishes)

    async def ask_to_save(self) -> Asked:
        self.asked_at = self._clock.boot()
        return Asked(self._signalled, "the trainer was asked to save", self._unasked)

    async def took_the_wish(self) -> bool:
        return self._clock.boot() - self.asked_at >= self._takes

    async def knows_sigterm(self) -> bool:
        return self._sigterm


class Scene:
    """A departure, and when what happened; times are seconds after the notice."""

    def __init__(self, tmp_path: Path, clues: Clues | None = None, **variables: str) -> None:
        self.clock = FakeClock()
        self.stop = Stop()
        self.told = Told()
        self.departure = Departure(
            settings(tmp_path, **variables), self.clock, lambda: self.stop, Clues({}) if clues is None else clues
        )
        self.departure.tell = self.told  # type: ignore[assignment]
        self.began = self.clock.boot()
        self.orders: list[tuple[str, float]] = []
        self.stop.listen(lambda at_once: self.orders.append(("kill" if at_once else "stop", self.now())))

    def now(self) -> float:
        return round(self.clock.boot() - self.began, 1)

    def trainer(self, **behaviour: Any) -> Trainer:
        trainer = Trainer(self.clock, **behaviour)
        self.departure.begin(trainer)  # type: ignore[arg-type]
        return trainer

    def play(self, work: Callable[[], Coroutine[Any, Any, None]], seconds: float = 200.0) -> None:
        async def whole() -> None:
            await work()
            await asyncio.sleep(seconds)
            self.departure.close()

        virtually(self.clock, whole)

    def hear(self, *notices: Notice, seconds: float = 200.0) -> None:
        async def work() -> None:
            for notice in notices:
                self.departure.hear(notice)

        self.play(work, seconds)


def aws(**variables: str) -> dict[str, str]:
    return {"PREEMPT": "aws", **variables}


# -- save, or only tell ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "size", "speed", "act"),
    [
        (120, None, None, Act.SAVE),  # nobody knows its size: two minutes are thought enough
        (30, None, None, Act.SAVE),
        (15, None, None, Act.TELL),
        (5, 20_000_000, None, Act.TELL),
        (10, 20_000_000, None, Act.SAVE),
        (120, 7 * GB, None, Act.SAVE),
        (120, 56 * GB, None, Act.TELL),  # a 4B model with its optimizer
        (120, 56 * GB, 2.5e9, Act.SAVE),
        (30, 1.5 * GB, 50e6, Act.TELL),
        (0, 0, None, Act.TELL),
    ],
)
def test_the_time_decides(left: float, size: int | None, speed: float | None, act: Act) -> None:
    decided = plan(left, size, speed)
    assert decided.act is act, decided
    assert f"{left:.0f} s are left" in decided.words


@pytest.mark.parametrize("grace", [0.0, 5.0, 10.0, 30.0, 120.0])
def test_the_trainer_is_killed_first_and_the_agent_ends_before_its_pod(grace: float) -> None:
    assert kill_margin(grace) >= leave_margin(grace) >= 0
    assert grace - kill_margin(grace) >= 0.6 * grace
    assert kill_margin(30) == 5.0, "before torchrun's own 30 s are over"


def test_where_nothing_says_which_cloud_it_is_nobody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(self: Metadata, *args: object, **more: object) -> None:
        pytest.fail("a question left the pod")

    monkeypatch.setattr(Metadata, "ask", asked)
    for variables in ({}, {"PREEMPT": "none"}, {"AWS_REGION": "eu-west-1"}):
        scene = Scene(tmp_path, Clues(variables), PREEMPT=variables.get("PREEMPT", "auto"))
        virtually(scene.clock, scene.departure.watch)  # it ends at once


async def test_whoever_is_asked_is_asked_until_the_agent_ends(tmp_path: Path) -> None:
    async with serving() as service:
        service.answers["/latest/api/token"] = "a-token"
        departure = Departure(settings(tmp_path, PREEMPT="aws", PREEMPT_URL=service.url), FakeClock(), Stop)
        watching = asyncio.create_task(departure.watch())
        while len(service.asked) < 3:
            await asyncio.sleep(0.01)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        departure.close()
    assert service.paths()[0] == "PUT /latest/api/token"


# -- enough time -------------------------------------------------------------------------------------------------


def test_a_save_that_was_asked_for_is_published_and_then_the_pod_is_left(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **aws())
    scene.trainer(signalled=True, publishes_after=20)
    scene.hear(Notice("aws", SPOT.words, scene.clock.wall() + 100))
    assert scene.orders[0] == ("stop", 20.0)
    (kind, message, data) = scene.told.events[0]
    assert kind == "preempt.notice"
    assert data == {"source": "aws", "plan": "save", "left": "100", "deadline": "2027-01-15T08:01:40Z"}
    assert message.startswith(SPOT.words)
    assert scene.stop.why is Why.SIGNAL
    assert scene.stop.exit_code == 143


def test_who_looks_for_the_file_is_given_all_the_time(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **aws())
    scene.trainer(takes_file_after=4, publishes_after=80)
    scene.hear(SPOT)
    assert scene.orders[0] == ("stop", 80.0)


def test_who_takes_no_wish_gets_sigterm_as_on_a_drain(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **aws())
    scene.trainer(sigterm=True)
    scene.hear(SPOT)
    assert scene.orders[0] == ("stop", HEED)


def test_who_could_not_be_asked_is_not_called_deaf(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **aws())
    scene.trainer(sigterm=False, unasked="the volume hangs")
    scene.hear(SPOT)
    assert scene.orders[0] == ("stop", 110.0)
    *_, said = [message for kind, message, _ in scene.told.events if kind == "preempt.unheeded"]
    assert said.startswith("the trainer could not be asked for a checkpoint (the volume hangs) and knows no SIGTERM")
    scene = Scene(tmp_path, **aws())
    scene.trainer(sigterm=True, unasked="the volume hangs")
    scene.hear(SPOT)
    assert scene.orders[0] == ("stop", 0.0)


def test_who_would_only_die_of_sigterm_trains_on_to_the_end(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **aws())
    scene.trainer(sigterm=False)
    scene.hear(SPOT)
    assert scene.orders[0] == ("stop", 110.0)
    assert scene.told.kinds() == ["preempt.notice", "preempt.unheeded"]


def test_and_its_next_save_by_itself_is_waited_for(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **aws())
    scene.trainer(sigterm=False, publishes_after=60)
    scene.hear(SPOT)
    assert scene.orders[0] == ("stop", 60.0)


def test_where_time_is_short_it_is_asked_in_every_way_at_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path, PREEMPT="gcp")
    scene.trainer(size=int(2 * GB), speed=300e6)  # some 25 of 30 s
    scene.hear(Notice("gcp", "words"))
    assert scene.orders[0][0] == "stop"
    assert scene.orders[0][1] <= 5.0


def test_nothing_is_waited_for_beyond_the_end(tmp_path: Path) -> None:
    """A trainer that hangs in its save: killed in time, and the agent ends before its pod does."""
    scene = Scene(tmp_path, **aws())
    scene.trainer(signalled=True)
    scene.hear(SPOT)
    assert scene.orders == [("stop", 110.0), ("kill", 118.5)]
    assert scene.stop.dead_by == scene.began + 117.0
    assert scene.stop.hurried.is_set()


# -- too little --------------------------------------------------------------------------------------------------


def test_too_little_time_is_told_at_once_and_training_goes_on_to_the_end(tmp_path: Path) -> None:
    scene = Scene(tmp_path, PREEMPT="gcp")
    trainer = scene.trainer(size=56 * GB)
    scene.hear(Notice("gcp", "words"))
    assert trainer.asked_at == math.inf
    assert scene.orders[0] == ("stop", 20.0)
    assert scene.told.events[0][2]["plan"] == "tell"
    assert "56.0 GB" in scene.told.events[0][1]


def test_advice_is_told_once_and_nothing_is_done(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **aws())
    scene.trainer()
    advice = Notice("aws", "EC2 recommends to rebalance", advice=True)
    scene.hear(advice, advice)
    assert scene.orders == []
    assert [data for _, _, data in scene.told.events] == [{"source": "aws", "plan": "advice"}]


# -- more than one word ------------------------------------------------------------------------------------------


def test_the_same_notice_again_changes_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **aws())
    scene.trainer(signalled=True, publishes_after=20)
    scene.hear(SPOT, SPOT, Notice("aws", SPOT.words, scene.clock.wall() + 120.5))
    assert scene.told.kinds() == ["preempt.notice"]
    assert scene.orders[0] == ("stop", 20.0)


def test_an_earlier_end_counts(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **aws())
    scene.trainer(signalled=True)

    async def work() -> None:
        scene.departure.hear(SPOT)
        await asyncio.sleep(1)
        scene.departure.hear(Notice("aws", SPOT.words, scene.clock.wall() + 60))

    scene.play(work)
    assert scene.orders == [("stop", 51.0), ("kill", 59.5)]


@pytest.mark.parametrize("at", [-5.0, 4000.0])
def test_a_time_that_cannot_be_is_none(tmp_path: Path, at: float) -> None:
    """One of the two clocks is wrong: the usual two minutes count."""
    scene = Scene(tmp_path, **aws())
    scene.hear(Notice("aws", SPOT.words, scene.clock.wall() + at), seconds=1)
    assert scene.told.events[0][2]["left"] == "120"


def test_sigterm_during_a_notice_is_the_first_one(tmp_path: Path) -> None:
    """The system's own, as it shuts down: it does not cut short the save that was asked for."""
    scene = Scene(tmp_path, **aws())
    scene.trainer(signalled=True, publishes_after=40)

    async def work() -> None:
        scene.departure.hear(SPOT)
        await asyncio.sleep(10)
        for seconds in (0, 5):
            await asyncio.sleep(seconds)
            scene.departure.signalled(signal.SIGTERM)
            scene.stop.ask(Why.SIGNAL, "the pod got SIGTERM", signal.SIGTERM)

    scene.play(work)
    assert scene.orders[:2] == [("stop", 10.0), ("kill", 15.0)], "one asks, a second one does not wait"
    assert scene.stop.message == "the pod got SIGTERM"


def test_after_a_notice_stopped_the_trainer_one_signal_kills_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **aws())
    scene.trainer(signalled=True, publishes_after=5)

    async def work() -> None:
        scene.departure.hear(SPOT)
        await asyncio.sleep(10)
        scene.departure.signalled(signal.SIGTERM)
        scene.stop.ask(Why.SIGNAL, "the pod got SIGTERM", signal.SIGTERM)

    scene.play(work, 50)
    assert [order for order, _ in scene.orders] == ["stop", "stop"]


def test_two_signals_end_the_wait_after_a_drain_too() -> None:
    stop = Stop()
    stop.ask(Why.DRAIN, "drained")
    stop.ask(Why.SIGNAL, "the pod got SIGTERM", signal.SIGTERM)
    assert not stop.hurried.is_set()
    stop.ask(Why.SIGNAL, "the pod got SIGTERM", signal.SIGTERM)
    assert stop.hurried.is_set()
    assert stop.why is Why.DRAIN


# -- when there is no trainer ------------------------------------------------------------------------------------


def test_nothing_is_begun_on_a_pod_that_goes(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **aws())
    scene.hear(SPOT, seconds=1)
    assert scene.orders == [("stop", 0.0)]
    assert scene.told.events[0][2]["plan"] == "leave"


def test_nor_is_a_failed_one_tried_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **aws())
    scene.trainer(signalled=True)

    async def work() -> None:
        scene.departure.hear(SPOT)
        await asyncio.sleep(1)
        scene.departure.ended(137)
        assert scene.stop.why is Why.SIGNAL, "an end by force after a notice is the notice's doing"
        scene.stop = Stop()
        scene.departure.again()

    scene.play(work, 1)
    assert scene.stop.asked.is_set()


def test_a_notice_after_the_end_leaves_it_an_end(tmp_path: Path) -> None:
    """What it saved last is being published: that is seen to for as long as there is time."""
    scene = Scene(tmp_path, **aws())
    scene.trainer()
    scene.departure.ended(0)
    scene.hear(SPOT)
    assert scene.stop.why is None, "it has completed"
    assert scene.told.events[0][2]["plan"] == "publish"
    assert scene.orders == [("kill", 118.0)], "nothing is waited for any more"
    assert scene.stop.hurried.is_set()


def test_what_cannot_be_asked_is_stopped_all_the_same(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **aws())

    async def fails() -> Asked:
        raise OSError(13, "no /proc here")

    scene.trainer().ask_to_save = fails  # type: ignore[method-assign]
    scene.hear(SPOT)
    assert scene.orders[0] == ("stop", 110.0)


def test_what_ends_by_itself_meanwhile_has_ended_by_itself(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **aws())
    scene.trainer(signalled=True)

    async def work() -> None:
        scene.departure.hear(SPOT)
        await asyncio.sleep(1)
        scene.departure.ended(0)

    scene.play(work)
    assert scene.stop.why is None


# -- SIGTERM and SIGUSR1 -----------------------------------------------------------------------------------------


def term(scene: Scene, number: int = signal.SIGTERM) -> None:
    async def work() -> None:
        scene.departure.signalled(number)
        scene.stop.ask(Why.SIGNAL, "the pod got a signal", number)

    scene.play(work)


DOCKER = Clues({}, container=True, first=True)


def test_the_kill_timer_is_shorter_than_the_pods(tmp_path: Path) -> None:
    scene = Scene(tmp_path, DOCKER)
    term(scene)
    assert scene.stop.dead_by == scene.began + 7.0
    assert scene.orders == [("stop", 0.0), ("kill", 8.5)]


@pytest.mark.parametrize(
    ("clues", "variables", "number"),
    [
        (DOCKER, {"RELAY_STOP_GRACE": "60"}, signal.SIGTERM),  # whoever says so has seen to it
        (DOCKER, {"PREEMPT": "none"}, signal.SIGTERM),
        (DOCKER, {}, signal.SIGINT),  # somebody at a keyboard
        (Clues({}), {}, signal.SIGTERM),
    ],
)
def test_where_nothing_is_known_only_the_trainers_own_grace_counts(
    tmp_path: Path, clues: Clues, variables: dict[str, str], number: int
) -> None:
    scene = Scene(tmp_path, clues, **variables)
    term(scene, number)
    assert scene.stop.dead_by == math.inf
    assert scene.orders == [("stop", 0.0)]


def test_the_operators_word_on_the_grace_counts_most(tmp_path: Path) -> None:
    for place in (None, PLACES[0]):
        told = settings(tmp_path, PREEMPT_GRACE="90", RELAY_STOP_GRACE="60")
        assert grace_of(told, place) == 90.0
    scene = Scene(tmp_path, DOCKER, PREEMPT="none", PREEMPT_GRACE="90")
    term(scene)
    assert scene.stop.dead_by == scene.began + 85.0
    scene = Scene(tmp_path, PREEMPT="gcp", PREEMPT_GRACE="25")
    scene.hear(Notice("gcp", "words"), seconds=1)
    assert scene.told.events[0][2]["left"] == "25"


@pytest.mark.parametrize(
    ("environ", "choice", "heard"),
    [({}, "auto", False), ({}, "slurm", True), ({"SLURM_JOB_ID": "7"}, "auto", True), ({}, "none", False),
     ({"SLURM_JOB_ID": "7"}, "aws", False)],
)  # fmt: skip
def test_sigusr1_is_a_notice_of_slurms_alone(tmp_path: Path, environ: dict[str, str], choice: str, heard: bool) -> None:
    scene = Scene(tmp_path, Clues(environ), PREEMPT=choice)
    scene.trainer(signalled=True, publishes_after=2)

    async def work() -> None:
        scene.departure.warned()
        scene.departure.warned()

    scene.play(work, 10)
    assert scene.told.kinds() == (["preempt.notice"] if heard else [])
    assert [order for order, _ in scene.orders] == (["stop"] if heard else [])
