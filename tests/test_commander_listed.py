"""An agent tells what lies on its volume, and the books of a commander that forgot are mended by it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from backup_kit import AT, a_state, put_back, relay, rows
from commander_kit import FakeClock, Kit, published, running, started, until

from relaytui.commander.services.reports import weight_of
from relaytui.commander.store.backup import back_up
from relaytui.commander.store.changes import Change, CheckpointSaved, LeaseExtended
from relaytui.commander.store.checkpoints import MOST
from relaytui.commander.store.database import RELAY, Schema, open_database
from relaytui.commander.store.writer import MAX_BATCH_BYTES
from relaytui.wire.reports import Listed

Books = list[tuple[str, bool, float]]


def held(step: int, at: float, epoch: int = 1, manifest: str = "") -> dict[str, Any]:
    """One on the volume, sealed at `at`."""
    manifest = manifest or f"{step:064x}"
    name = f"step_{step:08d}"
    return {"name": name, "step": step, "epoch": epoch, "bytes": 10, "files": 2, "manifest": manifest, "at": at}


def listed(line: list[dict[str, Any]], beside: list[dict[str, Any]] | None = None, t: float = AT) -> dict[str, Any]:
    return {"type": "listed", "t": t, "line": line, "beside": beside or []}


def saved(step: int) -> dict[str, Any]:
    return published(step, manifest=f"{step:064x}")


async def books(kit: Kit, run_id: str = "run-1") -> Books:
    """Name, whether it is on the volume, and when it was published, oldest first."""
    rows = (await kit.get(f"/api/runs/{run_id}"))[1]["checkpoints"]
    return [(row["name"], "pruned_at" not in row, row["published_at"]) for row in rows]


async def doubted(kit: Kit, run_id: str = "run-1") -> float | None:
    at: float | None = (await kit.get(f"/api/runs/{run_id}"))[1]["restored_at"]
    return at


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


async def test_the_list_of_a_restored_run_heals_as_soon_as_its_holder_tells_what_is_there(state: Path) -> None:
    clock = FakeClock()
    async with running(state, clock) as kit:
        agent = await kit.agent("pod", "one", now=clock.wall())
        token = (await agent.acquire("run-1", request_id="q"))["token"]
        await agent.state(started(), *[saved(step) for step in (210, 270, 300)])
        await agent.state({"type": "pruned", "name": "step_00000210"})
    backup = back_up(state, AT)
    clock.advance(1_000)
    put_back(state, backup, clock.wall())
    at = clock.wall()
    clock.advance(60)
    async with running(state, clock) as kit:
        back = await kit.agent("pod", "one", now=clock.wall())
        back.run_id, back.epoch, back.token, back.seq["state"] = "run-1", 1, token, 5
        assert (await back.renew())["type"] == "renewed"
        # What it had told since the backup and not had acknowledged comes again, by a clock of now.
        await back.state(saved(570), saved(600))
        assert await doubted(kit) == at, "that some are published now says nothing of those before"
        told = [held(step, clock.wall() - 900 + step) for step in (480, 546, 570, 600)]
        await back.state(listed(told, t=clock.wall()))
        assert [(name, there) for name, there, _ in await books(kit)] == [
            ("step_00000210", False), ("step_00000270", False), ("step_00000300", False),
            ("step_00000480", True), ("step_00000546", True), ("step_00000570", True), ("step_00000600", True),
        ]  # fmt: skip
        times = [when for name, there, when in await books(kit) if there]
        assert times == [pytest.approx(clock.wall() - 900 + step) for step in (480, 546, 570, 600)]
        assert await doubted(kit) is None
        row = await kit.run("run-1")
        assert (row["published"], row["checkpoints"], row["newest_step"]) == (7, 4, 600), "7 published, 3 pruned"
        event = next(event for event in await kit.events("run-1") if event["kind"] == "checkpoint.listed")
        assert event["message"] == "as the volume has them: 2 that were not known here, 2 that are gone from there"
        # And it goes on from there as ever.
        await back.state(saved(630), {"type": "pruned", "name": "step_00000480"})
        row = await kit.run("run-1")
        assert (row["published"], row["checkpoints"], row["newest_step"]) == (8, 4, 630)


async def test_until_its_agent_tells_what_is_there_a_restored_run_says_so(state: Path) -> None:
    await a_state(state)
    backup, clock = back_up(state, AT), FakeClock()
    async with running(state, clock) as kit:
        token = (await (await kit.agent("pod", "one")).acquire("run-1", request_id="q"))["token"]
        assert await doubted(kit) is None
    put_back(state, backup, AT + 100)
    clock.advance(160)
    async with running(state, clock) as kit:
        assert [await doubted(kit, run_id) for run_id in ("run-1", "run-2")] == [AT + 100] * 2
        done = await asyncio.to_thread(relay, "runs", "run-1", "--state", state)
        words = "what is listed may be older than the volume until an agent tells what is there"
        assert f"commander restored 1m ago from a backup: {words}" in " ".join(done.stdout.split()), done.stdout
        feed = await kit.feed()
        back = await kit.agent("pod", "one")
        back.run_id, back.epoch, back.token = "run-1", 1, token
        assert (await back.renew())["type"] == "renewed"
        await back.state(published(900), first_seq=3)
        assert await doubted(kit) == AT + 100, "a new one says nothing of those between"
        await back.state(listed([held(900, AT, manifest="ab" * 32)]), first_seq=4)
        assert await doubted(kit) is None
        await feed.until(lambda body: body["type"] == "run" and "restored_at" not in body["run"])
        await kit.pass_time(clock, 302)
        assert (await kit.requeue("run-2", 1))[0] == 200
        following = await kit.agent("next")
        assert (await following.acquire("run-2"))["type"] == "granted"
        assert await doubted(kit, "run-2") == AT + 100
        await following.state(listed([]))
        assert await doubted(kit, "run-2") is None
        assert (await (await kit.agent("new")).acquire("run-3"))["type"] == "granted"
        assert await doubted(kit, "run-3") is None, "it is younger than the restore"
    async with running(state, clock) as kit:
        assert [await doubted(kit, run_id) for run_id in ("run-1", "run-2")] == [None] * 2


async def test_what_a_pod_kept_to_itself_until_it_was_gone_the_next_attempt_tells(kit: Kit, clock: FakeClock) -> None:
    agent = await kit.agent("pod", now=clock.wall())
    await agent.acquire("run-1")
    await agent.state(started(), saved(100))
    before = (await books(kit))[0][2]
    await kit.pass_time(clock, 302)
    later = await kit.agent("next", now=clock.wall())
    assert (await later.acquire("run-1"))["epoch"] == 2
    now = clock.wall()
    await later.state(listed([held(100, before), held(200, now - 200)], t=now))
    assert await books(kit) == [("step_00000100", True, before), ("step_00000200", True, pytest.approx(now - 200))]
    assert (await kit.run("run-1"))["newest_step"] == 200
    count = len(await kit.events("run-1"))
    await later.state(listed([held(100, before), held(200, now - 200)], t=now))
    assert len(await kit.events("run-1")) == count, "nothing new is no event"


@pytest.mark.parametrize(
    ("line", "beside"),
    [
        ([], []),
        ([held(100, AT)], []),
        ([held(100, AT), held(500, AT, manifest="cd" * 32)], []),
        ([held(600, AT, manifest="cd" * 32)] * 2, []),
    ],
    ids=["empty", "older", "another one of that name", "the same twice"],
)
async def test_a_volume_that_does_not_go_on_from_what_is_known_takes_nothing_away(
    kit: Kit, line: list[dict[str, Any]], beside: list[dict[str, Any]]
) -> None:
    """An empty disk, an older copy: what the next grant names as the newest is what keeps a run from beginning anew."""
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started(), *[saved(step) for step in (100, 300, 500)])
    before = await books(kit)
    await agent.state(listed(line, beside))
    assert await books(kit) == before
    row = await kit.run("run-1")
    assert (row["newest_step"], row["checkpoints"], row["published"]) == (500, 3, 3)


async def test_what_lies_beside_the_line_stays_and_is_not_the_newest(kit: Kit) -> None:
    """After a step back to a healthy one the later ones stay on the volume."""
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started(), *[saved(step) for step in (100, 300, 500)])
    await agent.state(listed([held(100, AT)], [held(500, AT), held(510, AT)]))
    assert [(name, there) for name, there, _ in await books(kit)] == [
        ("step_00000100", True), ("step_00000300", False), ("step_00000500", True),
    ]  # fmt: skip
    await agent.state(saved(150), listed([held(100, AT), held(150, AT)], [held(500, AT)]))
    assert (await kit.run("run-1"))["newest_step"] == 150


async def test_no_time_a_pod_says_is_out_of_bounds(kit: Kit, clock: FakeClock) -> None:
    agent = await kit.agent("pod", now=clock.wall())
    await agent.acquire("run-1")
    times = [-6e10, 2e11, 5.0]
    await agent.state(started(), listed([held(n, at) for n, at in enumerate(times, 1)], t=clock.wall()))
    told = [when for _, _, when in await books(kit)]
    assert told == sorted(told)
    assert all(0 <= when <= clock.wall() for when in told)


async def test_who_no_longer_holds_the_run_tells_nothing_of_it(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started(), saved(100))
    assert (await kit.force("run-1", 1, pod_gone=True))[0] == 200
    before = await books(kit)
    assert (await agent.state(listed([held(900, AT)])))["type"] == "ack"
    assert await books(kit) == before


async def test_however_many_an_agent_tells_of_the_books_keep_no_more_than_of_others(state: Path) -> None:
    async with running(state, FakeClock()) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        await agent.state(started())
        for first in range(1, 5 * MOST, MOST):
            told = listed([held(number, AT) for number in range(first, first + MOST)])
            assert (await agent.state(told))["type"] == "ack"
        row = await kit.run("run-1")
        assert (row["newest_step"], row["checkpoints"], row["published"]) == (5 * MOST, MOST, 5 * MOST)
    assert rows(state / "relay.db", "SELECT count(*) FROM checkpoints")[0][0] <= 2 * MOST


async def test_of_what_twenty_agents_list_at_once_little_comes_before_a_renewal(kit: Kit) -> None:
    """It waits for one transaction at most, so that is kept small: by what each of those on the volume costs."""
    honest, others = await kit.agent("honest"), [await kit.agent(f"other-{n}") for n in range(20)]
    for agent in (honest, *others):
        await agent.acquire(agent.worker)
    core, go, batches = kit.commander.core, threading.Event(), list[list[Change]]()
    relay, told = core.relay, core.relay._on_commit

    def hear(changes: list[Change]) -> None:
        batches.append(changes)
        told(changes)

    relay._on_commit = hear
    relay.submit(lambda tx: go.wait(10), lambda result, error: None)
    everything = [held(number, AT) for number in range(1, MOST + 1)]
    for agent in others:
        await agent.send("state", listed(everything))
    sessions = [core.workers._sessions[agent.incarnation] for agent in others]
    await until(lambda: relay.full or all(session._in_flight for session in sessions))  # type: ignore[attr-defined]
    before = relay.waiting
    renewing = asyncio.create_task(honest.renew())
    await until(lambda: relay.waiting > before)
    go.set()
    assert (await renewing)["type"] == "renewed"
    at = next(n for n, batch in enumerate(batches) if any(isinstance(change, LeaseExtended) for change in batch))
    listing = {
        change.row.run_id for batch in batches[: at + 1] for change in batch if isinstance(change, CheckpointSaved)
    }
    assert len(listing) <= 4
    for agent in others:
        assert (await agent.hear("ack"))["seq"] == 1, "and nothing of it is lost"


def test_a_short_listing_is_no_small_one() -> None:
    """All that is known of the run is read for it."""
    report = msgspec.convert({"type": "listed", "t": AT, "line": []}, Listed)
    assert weight_of([report], 0) * 64 >= MAX_BATCH_BYTES


async def test_a_listing_costs_a_statement_for_each_new_one(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started())
    database, said = kit.commander.core.relay._db, list[str]()
    for first, most in ((1, 300), (301, 300), (301, 0)):
        told = [held(number, AT) for number in range(first, first + 300)]
        database.set_trace_callback(said.append)
        await agent.state(listed(told))
        database.set_trace_callback(None)
        assert len(said) <= most + 40
        said.clear()
    assert (await kit.run("run-1"))["checkpoints"] == 300


async def test_of_several_in_one_frame_the_last_one_counts(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    frame = [listed([held(100, AT)]), saved(200), listed([held(200, AT), held(300, AT)])]
    assert (await agent.state(started(), *frame, listed([held(300, AT)]), saved(400)))["seq"] == 6
    there = [name for name, there, _ in await books(kit) if there]
    assert there == ["step_00000300", "step_00000400"]
    assert (await kit.kinds("run-1")).count("checkpoint.listed") == 1


def test_a_run_that_was_trained_to_its_end_since_a_restore_is_not_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of books that were restored before they knew of doubts; no agent would ever tell of such a run."""
    before = RELAY.migrations()[:9]
    runs = {  # status, created at, granted at
        "completed-since": ("completed", 100.0, [150.0, 250.0]), "ended-before": ("failed", 100.0, [150.0]),
        "never-begun": ("cancelled", 100.0, []), "lost": ("lost", 100.0, [150.0, 250.0]),
        "waits": ("queued", 100.0, [250.0]), "younger": ("lost", 220.0, [250.0]),
    }  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(Schema, "migrations", lambda self: before)
        patch.setattr("relaytui.commander.store.database.check_rows", lambda *_: None)  # as they are read now
        db = open_database(tmp_path / "relay.db", RELAY)
    db.execute("INSERT INTO meta VALUES ('restored_at', '200')")
    for run_id, (status, created_at, granted) in runs.items():
        db.execute(
            "INSERT INTO runs (run_id, mode, status, epoch, created_at, updated_at, message, checkpoints, published, "
            "attempts) VALUES (?, 'sft', ?, 1, ?, 1.0, '', 0, 0, 1)", (run_id, status, created_at),
        )  # fmt: skip
        for epoch, at in enumerate(granted, 1):
            db.execute(
                "INSERT INTO attempts (run_id, epoch, worker, incarnation, request_id, token_hash, salt, granted_at, "
                "config_hash, started_step, last_step, message) VALUES (?, ?, 'w', 'i', 'q', ?, x'', ?, '', 0, 0, '')",
                (run_id, epoch, f"{run_id} {epoch}".encode().ljust(32), at),
            )  # fmt: skip
    db.close()
    db = open_database(tmp_path / "relay.db", RELAY)
    doubted = db.execute("SELECT run_id FROM runs WHERE restored_at = 200 ORDER BY run_id").fetchall()
    assert [run_id for (run_id,) in doubted] == ["ended-before", "lost", "never-begun", "waits"]
    assert db.execute("SELECT count(*) FROM runs WHERE restored_at IS NULL").fetchone() == (2,)
    db.close()
