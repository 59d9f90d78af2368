"""What one report, grant or renewal costs, counted in steps of SQLite: the same however much its run has."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from commander_kit import DEADLINE, MANIFEST, FakeClock, Kit, published, running, started, until

from relaytui.commander.services.leases import Ask, Given
from relaytui.commander.services.reports import REPORT
from relaytui.commander.store import attempts, checkpoints, history
from relaytui.commander.store.writer import UNIT, Tx, Writer
from relaytui.wire.errors import RelayError
from relaytui.wire.reports import Ended, Event, Pruned, Published, Started
from relaytui.wire.status import Outcome

RUN = "run-1"
FEW, MANY = 20, 2_020


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    async with running(tmp_path / "state", FakeClock(), max_no_progress=3) as kit:
        yield kit


async def steps_of(kit: Kit, unit: Callable[[Tx], Any]) -> int:
    """Of SQLite's machine; the unit is undone."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    def measured(tx: Tx) -> None:
        db = tx.execute.__self__  # type: ignore[attr-defined]
        db.set_progress_handler(step, 1)
        try:
            unit(tx)
        finally:
            db.set_progress_handler(None, 1)
        raise RelayError("undone", "only measured")

    with pytest.raises(RelayError, match="only measured"):
        await kit.commander.core.relay.run(measured)
    return count


def fill(tx: Tx, first: int, last: int) -> None:
    """As much of everything as a run can have, from one number to the other."""
    for n in range(first, last):
        pruned = 1.0 if n % 2 else None
        tx.execute(
            "INSERT INTO checkpoints (run_id, name, step, epoch, bytes, files, manifest, published_at, pruned_at) "
            "VALUES (?, ?, ?, 1, 1, 1, ?, 1.0, ?)",
            (RUN, f"c{n}", n, MANIFEST, pruned),
        )
        history.add_event(tx, 1.0, "agent.note", "pod", "x", RUN, 1)
        history.add_event(tx, 1.0, "run.requeued", "ada", "x", RUN, 1)
        tx.execute(
            "INSERT INTO attempts SELECT run_id, ?, worker, incarnation, request_id, ?, salt, granted_at, config_hash, "
            "started_step, last_step, started_from, 1.0, 'lost', exit_code, message, said_step, ending, "
            "began_step FROM attempts WHERE run_id = ? AND epoch = ?",
            (1_000_000 - n, f"{n:032}".encode(), RUN, attempts_epoch(tx)),
        )
        tx.execute(
            "INSERT INTO orders (run_id, epoch, incarnation, kind, actor, why, created_at) "
            "VALUES (?, ?, 'gone', 'save', 'ada', '', 1.0)",
            (RUN, 1_000_000 - n),
        )
        tx.execute("INSERT INTO streams (run_id, epoch, last_seq) VALUES (?, ?, 1)", (RUN, 1_000_000 - n))


def attempts_epoch(tx: Tx) -> int:
    return int(tx.execute("SELECT epoch FROM runs WHERE run_id = ?", (RUN,)).fetchone()[0])


REPORTS = {
    "started": Started(1.0, 0, None, 7),
    "published": Published(1.0, "new", 9, 1, 1, MANIFEST),
    "published again": Published(1.0, "c4", 9, 1, 1, "cd" * 32),
    "pruned": Pruned(1.0, "c0"),
    "event": Event(1.0, "x.y", "said"),
    "ignored": Event(1.0, "resume.ignored", "said", {"step": "0"}),
    "ended": Ended(1.0, Outcome.PREEMPTED),
}


async def test_no_report_costs_more_the_more_its_run_has(kit: Kit) -> None:
    agent = await kit.agent()
    # Far above, so that there is room for earlier ones.
    await agent.acquire(RUN, highest_epoch=999_999)
    await agent.state(started())
    core = kit.commander.core

    def one(name: str) -> Callable[[Tx], None]:
        def unit(tx: Tx) -> None:
            attempt = attempts.get(tx, RUN, attempts_epoch(tx))
            assert attempt is not None
            core.reports.apply_in(tx, attempt, REPORTS[name])

        return unit

    def granted(tx: Tx) -> None:
        one("ended")(tx)
        assert isinstance(core.leases.acquire_in(tx, Ask(RUN, "pod", "pod-1", "q", "sft")), Given)

    def again(tx: Tx) -> None:
        assert isinstance(core.leases.acquire_in(tx, Ask(RUN, "pod", "pod-1", "q1", "sft")), Given)

    units = {name: one(name) for name in REPORTS} | {"granted": granted, "granted again": again}
    await core.relay.run(lambda tx: fill(tx, 1, FEW))
    few = {name: await steps_of(kit, unit) for name, unit in units.items()}
    await core.relay.run(lambda tx: fill(tx, FEW, MANY))
    many = {name: await steps_of(kit, unit) for name, unit in units.items()}
    grown = {name: (few[name], many[name]) for name in units if many[name] > few[name] + 50}
    assert not grown


async def test_the_count_and_the_newest_of_a_line_are_those_of_its_rows(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire(RUN)

    async def said(*reports: dict[str, Any]) -> tuple[int, str | None, int | None, int]:
        await agent.state(*reports)
        row = await kit.run(RUN)
        query = "SELECT count(*) FROM checkpoints WHERE pruned_at IS NULL"
        kept = await kit.commander.core.relay.run(lambda tx: tx.execute(query).fetchone()[0])
        assert row.get("checkpoints", 0) == kept
        return kept, row.get("newest_checkpoint"), row.get("newest_step"), row["published"]

    def pruned(step: int) -> dict[str, Any]:
        return {"type": "pruned", "name": f"step_{step:08d}"}

    assert await said(started(), published(5), published(6), published(7)) == (3, "step_00000007", 7, 3)
    assert await said(pruned(7), pruned(7), pruned(99)) == (2, "step_00000006", 6, 3)
    assert await said(published(5, manifest="cd" * 32)) == (2, "step_00000005", 5, 4)
    assert await said(published(7)) == (3, "step_00000007", 7, 5)
    assert await said(pruned(5), pruned(6), pruned(7)) == (0, None, None, 5)


async def test_rows_of_checkpoints_are_bounded(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "MOST", 20)
    agent = await kit.agent()
    await agent.acquire(RUN)
    for frame in range(2):
        names = range(frame * 200, frame * 200 + 200)
        await agent.state(*(published(n) for n in names))
        await agent.state(*({"type": "pruned", "name": f"step_{n:08d}"} for n in names if n % 2))
    status, body = await kit.get(f"/api/runs/{RUN}")
    assert status == 200
    kept = [row for row in body["checkpoints"] if row.get("pruned_at") is None]
    assert len(body["checkpoints"]) <= 2 * 20 + checkpoints.TRIM_EVERY
    assert len(kept) == body["run"]["checkpoints"]
    assert (body["run"]["newest_checkpoint"], body["run"]["published"]) == ("step_00000398", 400)


async def test_attempts_are_bounded_and_a_forgotten_one_is_still_superseded(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "MOST", 20)
    agent = await kit.agent()
    await agent.acquire(RUN)
    first = agent.token
    await agent.state(started())
    for n in range(220):
        assert (await agent.acquire(RUN, request_id=f"again-{n}"))["type"] == "granted"
    rows = await kit.attempts(RUN)
    assert len(rows) <= 20 + attempts.TRIM_EVERY
    assert {row["epoch"] for row in rows} >= set(range(202, 222))
    assert (await agent.renew())["type"] == "renewed"
    assert (await agent.renew(epoch=1, token=first))["code"] == "superseded"
    check = await kit.commander.core.relay.run(lambda tx: tx.execute("PRAGMA foreign_key_check").fetchall())
    assert check == []


async def test_of_requeues_the_last_of_each_run_is_kept(kit: Kit) -> None:
    def unit(tx: Tx) -> list[Any]:
        for epoch in range(1, 40):
            for run_id in ("run-1", "run-2"):
                history.add_event(tx, 1.0, "run.requeued", "ada", "again", run_id, epoch)
        while history.trim_events(tx, 1_000_000, 10):
            pass
        return tx.execute("SELECT run_id, epoch FROM events ORDER BY run_id").fetchall()

    assert await kit.commander.core.relay.run(unit) == [("run-1", 39), ("run-2", 39)]


# -- what waits -------------------------------------------------------------------------------------------------------


class Gate:
    """A unit that waits in the writer's thread until it is let go."""

    def __init__(self, writer: Writer) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()
        writer.submit(self._wait, lambda result, error: None)

    def _wait(self, tx: Tx) -> None:
        self.reached.set()
        self.go.wait(DEADLINE)


async def test_what_is_to_come_first_waits_for_one_batch_at_most(kit: Kit) -> None:
    relay = kit.commander.core.relay
    gate = Gate(relay)
    await until(gate.reached.is_set)
    order: list[str] = []
    for _ in range(50):
        relay.submit(lambda tx: None, lambda result, error: order.append("report"), 16 << 20)

    def all_of_them(tx: Tx, items: list[int]) -> list[int]:
        return items

    relay.submit_to(all_of_them, 7, lambda result, error: order.append("renewal"), first=True)
    await asyncio.sleep(0)  # what comes in one turn of the loop is handed over at its end
    gate.go.set()
    await until(lambda: len(order) == 51)
    assert order.index("renewal") == 0
    assert relay.waiting == 0


FRAMES = 8
"""More than may be on their way at once, many times over."""


async def test_reports_on_their_way_are_bounded_by_their_number_and_renewals_pass_them(kit: Kit) -> None:
    """However small they are: a frame of a thousand weighs as much as they cost."""
    honest, flood = await kit.agent("honest"), await kit.agent("flood")
    await honest.acquire("honest")
    await flood.acquire("flood")
    relay = kit.commander.core.relay
    gate = Gate(relay)
    await until(gate.reached.is_set)

    async def pour() -> None:
        for frame in range(FRAMES):
            await flood.send("state", *(published(frame * 1_000 + n) for n in range(1_000)))

    pouring = asyncio.create_task(pour())
    session = kit.commander.core.workers._sessions["flood-1"]
    await until(lambda: not session._room.is_set())  # type: ignore[attr-defined]
    assert 1_000 * REPORT < relay.waiting < 1_100 * REPORT
    renewing = asyncio.create_task(honest.renew())
    before = relay.waiting
    await until(lambda: relay.waiting == before + UNIT)
    gate.go.set()
    assert (await renewing)["type"] == "renewed"
    acked = 0
    while acked < FRAMES * 1_000:
        acked = (await flood.hear("ack"))["seq"]
        if acked < FRAMES * 1_000:
            assert (await honest.renew())["type"] == "renewed"
    await pouring


async def test_a_full_queue_delays_no_renewal_at_the_door(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaytui.commander.store.writer.MAX_WAITING", 8 << 10)
    agent = await kit.agent()
    await agent.acquire(RUN)
    relay = kit.commander.core.relay
    gate = Gate(relay)
    await until(gate.reached.is_set)
    for _ in range(8):
        relay.submit(lambda tx: None, lambda result, error: None)
    assert relay.full
    before = relay.waiting
    renewing = asyncio.create_task(agent.renew())
    await until(lambda: relay.waiting > before)
    gate.go.set()
    assert (await renewing)["type"] == "renewed"


async def test_a_stop_does_not_wait_for_the_rest_of_a_batch(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaytui.commander.store.writer.CLOSE_WITHIN", 0.0)
    frames = kit.commander.core.frames
    first = Gate(frames)
    await until(first.reached.is_set)
    second = Gate(frames)
    ran, errors = list[int](), list[BaseException | None]()
    for n in range(300):
        frames.submit(lambda tx, n=n: ran.append(n), lambda result, error: errors.append(error))  # type: ignore[misc]
    first.go.set()
    await until(second.reached.is_set)  # the batch of all of them is being written
    closing = asyncio.create_task(frames.close())
    await until(lambda: frames._closed)
    second.go.set()
    await closing
    await until(lambda: len(errors) == 300)
    assert not ran
    assert {error.code for error in errors if isinstance(error, RelayError)} == {"stopping"}
