"""telemetry.db stays within its bounds: what gives way is counted, said, and never what is newest; no ack waits."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from commander_kit import FakeClock, Kit, log, running, step, until

from relaytui.client.endpoint import Endpoint
from relaytui.client.mirror import Mirror
from relaytui.commander.services import telemetry_room
from relaytui.commander.services.telemetry_room import drawn, thinned
from relaytui.commander.store.room import PastFrame
from relaytui.dashboard.session import Session
from relaytui.wire.codec import encode
from relaytui.wire.reports import Gap, Log, Step

DAY = 86_400.0
LINE = "x" * 900


def past(number: int, *reports: Any) -> PastFrame:
    lines = [n for report in reports if isinstance(report, Log) for n in (report.n, report.n + len(report.lines) - 1)]
    lines += [n for report in reports if isinstance(report, Gap) for n in (report.n, report.n + report.count - 1)]
    return PastFrame(
        number, number, number, min(lines, default=0), max(lines, default=0), float(number), encode(list(reports))
    )


def test_frames_become_a_gap_and_a_thin_curve() -> None:
    frames = [
        past(1, Gap(1.0, 1, 40), Step(1.0, 1)),
        past(2, Log(2.0, 41, ["a", "b"]), Step(2.0, 2, None, {"loss": "nan"})),
        past(3, Log(3.0, 43, ["c"]), Step(3.0, 3)),
    ]
    data, lines, steps = drawn(frames)
    assert data == encode([Gap(3.0, 1, 43), Step(1.0, 1), Step(2.0, 2, None, {"loss": "nan"}), Step(3.0, 3)])
    assert (lines, steps) == (3, 0)
    assert drawn([past(1, Step(1.0, 5))]) == (encode([Step(1.0, 5)]), 0, 0), "no lines, no gap"
    assert drawn([past(1)]) == (b"[]", 0, 0)
    assert drawn([PastFrame(1, 1, 1, 1, 9, 1.0, b"not json")])[0] == encode([Gap(0.0, 1, 9)])


def test_a_curve_is_thinned_evenly_however_often() -> None:
    kept: list[Step] = []
    for part in range(200):
        kept = thinned([*kept, *(Step(0.0, n) for n in range(part * 100, part * 100 + 100))], 100)
    numbers = [each.step for each in kept]
    assert len(numbers) <= 100
    assert (numbers[0], numbers[-1]) == (0, 19_999)
    assert numbers == sorted(numbers)
    assert max(after - before for before, after in pairwise(numbers)) < 1_000
    assert len(thinned([Step(0.0, n % 2 * 1_000) for n in range(10_000)], 100)) <= 100, "a counter that jumps about"


def test_steps_with_hundreds_of_metrics_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_room, "MAX_DRAWN", 50_000)
    metrics: dict[str, Any] = {f"metric-{n}": 0.5 for n in range(200)}
    data, _, steps = drawn([past(1, *(Step(0.0, n, None, metrics) for n in range(300)))])
    assert len(data) <= 50_000
    assert steps > 200


async def flood(kit: Kit, agent: Any, frames: int, first: int = 1) -> None:
    for number in range(first, first + frames):
        lines = [f"{number} {LINE}"] * 20
        await agent.tell(log((number - 1) * 20 + 1, *lines), step(number, loss=float(number)))


def weights(state: Path) -> list[tuple[int, int]]:
    """(what the books say, what is there) of each attempt."""
    with closing(sqlite3.connect(state / "telemetry.db")) as db:
        return db.execute(
            "SELECT bytes, (SELECT sum(length(data) + 64) FROM frames WHERE stream = streams.id) FROM streams"
        ).fetchall()


async def test_a_run_over_its_limit_loses_its_oldest_lines_and_says_so(tmp_path: Path, clock: FakeClock) -> None:
    state = tmp_path / "state"
    async with running(state, clock, telemetry_run_bytes=500_000) as kit:
        agent, other = await kit.agent(), await kit.agent("pod-2")
        await agent.acquire("run-1")
        await other.acquire("run-2")
        await flood(kit, agent, 40)
        await flood(kit, other, 5)
        room = kit.commander.core.room
        before = await kit.get("/api/runs/run-1/series?points=1000")
        await room.make()
        ((said, there), (_, others)) = weights(state)
        assert said == there
        assert 400_000 < said <= 450_000
        assert others > 90_000, "who is within its limit keeps all"
        lines = await kit.lines("run-1", "?limit=5000")
        assert lines[-1].startswith("40 ")
        assert 300 < len(lines) < 600
        event = next(event for event in await kit.events("run-1") if event["kind"] == "run.log_thinned")
        gone = int(event["data"]["lines"])
        assert (event["actor"], event["epoch"], gone + len(lines)) == ("commander", 1, 800)
        assert event["message"] == (
            f"{gone} log lines up to number {gone} gave way: over what is kept of a run (RELAY_TELEMETRY_RUN_BYTES)"
        )
        assert await kit.get("/api/runs/run-1/series?points=1000") == before, "a curve of few points stays"
        await room.make()
        assert (await kit.kinds("run-1")).count("run.log_thinned") == 1
        await flood(kit, agent, 40, 41)
        await room.make()
        ((said, there), _) = weights(state)
        assert said == there <= 450_000
        with closing(sqlite3.connect(state / "telemetry.db")) as db:
            first = db.execute("SELECT first_line, data FROM frames WHERE stream = 1 ORDER BY first_seq").fetchone()
        assert first[0] == 1
        assert first[1].count(b'"gap"') == 1, "one gap, however often"
        feed = await kit.feed()
        await feed.watch("run-1")
        assert (await feed.until(lambda body: body["type"] == "lines"))["n"] > gone
    async with running(state, clock, telemetry_run_bytes=500_000) as kit:
        series = (await kit.get("/api/runs/run-1/series?points=1000"))[1]["points"]
        assert [point[1] for point in series] == list(range(1, 81))
        assert (await kit.lines("run-1", "?limit=1"))[0].startswith("80 ")


async def test_what_is_old_gives_way_and_what_is_not_stays(tmp_path: Path, clock: FakeClock) -> None:
    async with running(tmp_path / "state", clock, telemetry_days=30.0, lease_seconds=86_400.0) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        await flood(kit, agent, 3)
        clock.advance(20 * DAY)
        await flood(kit, agent, 3, 4)
        await kit.commander.core.room.make()
        assert len(await kit.lines("run-1", "?limit=5000")) == 120
        clock.advance(11 * DAY)
        await kit.commander.core.room.make()
        lines = await kit.lines("run-1", "?limit=5000")
        assert (len(lines), lines[0][:2]) == (60, "4 ")
        event = (await kit.events("run-1"))[-1]
        assert event["message"] == "60 log lines up to number 60 gave way: older than 30 days"
        clock.advance(30 * DAY)
        await kit.commander.core.room.make()
        assert await kit.lines("run-1") == []
        assert len((await kit.get("/api/runs/run-1/series?points=100"))[1]["points"]) == 6


async def test_of_all_runs_the_one_that_was_heard_of_first_gives_way_first(tmp_path: Path, clock: FakeClock) -> None:
    async with running(tmp_path / "state", clock, telemetry_bytes=500_000) as kit:
        for name in ("one", "two", "three"):
            agent = await kit.agent(name)
            await agent.acquire(name)
            await flood(kit, agent, 10)
            clock.advance(1.0)
        await kit.commander.core.room.make()
        kept = [len(await kit.lines(name, "?limit=5000")) for name in ("one", "two", "three")]
        assert kept[0] < kept[1] == kept[2] == 200


async def test_acks_go_out_while_room_is_made(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of it, and what comes meanwhile is neither lost nor drawn in."""
    monkeypatch.setattr(telemetry_room, "FRAMES_AT_ONCE", 4)
    async with running(tmp_path / "state", clock, telemetry_run_bytes=500_000) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        await flood(kit, agent, 60)
        room, numbers = kit.commander.core.room, iter(range(61, 1_000))
        together, turns = room._together, 0

        async def and_more(*given: Any) -> bool:
            nonlocal turns
            turns += 1
            await flood(kit, agent, 1, next(numbers))  # acknowledged before the next batch
            return await together(*given)

        monkeypatch.setattr(room, "_together", and_more)
        await room.make()
        await until(lambda: True)
        assert turns > 5
        lines = await kit.lines("run-1", "?limit=5000")
        assert lines[-1].startswith(f"{60 + turns} ")
        ((said, there),) = weights(tmp_path / "state")
        assert said == there


def test_an_older_database_learns_what_it_weighs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from relaytui.commander.store.database import TELEMETRY, Schema, open_database

    older = TELEMETRY.migrations()[:2]
    with monkeypatch.context() as patch:
        patch.setattr(Schema, "migrations", lambda self: older)
        db = open_database(tmp_path / "telemetry.db", TELEMETRY)
        db.execute(
            "INSERT INTO streams (run_id, epoch, last_seq, lines, metrics, reported_at) VALUES ('r',1,2,0,'{}',1)"
        )
        for seq, data in ((1, b"[]"), (2, b"[1]")):
            db.execute("INSERT INTO frames VALUES (?, 1, ?, ?, 0, 0, 1.0, ?)", (seq, seq, seq, data))
        db.close()
    db = open_database(tmp_path / "telemetry.db", TELEMETRY)
    assert db.execute("SELECT bytes, drawn_seq FROM streams").fetchall() == [(2 * 64 + 5, 0)]
    db.close()


async def test_what_gave_way_is_a_gap_for_who_scrolls_up(tmp_path: Path, clock: FakeClock) -> None:
    async with running(tmp_path / "state", clock, telemetry_run_bytes=500_000) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        await flood(kit, agent, 40)
        await kit.commander.core.room.make()
        mirror, endpoint = Mirror(), Endpoint(kit.commander.url, kit.operator)
        session = Session(endpoint, mirror, lambda: None)
        try:
            await session.load_run("run-1", curve=False)
            log_of = mirror.picture("run-1").log
            log_of.add(1, 800, 1.0, ["the newest"])
            for _ in range(10):
                if (await session.load_older("run-1")) is None:
                    break
            first = log_of.entries[0]
            assert (first.n, first.missing) == (1, log_of.entries[1].n - 1)
            assert first.missing > 200
        finally:
            await session.close()
