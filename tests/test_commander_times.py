"""When something happened on a pod is shown as it was, also where it is heard of only after an outage.

A pod's clock may be wrong, or lie, and decides nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from commander_kit import FakeClock, Kit, ended, published, running, started

from relaytui.commander.services.reports import happened

AWAY = 45.0


async def checkpoints(kit: Kit) -> list[float]:
    """When each was saved, in the order of publishing, as seconds after the first second."""
    rows = (await kit.get("/api/runs/run-1"))[1]["checkpoints"]
    return [row["published_at"] - FakeClock().wall() for row in rows]


async def events(kit: Kit) -> dict[str, float]:
    rows = (await kit.get("/api/events?run=run-1"))[1]["events"]
    return {row["kind"]: row["at"] - FakeClock().wall() for row in rows}


@pytest.mark.parametrize("off", [0.0, -3_600.0, 86_400.0])
async def test_after_an_outage_events_are_as_old_as_they_are(tmp_path: Path, off: float) -> None:
    """Checkpoints 15 s apart were both saved 18 s ago, and what had happened in the night was 10 s old."""
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent(now=clock.wall() + off)
        await agent.acquire("run-1")
        clock.advance(AWAY)
        then = [clock.wall() + off - AWAY + seconds for seconds in (5, 10, 25, 30, 40)]
        stalled = {
            "type": "event",
            "kind": "trainer.stalled",
            "message": "m",
            "data": {"phase": "saving", "seconds": "3"},
        }
        told = (started(), published(10), published(20), stalled)
        await agent.state(*({"t": t} | report for t, report in zip(then, told, strict=False)))
        assert await checkpoints(kit) == [10, 25]
        assert (await kit.run("run-1"))["stalled_at"] == FakeClock().wall() + 27
        before = (await kit.run("run-1"))["updated_at"]
        await agent.state({"t": then[4]} | ended("preempted", step=30))
        at = await events(kit)
        assert (at["run.started"], at["checkpoint.published"], at["run.preempted"]) == (5, 25, 40)
        assert (await kit.attempts("run-1"))[-1]["ended_at"] == FakeClock().wall() + 40
        assert (await kit.run("run-1"))["updated_at"] >= before == clock.wall(), "what changed last is seen last"


async def test_an_agent_that_does_not_say_its_time_is_told_by_the_commanders(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        clock.advance(AWAY)
        await agent.state({"t": clock.wall() - 10} | started(), {"t": clock.wall() - 5} | published(10))
        assert await checkpoints(kit) == [AWAY]


async def test_a_clock_that_runs_backwards_changes_no_order(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent(now=clock.wall())
        await agent.acquire("run-1")
        clock.advance(AWAY)
        start = clock.wall() - AWAY
        times = ((start + 30, 10), (start + 20, 20), (start - 500, 30), (start + 10**9, 40), (-6e10, 50))
        await agent.state({"t": start} | started(), *({"t": t} | published(step) for t, step in times))
        assert await checkpoints(kit) == [30, 30, AWAY, AWAY, AWAY]


@pytest.mark.parametrize(
    ("t", "behind", "at"),
    [
        (150.0, 0.0, 150.0),
        (100.0, 0.0, 100.0),
        (99.9, 0.0, 200.0),
        (200.1, 0.0, 200.0),
        (50.0, 100.0, 150.0),
        (150.0, None, 200.0),
    ],
)
def test_a_time_outside_of_its_attempt_is_none(t: float, behind: float | None, at: float) -> None:
    assert happened(t, behind, since=100.0, now=200.0) == at


async def test_so_is_whatever_else_it_tells(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent(now=clock.wall())
        await agent.acquire("run-1")
        clock.advance(AWAY)
        first = FakeClock().wall()
        synced = {"type": "event", "kind": "hub.synced", "message": "m", "data": {"step": "10", "tag": "step-10"}}
        pruned = {"type": "pruned", "name": "step_00000010"}
        told = ((5, started()), (10, published(10)), (12, synced), (20, published(20)), (21, pruned))
        await agent.state(*({"t": first + seconds} | report for seconds, report in told))
        at = await events(kit)
        assert (at["hub.synced"], at["checkpoint.pruned"]) == (12, 21)
        assert (await kit.run("run-1"))["synced_at"] == first + 12
        rows = (await kit.get("/api/runs/run-1"))[1]["checkpoints"]
        assert [row["pruned_at"] for row in rows if row.get("pruned_at")] == [first + 21]


async def test_what_an_attempt_says_that_lost_its_run_is_as_old_as_it_is_too(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent(now=clock.wall())
        await agent.acquire("run-1")
        await agent.state(started())
        await kit.force("run-1", 1)
        clock.advance(AWAY)
        first = FakeClock().wall()
        await agent.state({"t": first + 30} | published(10), {"t": first + 35} | ended("superseded", 9))
        at = await events(kit)
        assert (at["checkpoint.orphan"], at["run.superseded"]) == (30, 35)
        assert (await kit.attempts("run-1"))[0]["ended_at"] == first + 35
        row = await kit.run("run-1")
        assert row["message"].startswith("free: ")
        assert row["updated_at"] == clock.wall(), "that is news now"


async def test_nothing_is_saved_later_than_now_where_the_commanders_clock_was_set_back(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        clock.advance(AWAY)
        await agent.state(started(), published(10))
        clock.step_wall(-30.0)
        await agent.state(published(20))
        assert await checkpoints(kit) == [AWAY, AWAY - 30]
