"""The live feed: a snapshot, what changes, and the lines of watched runs - each once, in order, at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from commander_kit import DEADLINE, FakeClock, Kit, ended, log, published, running, started, step, until

from relaytui.commander.services import hub as hub_module


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    async with running(tmp_path / "state") as kit:
        yield kit


async def test_a_snapshot_shows_everything(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started(), published(3))
    feed = await kit.feed()
    shot = feed.snapshot
    assert shot["type"] == "snapshot"
    assert [(row["run_id"], row["status"], row["newest_checkpoint"]) for row in shot["runs"]] == [
        ("run-1", "running", "step_00000003")
    ]
    assert [(row["worker"], row["status"], row["run_id"]) for row in shot["workers"]] == [("pod", "busy", "run-1")]
    assert shot["events"][-1]["kind"] == "checkpoint.published"
    assert shot["commander"] == kit.commander.generation


async def test_changes_come_as_they_happen(kit: Kit) -> None:
    feed = await kit.feed()
    agent = await kit.agent()
    connected = await feed.until(lambda m: m["type"] == "worker")
    assert (connected["worker"]["worker"], connected["worker"]["status"]) == ("pod", "idle")
    await agent.acquire("run-1")
    await feed.run("run-1", status="leased", holder="pod")
    await agent.state(started())
    await feed.run("run-1", status="running")
    await agent.state(published(7))
    assert (await feed.until(lambda m: m["type"] == "checkpoint"))["checkpoint"]["name"] == "step_00000007"
    await agent.tell(step(8, 10, loss=1.5))
    await feed.run("run-1", step=8, loss=1.5, total=10)
    await agent.state(ended("completed", 10, exit_code=0))
    await feed.run("run-1", status="completed")
    await agent.close()
    gone = await feed.until(lambda m: m["type"] == "worker" and m["worker"]["status"] == "offline")
    assert gone["worker"]["worker"] == "pod"


async def test_lines_come_only_for_watched_runs(kit: Kit) -> None:
    feed = await kit.feed()
    one, two = await kit.agent("one"), await kit.agent("two")
    await one.acquire("run-1")
    await two.acquire("run-2")
    await feed.watch("run-2", backlog=0)
    await two.tell(log(1, "x"))
    await feed.until(lambda m: m["type"] == "lines")
    await one.tell(log(1, "unwatched"))
    await two.tell(log(2, "watched"), step(1, loss=0.5))
    said = []
    while not said or said[-1]["type"] != "points":
        message = await feed.hear()
        if message["type"] in ("lines", "points"):
            said.append(message)
    assert [message.get("lines") for message in said] == [["watched"], None]
    assert said[-1]["points"] == [[1, 1, 0.5]]
    await feed.watch("*", backlog=0)
    await feed.watch("run-1", backlog=5)
    assert (await feed.until(lambda m: m["type"] == "lines"))["lines"] == ["unwatched"]
    await one.tell(log(2, "live"))
    assert (await feed.until(lambda m: m["type"] == "lines"))["lines"] == ["live"]


async def test_backlog_then_live_lines_none_twice_none_lost(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    for n in range(1, 101):
        await agent.send("telemetry", log(n, f"line {n}"))
    feed = await kit.feed()

    async def more() -> None:
        for n in range(101, 301):
            await agent.send("telemetry", log(n, f"line {n}"))

    talking = asyncio.create_task(more())
    await feed.watch("run-1", backlog=10_000)
    heard: list[str] = []
    while len(heard) < 300:
        message = await feed.until(lambda m: m["type"] == "lines")
        assert message["epoch"] == 1
        assert message["n"] == len(heard) + 1
        heard += message["lines"]
    await talking
    assert heard == [f"line {n}" for n in range(1, 301)]


async def test_the_backlog_is_the_newest_of_all_attempts(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.tell(log(1, "a", "b"))
    await agent.state(started(), ended("preempted"))
    await agent.acquire("run-1")
    await agent.tell(log(1, "c"))
    feed = await kit.feed()
    await feed.watch("run-1", backlog=2)
    first = await feed.until(lambda m: m["type"] == "lines")
    second = await feed.until(lambda m: m["type"] == "lines")
    assert [(m["epoch"], m["n"], m["lines"], m["backlog"]) for m in (first, second)] == [
        (1, 2, ["b"], True), (2, 1, ["c"], True)
    ]  # fmt: skip


async def test_lines_of_a_backlog_keep_the_times_they_were_printed_at(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.tell(log(1, "a", "b") | {"t": 100.0}, log(3, "c") | {"t": 900.0}, log(4, "d") | {"t": 900.0})
    feed = await kit.feed()
    await feed.watch("run-1")
    heard = [await feed.until(lambda m: m["type"] == "lines") for _ in range(2)]
    assert [(m["n"], m["t"], m["lines"]) for m in heard] == [(1, 100.0, ["a", "b"]), (3, 900.0, ["c", "d"])]


async def test_a_backlog_counts_what_gave_way(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.tell(log(1, "a"), {"type": "gap", "n": 2, "count": 7}, log(9, "b", "c"))
    feed = await kit.feed()
    await feed.watch("run-1")
    heard = [await feed.until(lambda m: m["type"].startswith("lines")) for _ in range(3)]
    assert [(m["type"], m["n"], m.get("lines", m.get("count"))) for m in heard] == [
        ("lines", 1, ["a"]), ("lines_gap", 2, 7), ("lines", 9, ["b", "c"])
    ]  # fmt: skip


async def test_a_line_is_shown_once_however_often_it_is_sent(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    feed = await kit.feed()
    await feed.watch("run-1", backlog=0)
    await feed.watch("run-1", backlog=0)
    await agent.tell(log(1, "first"), first_seq=1)
    for _ in range(3):
        await agent.tell(log(1, "first"), first_seq=1)
    await agent.tell(log(1, "first"), log(2, "second"), first_seq=1)
    heard = [(await feed.until(lambda m: m["type"] == "lines"))["lines"] for _ in range(2)]
    assert heard == [["first"], ["second"]]


async def test_lines_that_gave_way_are_said(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    feed = await kit.feed()
    await feed.watch("*", backlog=0)
    await kit.commander.core.frames.run(lambda tx: None)
    await until(lambda: kit.commander.core.hub.watched("run-1"))
    await agent.tell({"type": "gap", "n": 1, "count": 40})
    gap = await feed.until(lambda m: m["type"] == "lines_gap")
    assert (gap["n"], gap["count"]) == (1, 40)


async def test_a_busy_run_is_shown_ten_times_a_second_at_most(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    feed = await kit.feed()
    loop = asyncio.get_running_loop()
    start = loop.time()
    for n in range(1, 401):
        await agent.tell(step(n, loss=1.0))
    pictures = 0
    while True:
        message = await feed.until(lambda m: m["type"] == "run")
        pictures += 1
        if message["run"]["step"] == 400:
            break
    assert pictures <= (loop.time() - start) / hub_module.RUN_INTERVAL + 2


async def test_a_slow_listener_is_dropped_and_hurts_nobody(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "QUEUE_BYTES", 1 << 20)
    slow, quick = await kit.feed(), await kit.feed()
    for feed in (slow, quick):
        await feed.watch("*", backlog=0)
    await until(lambda: kit.commander.core.hub._every == 2)
    slow.ws._response.connection.transport.pause_reading()
    agent = await kit.agent()
    await agent.acquire("run-1")
    heard = 0
    for n in range(1, 20_000, 100):
        await agent.send("telemetry", log(n, *(["x" * 4_000] * 100)))
        await agent.hear("ack")
        while heard < n:
            heard = (await quick.until(lambda m: m["type"] == "lines"))["n"]
        if len(kit.commander.core.hub._subscribers) == 1:
            break
    assert len(kit.commander.core.hub._subscribers) == 1, "the slow one is still there"
    assert heard == n


async def test_a_quiet_feed_beats(kit: Kit) -> None:
    feed = await kit.feed()
    message = await feed.ws.receive(timeout=DEADLINE)
    assert '"beat"' in message.data


async def test_renewals_move_the_time_left(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        feed = await kit.feed()
        before = feed.snapshot["runs"][0]["lease_expires_at"]
        clock.advance(4)
        await agent.renew()
        row = await feed.run("run-1")
        assert row["lease_expires_at"] == pytest.approx(before + 4)
