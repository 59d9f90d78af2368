"""Asking the Hub for what an attempt begins with: how long it is patient, what it tells meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import ManualClock

from relay_agent.checkpoints.tree import Cancelled
from relay_agent.hub import restore
from relay_agent.hub.protocol import Listed, Pulled, Where
from relay_agent.hub.restore import LIST_TIMEOUT, OnHub
from relay_agent.outcome.stop import Stop, Why
from relay_agent.sending.protocol import Step
from relay_agent.sending.source import LIST_TRIES, LIST_WITHIN, LONGEST_WAIT, PULL_TRIES
from relay_agent.sending.trouble import Trouble
from relaytui.wire.reports import Transfer

STEP = Step("step-500", "c" * 40, "", "run-1", "step_00000500", 500, 3, 9, True, 3, 1000, "a" * 64)


class Hub:
    """Stands for the child: `answers` one after another, the last one again and again; each may move bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any, moves: Callable[[int], int] = lambda call: 0):
        self.answers = list(answers)
        self.moves = moves
        self.jobs: list[Any] = []
        self.longest: list[float] = []
        self.stop = Stop()
        self.told: list[Transfer] = []
        self.clock = ManualClock()
        monkeypatch.setattr(restore.calls, "call", self._call)
        self.source = OnHub(Where("me/x", "hf_t"), "/nowhere", self.stop, self.clock, self, self.told.append)  # type: ignore[arg-type]

    def uniform(self, least: float, most: float) -> float:
        return 0.0

    async def _call(self, job: Any, result: Any, **given: Any) -> Any:
        self.jobs.append(job)
        self.longest.append(given.get("quiet", {}).get("looking", 0.0))
        self.clock.now += 10
        if (moved := self.moves(len(self.jobs))) and "on_progress" in given:
            given["on_progress"](moved, 1000)
            self.clock.now += 2
            given["on_progress"](moved + 1, 1000)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            return await answer()
        return answer

    def pull(self) -> Path:
        return asyncio.run(self.source.pull(STEP, Path("/nowhere")))


def trouble(kind: Any = "transient", wait: float | None = None) -> Trouble:
    return Trouble("unreachable", "the Hub cannot be reached", kind, wait)


def test_a_list_is_asked_for_a_few_times_and_each_request_waits_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, trouble(), trouble("unknown"), Listed([STEP]))
    assert asyncio.run(hub.source.steps()) == [STEP]
    assert {job.where.timeout for job in hub.jobs} == {LIST_TIMEOUT}
    hub = Hub(monkeypatch, trouble())
    with pytest.raises(Trouble):
        asyncio.run(hub.source.steps())
    assert len(hub.jobs) == LIST_TRIES


def test_who_begins_waits_for_a_list_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub wants to be left alone for hours: what an attempt does without it the table says."""
    hub = Hub(monkeypatch, trouble(wait=7200.0))
    with pytest.raises(Trouble, match=r"cannot be reached; it wants to be asked again in 7200 s") as asked:
        asyncio.run(hub.source.steps())
    assert (len(hub.jobs), asked.value.kind) == (1, "transient")
    assert hub.longest[0] == pytest.approx(LIST_WITHIN)
    hub = Hub(monkeypatch, trouble(wait=1.0))
    monkeypatch.setattr("relay_agent.sending.source.LIST_WITHIN", 15.0)  # the second answer comes after 20 s
    with pytest.raises(Trouble):
        asyncio.run(hub.source.steps())
    assert len(hub.jobs) == 2
    assert hub.longest == pytest.approx([15.0, 5.0])


def test_what_comes_again_for_ever_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, trouble("permanent"))
    for ask in (hub.source.steps(), hub.source.pull(STEP, Path("/nowhere"))):
        with pytest.raises(Trouble):
            asyncio.run(ask)
    assert len(hub.jobs) == 2
    assert (hub.told[-1].phase, hub.told[-1].error) == ("failed", "the Hub cannot be reached")


def test_as_long_as_bytes_come_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    many = PULL_TRIES * 2
    hub = Hub(monkeypatch, *[trouble()] * many, Pulled("/somewhere", 9), moves=lambda call: 10 * call)
    assert hub.pull() == Path("/somewhere")
    assert len(hub.jobs) == many + 1
    assert {report.phase for report in hub.told} == {"downloading", "waiting"}
    assert [report.attempt for report in hub.told][-1] == many + 1
    assert any(report.rate for report in hub.told)
    assert [report.done for report in hub.told] == sorted(report.done for report in hub.told)
    hub = Hub(monkeypatch, trouble())
    with pytest.raises(Trouble):
        hub.pull()
    assert len(hub.jobs) == PULL_TRIES


def test_the_hubs_own_wait_is_kept_and_the_end_of_the_pod_comes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, trouble(wait=LONGEST_WAIT))

    async def work() -> None:
        pulling = asyncio.create_task(hub.source.pull(STEP, Path("/nowhere")))
        while not hub.told:
            await asyncio.sleep(0)
        hub.stop.ask(Why.SIGNAL, "the pod goes", 15)
        with pytest.raises(Cancelled):
            await pulling

    asyncio.run(work())
    assert len(hub.jobs) == 1
    assert hub.told[-1].phase == "failed"


def test_no_gpu_waits_for_hours_until_a_hub_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an attempt does without it the table says."""
    hub = Hub(monkeypatch, trouble(wait=86_400.0))
    with pytest.raises(Trouble, match=r"cannot be reached; it wants to be asked again in 86400 s") as refused:
        hub.pull()
    assert (len(hub.jobs), refused.value.kind) == (1, "transient")
    assert (hub.told[-1].phase, hub.told[-1].error) == ("failed", refused.value.words)


def test_told_to_stop_it_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []

    async def hangs() -> None:
        hub.stop.ask(Why.SIGNAL, "the pod goes", 15)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    hub = Hub(monkeypatch, hangs)
    with pytest.raises(Cancelled):
        hub.pull()
    assert ended == [True]
