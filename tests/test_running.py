"""What a running trainer is tied to: an order that lets it save first, who hears it at once, who is told of its end."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_kit import new_run
from commander_kit import FakeClock, until
from preempt_kit import settings

from relay_agent.attempt import running, wish
from relay_agent.attempt.background import Background
from relay_agent.attempt.gently import LAST
from relay_agent.attempt.orders import Orders
from relay_agent.attempt.running import Running
from relay_agent.checkpoints.staging import FIRST
from relay_agent.guardian import EARLY
from relay_agent.outcome.stop import Stop, Why
from relay_agent.output.follow import Follower
from relay_agent.output.progress import Progress
from relay_agent.preempt import training
from relaytui.wire.messages import Order
from relaytui.wire.status import OrderKind

GRACE = 20.0
SAFE = 1_005.0
"""When the lease ends, on the boot clock."""


class Trainer:
    """One that prints and saves as a test says. `obeys`: it ends once it is stopped."""

    signalled = True
    stopped = False
    oom = False
    cut = 0

    def __init__(self, *, sigterm: bool = False, obeys: bool = True) -> None:
        self.ends_by: list[float] = []
        self._sigterm, self._obeys = sigterm, obeys
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.gone: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.before_stop: Callable[[], bool] = lambda: True
        self.stops: list[float] = []
        self.leaves = 0
        self.heard: list[bool] = []

    def ends(self, code: int) -> None:
        self.exited.set_result(code)
        self.gone.set_result(0)

    def stop(self, within: float) -> None:
        assert self.before_stop()
        self.stops.append(within)
        if self._obeys and not self.exited.done():
            self.ends(143)

    def leave(self) -> None:
        self.leaves += 1

    def hear(self, at_once: bool) -> None:
        self.heard.append(at_once)

    def knows(self, number: int) -> bool:
        return self._sigterm

    def dead_by(self, at: float, notice: float | None = None) -> None:
        self.ends_by.append(at)

    def frozen(self) -> bool:
        return False

    def pids(self) -> set[int]:
        return set()

    async def catch_up(self) -> bool:
        return True


class Publisher:
    def __init__(self) -> None:
        self.measured = SimpleNamespace(bytes=None, speed=None)
        self.answers = SimpleNamespace(count=0)
        self.newest_step: int | None = None
        self.only_healthy = False
        self.undecided = False
        self.catch_up: Any = None
        self.begun = False
        """It was asked which saves had begun."""
        self._closed = asyncio.Event()

    async def run(self) -> None:
        await self._closed.wait()

    async def asked_to_save(self) -> None:
        pass

    def wish_is_taken(self) -> None:
        pass

    async def trainer_stops(self) -> None:
        await asyncio.sleep(0)
        self.begun = True

    def close(self) -> None:
        self._closed.set()

    def heed_frozen(self, frozen: Callable[[], bool]) -> None:
        pass

    async def finish(self, code: int, over: Callable[[int], bool], *, stopped: bool, leftovers: int, oom: bool) -> None:
        pass


class Scene:
    """A trainer that runs until a test ends it; its code is what `ended` gives."""

    def __init__(self, tmp_path: Path, trainer: Trainer, **variables: str) -> None:
        self.clock, self.stop, self.trainer, self.publisher = FakeClock(), Stop(), trainer, Publisher()
        trainer.before_stop = lambda: self.publisher.begun
        self.departed: list[object] = []
        self.background = Background()
        self.link: Any = SimpleNamespace(
            training=False, watched=False, on_watched=None, acknowledge=lambda order, accepted, message: None
        )
        tenure: Any = SimpleNamespace(
            lease=SimpleNamespace(run_id="run-1", epoch=1, safe_until=SAFE), notice=GRACE, on_renewed=None
        )
        tell: Any = SimpleNamespace(event=lambda kind, message, data=None, send=True: None, report=lambda report: None)
        self.orders = Orders(tenure, self.link, self.stop, tell, self.background.begin)
        self.run = new_run(tmp_path)
        self.file = self.run.save_file(1)
        self.follower = Follower(Progress(), self.clock, lambda report: None, lambda mark: None, lambda: None)
        self.settings = settings(tmp_path, RELAY_STOP_GRACE=f"{GRACE:g}", **variables)
        around: Any = SimpleNamespace(
            settings=self.settings, folder=self.run,
            holding=SimpleNamespace(lease=tenure.lease), tenure=tenure, orders=self.orders, tell=tell, stop=self.stop,
            clock=self.clock,
        )  # fmt: skip
        departure: Any = SimpleNamespace(begin=self.departed.append, ended=self.departed.append)
        made = Running(around, self.link, departure, self.background)
        until_gone = made.until_gone(trainer, self.follower, self.publisher, None)  # type: ignore[arg-type]
        self.ended = asyncio.create_task(until_gone)

    def order(self, kind: OrderKind, number: int = 1) -> None:
        self.orders.take(Order(number, "run-1", 1, kind, by="root"))

    def takes_the_wish(self) -> None:
        self.file.unlink()


@asynccontextmanager
async def scene(tmp_path: Path, trainer: Trainer, **variables: str) -> AsyncIterator[Scene]:
    made = Scene(tmp_path, trainer, **variables)
    try:
        await until(lambda: made.link.training or made.ended.done())
        yield made
    finally:
        made.ended.cancel()
        await made.background.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wish, "LOOK", 0.01)


@pytest.mark.parametrize("kind", [OrderKind.DRAIN, OrderKind.CANCEL])
async def test_an_order_to_stop_asks_for_a_checkpoint_first(tmp_path: Path, kind: OrderKind) -> None:
    async with scene(tmp_path, Trainer()) as made:
        made.order(kind)
        await until(made.file.exists)
        assert (made.trainer.stops, made.stop.why) == ([], None)
        made.takes_the_wish()
        made.publisher.answers.count = 1
        assert await made.ended == 143
        assert made.trainer.stops == [GRACE + LAST], "its grace began with the order"
        assert made.stop.dead_by == math.inf, "what is sent after it has its own time"
        assert made.stop.why is Why[kind.name]


@pytest.mark.parametrize(("rule", "ends"), [("continue", 1_000.0 + GRACE + LAST + EARLY), ("stop", SAFE)])
async def test_no_stop_gives_more_than_the_lease_where_that_ends_the_trainer(
    tmp_path: Path, rule: str, ends: float
) -> None:
    """Its agent may die right after; then its guardian knows that end alone."""
    async with scene(tmp_path, Trainer(), ON_LEASE_LOSS=rule) as made:
        made.order(OrderKind.DRAIN)
        await until(made.file.exists)
        made.takes_the_wish()
        made.publisher.answers.count = 1
        assert await made.ended == 143
        assert made.trainer.ends_by[-1] == ends


async def test_who_handles_sigterm_is_asked_once_it_has_answered_before(tmp_path: Path) -> None:
    async with scene(tmp_path, Trainer(sigterm=True)) as made:
        made.order(OrderKind.SAVE)
        await until(made.file.exists)
        await until(lambda: made.orders.asked_by_file)
        made.takes_the_wish()
        made.order(OrderKind.DRAIN, 2)
        await until(made.file.exists)
        assert made.trainer.stops == []
        made.publisher.answers.count = 1
        assert await made.ended == 143


async def test_and_at_once_stopped_where_it_never_did(tmp_path: Path) -> None:
    async with scene(tmp_path, Trainer(sigterm=True)) as made:
        made.order(OrderKind.DRAIN)
        assert await made.ended == 143
        assert not made.file.exists()


async def test_nothing_is_waited_for_once_the_pod_is_told_to_stop(tmp_path: Path) -> None:
    async with scene(tmp_path, Trainer(obeys=False)) as made:
        made.order(OrderKind.DRAIN)
        await until(made.file.exists)
        made.stop.ask(Why.SIGNAL, "SIGTERM", 15)
        await until(lambda: made.stop.why is Why.DRAIN)
        made.trainer.ends(143)
        assert await made.ended == 143


@pytest.mark.parametrize(("last", "why"), [(9, None), (5, Why.DRAIN)])
async def test_who_reaches_its_last_step_while_it_was_to_save_is_stopped_by_nobody(
    tmp_path: Path, last: int, why: Why | None
) -> None:
    async with scene(tmp_path, Trainer()) as made:
        made.order(OrderKind.DRAIN)
        await until(made.file.exists)
        made.follower.feed(f"step 4/9 loss 1\nstep {last}/9 loss 1\n".encode())
        made.trainer.ends(0)
        assert (await made.ended, made.stop.why) == (0, why)


@pytest.mark.parametrize(
    ("variables", "at_once"),
    [
        ({}, False),
        ({"ON_NAN": "stop"}, True),
        ({"ON_NAN": "rollback"}, True),
        ({"ON_DIVERGE": "stop"}, True),
        ({"ON_DIVERGE": "rollback"}, True),
    ],
)
async def test_a_loss_that_is_acted_on_is_heard_at_once_whether_anybody_looks_or_not(
    tmp_path: Path, variables: dict[str, str], at_once: bool
) -> None:
    async with scene(tmp_path, Trainer(), **variables) as made:
        assert made.trainer.heard == [at_once], "from the beginning on"
        made.link.on_watched(True)
        made.link.on_watched(False)
        assert made.trainer.heard[1:] == [True, at_once]


async def test_what_is_published_waits_for_what_was_printed_and_a_notice_knows_the_trainer(tmp_path: Path) -> None:
    async with scene(tmp_path, Trainer()) as made:
        assert made.publisher.catch_up == made.trainer.catch_up
        (trains,) = made.departed
        assert isinstance(trains, training.Training)
        assert trains.published == 0
        made.trainer.ends(7)
        assert await made.ended == 7
        assert made.departed[1:] == [7]
        assert not made.link.training


async def turns() -> None:
    """Whatever can go on does."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize("why", ["decided", "gone", "stop", "too long"])
async def test_what_a_trainer_left_is_let_live_while_a_save_has_to_keep_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """It may be what saves, and nobody can tell whether it is."""
    monkeypatch.setattr(running, "LEFT_EVERY", 0.0)
    async with scene(tmp_path, Trainer(obeys=False)) as made:
        trainer = made.trainer
        trainer.exited.set_result(0)
        await turns()
        assert trainer.leaves == 0, "there is nothing that may be half"
        made.publisher.undecided = True
        await until(lambda: trainer.leaves > 3)
        if why == "decided":
            made.publisher.undecided = False
        elif why == "gone":
            trainer.gone.set_result(0)
        elif why == "stop":
            made.stop.ask(Why.SIGNAL, "SIGTERM", 15)
        else:
            made.clock.advance(2 * FIRST * made.settings.settle_seconds)
        await turns()
        before = trainer.leaves
        await turns()
        assert trainer.leaves == before
        if why != "gone":
            assert not made.ended.done()
            trainer.gone.set_result(1)
        assert await made.ended == 0


@pytest.mark.parametrize(("code", "stopped"), [(7, False), (0, True)])
async def test_but_not_of_one_that_did_not_end_well_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, stopped: bool
) -> None:
    monkeypatch.setattr(running, "LEFT_EVERY", 0.0)
    async with scene(tmp_path, Trainer(obeys=False)) as made:
        made.publisher.undecided, made.trainer.stopped = True, stopped
        made.trainer.exited.set_result(code)
        await turns()
        assert made.trainer.leaves == 0
        made.trainer.gone.set_result(1)
        assert await made.ended == code


async def test_a_volume_that_hangs_holds_no_stop_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it take a thread for each look: there are few of them."""
    there, looks = threading.Event(), list[Path]()

    def hangs(path: Path) -> bool:
        looks.append(path)
        return not there.wait(60)

    monkeypatch.setattr(training, "lexists", hangs)
    monkeypatch.setattr(training, "ANSWERS", 0.01)
    async with scene(tmp_path, Trainer()) as made:
        (trains,) = made.departed
        assert isinstance(trains, training.Training)
        assert [await trains.took_the_wish(), await trains.took_the_wish()] == [False, False]
        made.order(OrderKind.DRAIN)
        await until(lambda: made.orders.asked_by_file)
        made.stop.ask(Why.SIGNAL, "SIGTERM", 15)
        assert await made.ended == 143
        assert len(looks) == 1
        there.set()
        monkeypatch.setattr(training, "ANSWERS", 30.0)
        made.file.unlink()
        assert await trains.took_the_wish()
