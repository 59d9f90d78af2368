"""The live feed: a snapshot, what changes, and the lines of watched runs - each once, in order, at once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from commander_kit import DEADLINE, FakeClock, Kit, ended, log, published, running, started, step, until

from relaytui.commander.services import feed as feed_module
from relaytui.commander.services import workers as workers_module


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


async def test_an_agent_hears_whether_anybody_follows_its_lines(kit: Kit) -> None:
    feed = await kit.feed()
    await feed.watch("run-1")
    one, two = await kit.agent("one"), await kit.agent("two")
    await one.acquire("run-1")
    await two.acquire("run-2")
    await one.renew()
    other = await kit.feed()
    await other.watch("run-1")  # no news to anybody
    await feed.watch("run-2")
    assert (await two.hear("watched"))["on"] is True
    await other.watch()
    assert (await one.hear("watched"))["on"] is False
    await other.watch("*")
    assert (await one.hear("watched"))["on"] is True
    await other.ws.close()
    assert (await one.hear("watched"))["on"] is False
    await feed.ws.close()
    assert (await two.hear("watched"))["on"] is False


async def test_an_agent_that_comes_back_hears_that_it_is_watched(kit: Kit) -> None:
    feed = await kit.feed()
    agent = await kit.agent()
    await agent.acquire("run-1")
    await feed.watch("run-1")
    assert (await agent.hear("watched"))["on"] is True
    await agent.close()
    again = await kit.agent(incarnation=agent.incarnation)
    assert (await again.hear("watched"))["on"] is True


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
    await until(lambda: kit.commander.core.feed.watched("run-1"))
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
    assert pictures <= (loop.time() - start) / feed_module.RUN_INTERVAL + 2


async def test_a_slow_listener_is_dropped_and_hurts_nobody(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "QUEUE_BYTES", 1 << 20)
    slow, quick = await kit.feed(), await kit.feed()
    for feed in (slow, quick):
        await feed.watch("*", backlog=0)
    await until(lambda: kit.commander.core.feed._every == 2)
    slow.ws._response.connection.transport.pause_reading()
    agent = await kit.agent()
    await agent.acquire("run-1")
    heard = 0
    for n in range(1, 20_000, 100):
        await agent.send("telemetry", log(n, *(["x" * 4_000] * 100)))
        await agent.hear("ack")
        while heard < n:
            heard = (await quick.until(lambda m: m["type"] == "lines"))["n"]
        if len(kit.commander.core.feed._subscribers) == 1:
            break
    assert len(kit.commander.core.feed._subscribers) == 1, "the slow one is still there"
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


# -- whatever is in the databases --------------------------------------------------------------------------------


def stuffed(state: Path) -> None:
    """History as an earlier version took it in: events of 75 KB, messages as long as they may be, many of all."""
    db = sqlite3.connect(state / "relay.db")
    data = orjson.dumps({f"k{n:02}" + "x" * 120: "v" * 1_024 for n in range(64)}).decode()
    long = "\U0001f600" * 1_024
    with db:
        db.executemany(
            "INSERT INTO events (at, kind, actor, message, run_id, epoch, data) "
            "VALUES (1, 'x.y', 'pod', ?, 'run-1', 1, ?)",
            [(long, data)] * 1_000,
        )
        db.executemany(
            "INSERT INTO runs (run_id, mode, status, epoch, created_at, updated_at, message, checkpoints, published, "
            "attempts) VALUES (?, 'sft', 'failed', 0, 1, ?, ?, 0, 0, 0)",
            [(f"old-{n}", float(n), long) for n in range(2_500)],
        )
        db.executemany(
            "INSERT INTO workers (incarnation, worker, host, version, gpu, gpus, connected_at, seen_at) "
            "VALUES (?, ?, ?, '', 'cpu', 0, 1, 1)",
            [(f"i-{n}", f"w-{n}", long[:255]) for n in range(2_000)],
        )
    db.close()


async def test_the_first_picture_fits_whatever_is_in_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "KEPT_OFFLINE", 10_000)  # as many that are away would be forgotten meanwhile
    monkeypatch.setattr(workers_module, "FORGET_AFTER", float("inf"))
    state = tmp_path / "state"
    async with running(state) as kit:
        await (await kit.agent()).acquire("live")
    stuffed(state)
    async with running(state) as kit:
        feed = await kit.feed()
        shot = feed.snapshot
        assert "live" in [row["run_id"] for row in shot["runs"]]
        assert shot["events"][-1]["kind"] == "commander.started"
        assert 0 < len(shot["runs"]) < 2_501
        assert len(orjson.dumps(shot)) < feed_module.QUEUE_BYTES
        runs = {row["run_id"] for row in shot["runs"]}
        workers = {row["incarnation"] for row in shot["workers"]}
        agent = await kit.agent("late")  # what changes meanwhile is shown too
        await agent.acquire("fresh")
        async with asyncio.timeout(6 * DEADLINE):
            while len(runs) < 2_502 or len(workers) < 2_002:
                message = await feed.hear()
                if message["type"] == "run":
                    runs.add(message["run"]["run_id"])
                elif message["type"] == "worker":
                    workers.add(message["worker"]["incarnation"])
        async with kit.session.get(
            kit.commander.url + "/api/events?run=run-1&limit=1000", headers=kit.headers("operator")
        ) as answer:
            page = await answer.read()
            assert answer.status == 200
        assert len(orjson.loads(page)["events"]) == 1_000
        assert len(page) < 16 << 20


async def test_events_of_any_size_leave_the_feed_open(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    data = {f"k{n:02}" + "x" * 120: "v" * 1_024 for n in range(64)}
    for _ in range(25):
        await agent.state(*[{"type": "event", "kind": "x.y", "message": "m" * 1_000, "data": data}] * 8)
    feed = await kit.feed()
    assert len(feed.snapshot["events"]) == 200
    assert (await kit.get("/api/events?limit=1000"))[0] == 200
    told = feed.snapshot["events"][-1]["data"]
    assert set(told) < set(data) | {"…"}
    assert told["…"].endswith("left out")


async def test_a_backlog_of_long_lines_cuts_nobody_off(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    for n in range(1, 601, 20):
        await agent.tell(log(n, *["\U0001f600" * 4_000] * 20))
    feed = await kit.feed()
    await feed.watch("run-1", backlog=10_000)
    n, heard = 0, 0
    while n < 600:
        message = await feed.until(lambda m: m["type"] == "lines")
        heard += len(message["lines"])
        n = message["n"] + len(message["lines"]) - 1
    assert 100 < heard < 600
    await agent.tell(log(601, "live"))
    assert (await feed.until(lambda m: m["type"] == "lines"))["lines"] == ["live"]
    lines = await kit.lines("run-1", "?limit=5000")
    assert (len(lines[-1]), 100 < len(lines) < 601) == (4, True)


def test_what_is_kept_back_is_bounded_in_bytes() -> None:
    given_up: list[bool] = []
    listener = feed_module.Subscriber(lambda: given_up.append(True))
    listener.hold("run-1")
    for n in range(16):
        listener.offer_lines("run-1", 1, n, b"x" * (1 << 20))
    assert listener.dropped
    assert given_up == [True]
