"""Backups that are whole or not there, and a restore that is old or new at any moment, with no run trained twice."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from commander_kit import Agent, FakeClock, Kit, ended, published, running, started, until

from relaytui.client.api import whoami_here
from relaytui.commander.folder import StateFolder
from relaytui.commander.store.backup import KEPT, back_up, copy_whole, is_due
from relaytui.commander.store.kept import backups
from relaytui.commander.store.restore import EPOCHS_APART, finish, restore
from relaytui.wire.errors import Exit, RelayError

AT = 1_800_000_000.0
RELAY = Path(sys.executable).with_name("relay-tui")


async def a_state(state: Path) -> None:
    async with running(state, FakeClock()) as kit:
        agent = await kit.agent("pod", "one")
        await agent.acquire("run-1", request_id="q")
        await agent.state(started(), published(5))
        other = await kit.agent("other")
        await other.acquire("run-2")
        await other.state(started(), ended("completed", 9, exit_code=0))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    asyncio.run(a_state(tmp_path / "state"))
    return tmp_path / "state"


def rows(path: Path, query: str = "SELECT run_id, status, epoch FROM runs ORDER BY run_id") -> list[tuple[Any, ...]]:
    db = sqlite3.connect(path)
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


# -- backups -------------------------------------------------------------------------------------------------------


async def test_a_backup_of_a_commander_at_work_is_whole(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        made = []
        for n in range(5):
            await agent.send("state", published(n + 1))
            made.append(await asyncio.to_thread(back_up, tmp_path / "state", AT + n))
        for path in made:
            assert rows(path, "PRAGMA integrity_check") == [("ok",)]
            assert rows(path) == [("run-1", "leased", 1)]
            assert path.stat().st_mode & 0o077 == 0
            assert [left.name for left in path.parent.glob(f"{path.name}-*")] == []
        assert made[0].parent.stat().st_mode & 0o077 == 0


def test_the_newest_backups_are_kept(state: Path) -> None:
    other = state / "backups" / "mine.db"
    made = [back_up(state, AT + n * 3_600) for n in range(KEPT + 3)]
    other.write_bytes(b"x")
    made += [back_up(state, AT + 99 * 3_600), back_up(state, AT + 99 * 3_600)]
    assert made[-1] != made[-2]
    assert backups(state) == made[::-1][:KEPT]
    assert other.exists()


def test_a_backup_is_due_once_a_day(state: Path) -> None:
    assert is_due(state, AT)
    back_up(state, AT)
    assert not is_due(state, AT + 5)
    assert not is_due(state, AT + 86_000)
    assert is_due(state, AT + 86_500)
    assert is_due(state, AT - 7_200), "made in the future: somebody set the clock"


async def test_a_commander_makes_them_by_itself(state: Path) -> None:
    clock = FakeClock()
    async with running(state, clock) as kit:
        await until(lambda: len(backups(state)) == 1)
        clock.step_wall(90_000)
        await kit.commander.backup_if_due()
        assert len(backups(state)) == 2
        await kit.commander.backup_if_due()
        assert len(backups(state)) == 2
        # One that cannot be made is said once, and harms nothing.
        clock.step_wall(90_000)
        shutil.rmtree(state / "backups")
        (state / "backups").write_bytes(b"")
        await kit.commander.backup_if_due()
        await kit.commander.backup_if_due()
        kinds = [event["kind"] for event in (await kit.get("/api/events?limit=1000"))[1]["events"]]
        assert kinds.count("commander.backup_failed") == 1


@pytest.mark.parametrize("harm", ["DELETE FROM runs", "DROP TABLE orders", "UPDATE runs SET status = 'odd'"])
def test_what_is_not_whole_becomes_no_backup(state: Path, tmp_path: Path, harm: str) -> None:
    db = sqlite3.connect(state / "relay.db")
    db.execute(harm)
    db.commit()
    db.close()
    with pytest.raises(RelayError) as caught:
        copy_whole(state / "relay.db", tmp_path / "out.db")
    assert caught.value.exit_code == Exit.STATE
    assert str(state / "relay.db") in str(caught.value)
    assert ".part" not in str(caught.value)
    assert not [path.name for path in tmp_path.iterdir() if "out" in path.name]


def test_a_backup_replaces_nothing(state: Path, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("letter", "link", "no-folder/out.db"):
        with pytest.raises(RelayError) as caught:
            copy_whole(state / "relay.db", tmp_path / name)
        assert caught.value.exit_code == Exit.STATE
    assert (tmp_path / "letter").read_text() == "dear"
    with pytest.raises(RelayError, match="not there"):
        copy_whole(tmp_path / "nothing.db", tmp_path / "out.db")


# -- restores ------------------------------------------------------------------------------------------------------


def put_back(state: Path, source: Path) -> Any:
    folder = StateFolder(state, keyless=True)
    try:
        return restore(state, source, AT)
    finally:
        folder.close()


def test_a_restore_keeps_what_it_replaced_and_is_another_history(state: Path) -> None:
    saved = back_up(state, AT)
    spoiled = sqlite3.connect(state / "relay.db")
    spoiled.execute("UPDATE runs SET epoch = 77 WHERE run_id = 'run-2'")
    spoiled.execute("UPDATE runs SET message = 'after'")
    spoiled.commit()
    spoiled.close()
    before = (state / "relay.db").read_bytes()
    done = put_back(state, saved)
    assert done.aside.read_bytes() == before
    assert done.epoch_floor == 77 + EPOCHS_APART
    assert rows(state / "relay.db") == [("run-1", "queued", 1), ("run-2", "completed", 1)]
    key = "SELECT value FROM meta WHERE key = 'generation'"
    assert rows(state / "relay.db", key) != rows(saved, key)
    assert not list(state.glob(".relay.db*"))
    assert [path.name for path in state.glob("relay.db*") if path.name.endswith(("-shm", "-wal"))] == []


@pytest.mark.parametrize("kind", ["garbage", "empty", "telemetry", "newer", "damaged", "missing", "folder"])
def test_what_is_no_backup_changes_nothing(state: Path, tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source"
    if kind == "folder":
        source.mkdir()
    elif kind == "telemetry":
        shutil.copy(state / "telemetry.db", source)
    elif kind in ("newer", "damaged"):
        shutil.copy(state / "relay.db", source)
        db = sqlite3.connect(source)
        db.execute("PRAGMA user_version = 99" if kind == "newer" else "UPDATE leases SET state = 'odd'")
        db.commit()
        db.close()
    elif kind != "missing":
        source.write_bytes(b"" if kind == "empty" else b"garbage " * 999)
    before = {path.name: path.read_bytes() for path in state.iterdir() if path.is_file()}
    with pytest.raises(RelayError) as caught:
        put_back(state, source)
    assert caught.value.exit_code == Exit.STATE
    assert str(source) in str(caught.value)
    assert "relay-tui restore" not in caught.value.hint, "that is what they did"
    assert "--state" not in caught.value.hint
    if kind == "newer":
        assert "upgrade" in caught.value.hint
    else:
        assert "nothing has changed; name another backup (`relay-tui backup` makes them)" in caught.value.hint
    assert {path.name: path.read_bytes() for path in state.iterdir() if path.is_file()} == before
    if kind != "newer":
        back_up(state, AT)
        with pytest.raises(RelayError, match="source") as caught:
            put_back(state, source)
        assert str(backups(state)[0]) in caught.value.hint


def test_a_damaged_state_is_restored_all_the_same(state: Path) -> None:
    saved = back_up(state, AT)
    for content in (b"garbage " * 1_000, b"", None):
        (state / "relay.db").unlink()
        if content is not None:
            (state / "relay.db").write_bytes(content)
        put_back(state, saved)
        assert rows(state / "relay.db") == [("run-1", "queued", 1), ("run-2", "completed", 1)]


async def test_a_log_that_was_left_is_not_taken_for_the_new_ones(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running(state) as kit:
        await (await kit.agent()).acquire("run-1")
        saved = back_up(state, AT)
        await (await kit.agent("two")).acquire("run-2")
        copy = tmp_path / "killed"  # as kill -9 leaves it: with its log
        shutil.copytree(state, copy)
    assert (copy / "relay.db-wal").stat().st_size > 0
    (copy / "commander.json").unlink()
    done = put_back(copy, copy / "backups" / saved.name)
    assert rows(copy / "relay.db") == [("run-1", "queued", 1)]
    assert rows(done.aside)[1][0] == "run-2", "what was set aside has its log beside it"


def asked(state: Path, command: str) -> tuple[int, str]:
    done = relay(command, "--state", state)
    return done.returncode, done.stdout + done.stderr


async def test_nobody_else_is_granted_before_holders_could_come_back(state: Path) -> None:
    saved = back_up(state, AT)
    clock = FakeClock()
    # After the backup: run-1 goes to another, and comes to epoch 3.
    async with running(state, clock) as kit:
        holder = await kit.agent("pod", "one")
        again = await holder.acquire("run-1", request_id="q")
        assert (again["type"], again["epoch"]) == ("granted", 1)
    put_back(state, saved)
    async with running(state, clock) as kit:
        assert (await kit.run("run-1"))["status"] == "queued"
        waiting = await kit.agent("waiting")
        denied = await waiting.acquire("run-1")
        assert (denied["code"], denied.get("final", False)) == ("recovering", False)
        assert 0 < denied["retry_after"] <= 5
        for body in ((await kit.get("/api/whoami"))[1], (await kit.get("/api/runs"))[1]):
            assert body["no_grants_until"] - body["now"] == pytest.approx(300, abs=1)
        status, out = await asyncio.to_thread(asked, state, "status")
        assert (status, "restored: no new grants for another 300 s" in out) == (0, True), out
        assert "restored: no new grants" in (await asyncio.to_thread(asked, state, "runs"))[1]
        assert (await waiting.acquire("run-new"))["code"] == "recovering"
        # Who held it goes on in its epoch.
        back = await kit.agent("pod", "one")
        back.run_id, back.epoch, back.token = "run-1", 1, again["token"]
        assert (await back.renew())["type"] == "renewed"
        row = await kit.run("run-1")
        assert (row["status"], row["holder"], row["epoch"]) == ("running", "pod", 1)
        # A restart meanwhile takes nothing of the time away.
        await kit.pass_time(clock, 200)
    async with running(state, clock) as kit:
        waiting = await kit.agent("waiting")
        assert (await waiting.acquire("run-new"))["code"] == "recovering"
        await kit.pass_time(clock, 302)
        granted = await waiting.acquire("run-new")
        assert granted["epoch"] == 1 + EPOCHS_APART + 1
        assert (await kit.get("/api/whoami"))[1]["no_grants_until"] is None
        # A holder that was granted after the backup and comes too late finds that it is.
        late = await kit.agent("late")
        late.run_id, late.epoch, late.token = "run-new", 3, "f" * 64
        assert (await late.renew())["code"] == "superseded"
        # The floor holds for overrides too, and is no bar for what lies on the volume.
        status, body = await kit.force("run-2", 1)
        assert (status, body["error"]["code"]) == (409, "ended")
        assert (await kit.requeue("run-2", 1))[0] == 200
        assert (await kit.force("run-2", 1))[1]["epoch"] == EPOCHS_APART + 2
    async with running(state, clock) as kit:
        granted = await (await kit.agent("waiting")).acquire("run-3", highest_epoch=EPOCHS_APART + 50)
        assert (granted["type"], granted["epoch"]) == ("granted", EPOCHS_APART + 51), "the wait is over for good"


async def test_who_was_granted_a_run_after_the_backup_is_its_holder(state: Path) -> None:
    saved, clock = back_up(state, AT), FakeClock()
    async with running(state, clock) as kit:
        before = await kit.agent("pod", "one")
        first = await before.acquire("run-1", request_id="q")
        await kit.force("run-1", 1, pod_gone=True)
        after = await kit.agent("after")
        second = await after.acquire("run-1")
        assert (first["epoch"], second["epoch"]) == (1, 3)
    put_back(state, saved)
    async with running(state, clock) as kit:
        after = await kit.agent("after")
        after.run_id, after.epoch, after.token = "run-1", 3, second["token"]
        assert (await after.renew())["code"] == "unknown"
        await after.say(type="register", request=9, run_id="run-1", epoch=3, token=second["token"], mode="sft")
        assert (await after.hear())["type"] == "renewed"
        row = await kit.run("run-1")
        assert (row["holder"], row["epoch"]) == ("after", 3)
        # The one from before the backup wakes up, and finds that it lost the run long ago.
        before = await kit.agent("pod", "one")
        before.run_id, before.epoch, before.token = "run-1", 1, first["token"]
        assert (await before.renew())["code"] == "superseded"
        assert (await kit.run("run-1"))["holder"] == "after"


async def granted_after_a_backup(state: Path, clock: FakeClock) -> tuple[Path, tuple[str, str]]:
    """The backup that knows of epoch 1 alone, and the tokens of the holders of epochs 1 and 3."""
    saved = back_up(state, AT)
    async with running(state, clock) as kit:
        first = await (await kit.agent("pod", "one")).acquire("run-1", request_id="q")
        await kit.force("run-1", 1, pod_gone=True)
        second = await (await kit.agent("after")).acquire("run-1")
        assert (first["epoch"], second["epoch"]) == (1, 3)
    return saved, (first["token"], second["token"])


async def come_back(kit: Kit, name: str, epoch: int, token: str, incarnation: str | None = None) -> Agent:
    agent = await kit.agent(name, incarnation)
    agent.run_id, agent.epoch, agent.token = "run-1", epoch, token
    return agent


async def register(agent: Agent, **other: Any) -> dict[str, Any]:
    lease = {"run_id": agent.run_id, "epoch": agent.epoch, "token": agent.token, "mode": "sft"} | other
    await agent.say(type="register", request=9, **lease)
    return await agent.hear()


async def test_the_later_holder_has_the_run_whoever_is_heard_of_first(state: Path) -> None:
    clock = FakeClock()
    saved, tokens = await granted_after_a_backup(state, clock)
    put_back(state, saved)
    async with running(state, clock) as kit:
        before = await come_back(kit, "pod", 1, tokens[0], "one")
        assert (await before.renew())["type"] == "renewed"  # for all that these books say
        await before.state(published(900), first_seq=3)
        assert (await kit.drain("run-1", 1))[0] == 200
        after = await come_back(kit, "after", 3, tokens[1])
        # Only what a commander with this key granted counts against a holder: anybody could make up an epoch.
        for other in ({"token": "a" * 64}, {"epoch": 4}, {"token": tokens[1][::-1]}, {"token": tokens[1].upper()}):
            assert (await register(after, **other))["code"] == "superseded", other
        assert (await kit.run("run-1"))["holder"] == "pod"
        assert (await register(after))["type"] == "renewed"
        row = await kit.run("run-1")
        assert (row["holder"], row["epoch"], row["status"]) == ("after", 3, "leased")
        await after.state(started(500), published(700))
        # What the other one says is history now, and it hears so.
        assert (await before.hear("order"))["kind"] == "drain"
        assert (await before.renew())["code"] == "superseded"
        await before.state(published(950), ended("completed", 950, exit_code=0), first_seq=4)
        row = await kit.run("run-1")
        assert (row["holder"], row["status"], row["newest_checkpoint"]) == ("after", "running", "step_00000700")
        assert [attempt.get("outcome") for attempt in await kit.attempts("run-1")] == ["superseded", None]
        events = [event for event in await kit.events("run-1") if event["kind"] == "lease.registered"]
        assert "pod" in events[0]["message"]
        # The next one goes on in the line of the later, whatever was told of the earlier since.
        await after.state(ended("preempted", 710))
        granted = await (await kit.agent("next")).acquire("run-1")
    async with running(state, clock) as kit:
        await kit.pass_time(clock, 302)
        granted = await (await kit.agent("next")).acquire("run-1")
        assert (granted["epoch"], granted["newest"]["step"]) == (3 + EPOCHS_APART + 1, 700)


@pytest.mark.parametrize("outcome", ["completed", "failed", "preempted"])
async def test_how_an_earlier_one_ended_is_not_how_the_later_one_does(state: Path, outcome: str) -> None:
    """It was queued again after the backup, or another was granted, as otherwise there were no later one."""
    clock = FakeClock()
    saved, tokens = await granted_after_a_backup(state, clock)
    put_back(state, saved)
    async with running(state, clock) as kit:
        before = await come_back(kit, "pod", 1, tokens[0], "one")
        await before.state(ended(outcome, 900), first_seq=3)
        after = await come_back(kit, "after", 3, tokens[1])
        assert (await register(after, token="a" * 64))["code"] == (
            "recovering" if outcome == "preempted" else "released"
        )
        assert (await register(after))["type"] == "renewed"
        row = await kit.run("run-1")
        assert (row["holder"], row["epoch"], row["status"]) == ("after", 3, "leased")
        assert [attempt.get("outcome") for attempt in await kit.attempts("run-1")] == [outcome, None]


@pytest.mark.parametrize("made_here", [True, False])
async def test_a_made_up_lease_shuts_no_true_holder_out(state: Path, made_here: bool) -> None:
    """Whether the key is as old as the books or older."""
    clock = FakeClock()
    if made_here:
        shutil.rmtree(state)
        state.mkdir(mode=0o700)
        async with running(state, clock) as kit:
            agent = await kit.agent("pod", "one")
            await agent.acquire("run-1", request_id="q")
            await agent.state(started(), published(5))
    saved, tokens = await granted_after_a_backup(state, clock)
    floor = put_back(state, saved).epoch_floor
    async with running(state, clock) as kit:
        forger = await kit.agent("forger")
        for run_id, epoch in (("run-1", floor + 500_000), ("run-1", 2), ("run-9", 1)):
            forger.run_id, forger.epoch, forger.token = run_id, epoch, "a" * 64
            assert (await register(forger))["code"] == "recovering"
        # A token proves the one lease it was made for.
        assert (await register(forger, run_id="run-9", epoch=3, token=tokens[1]))["code"] == "recovering"
        after = await come_back(kit, "after", 3, tokens[1])
        assert (await register(after))["type"] == "renewed"
        assert (await after.renew())["type"] == "renewed"
        assert (await kit.run("run-1"))["holder"] == "after"
        # And once the wait is over, what this key granted is proven, and the rest is made up.
        await kit.pass_time(clock, 302)
        assert (await register(forger, run_id="run-9", epoch=1))["code"] == "unknown"
        assert (await kit.get("/api/runs/run-9"))[0] == 404


def original(kit: Kit, run_id: str, worker: str = "old", **more: Any) -> Any:
    return kit.post("/api/lease/acquire", {"worker_id": worker, "run_id": run_id, "mode": "sft"} | more, role="worker")


async def test_an_original_worker_that_is_denied_has_changed_nothing(state: Path) -> None:
    """While holders may come back, nobody is granted a run: not by force, and not one that had ended."""
    clock = FakeClock()
    saved, tokens = await granted_after_a_backup(state, clock)
    put_back(state, saved)
    async with running(state, clock) as kit:

        def everything(tx: Any) -> list[Any]:
            tables = ("runs", "leases", "attempts", "events", "orders", "workers", "meta")
            return [tx.execute(f"SELECT * FROM {table}").fetchall() for table in tables]

        relay = kit.commander.core.relay
        before = await relay.run(everything)
        for run_id, force in (("run-1", True), ("run-2", False), ("run-2", True), ("run-1", False)):
            status, answer = await original(kit, run_id, force=force)
            assert (status, answer["status"]) == (200, "denied")
            assert await relay.run(everything) == before
            assert ((await kit.run("run-1"))["epoch"], (await kit.run("run-2"))["status"]) == (1, "completed")
        holder = await come_back(kit, "pod", 1, tokens[0], "one")
        assert (await holder.renew())["type"] == "renewed"


@pytest.mark.parametrize("when", ["nobody came back", "the earlier one came back", "the earlier one was forced"])
async def test_what_an_operator_says_after_a_restore_stands(state: Path, when: str) -> None:
    clock = FakeClock()
    saved, tokens = await granted_after_a_backup(state, clock)
    put_back(state, saved)
    async with running(state, clock) as kit:
        before = await come_back(kit, "pod", 1, tokens[0], "one")
        if when != "nobody came back":
            assert (await before.renew())["type"] == "renewed"
        epoch = 1
        if when == "the earlier one was forced":
            epoch = (await kit.force("run-1", 1))[1]["epoch"]
        assert (await kit.post("/api/runs/run-1/cancel", {"expected_epoch": epoch, "why": "no money"}))[0] == 200
        after = await come_back(kit, "after", 3, tokens[1])
        assert (await register(after))["type"] == "refused"
        row = await kit.run("run-1")
        holder = "pod" if when == "the earlier one was forced" else None  # and is not done with stopping
        assert (row["status"], row.get("holder")) == ("cancelled", holder)


async def test_a_cancel_that_the_backup_holds_open_counts_whoever_is_heard_of_first(state: Path) -> None:
    clock = FakeClock()
    async with running(state, clock) as kit:
        before = await come_back(kit, "pod", 1, "", "one")
        tokens = [(await before.acquire("run-1", request_id="q"))["token"]]
        assert (await kit.post("/api/runs/run-1/cancel", {"expected_epoch": 1, "why": "test"}))[0] == 200
    saved = back_up(state, AT)
    async with running(state, clock) as kit:
        await kit.force("run-1", 1, pod_gone=True)
        assert (await kit.requeue("run-1", 2))[0] == 200
        tokens.append((await (await kit.agent("after")).acquire("run-1"))["token"])
    for heard_first in (True, False):
        put_back(state, saved)
        async with running(state, clock) as kit:
            if heard_first:
                before = await come_back(kit, "pod", 1, tokens[0], "one")
                assert (await before.renew())["type"] == "renewed"
            after = await come_back(kit, "after", 3, tokens[1])
            assert (await register(after))["code"] == "released"
            assert (await kit.run("run-1"))["status"] == "cancelled"


async def test_the_latest_of_several_later_holders_has_the_run(state: Path) -> None:
    """And one who was told to stop before the backup is waited for no longer: the later ones waited for it."""
    clock = FakeClock()
    async with running(state, clock) as kit:
        before = await come_back(kit, "pod", 1, "", "one")
        tokens = {1: (await before.acquire("run-1", request_id="q"))["token"]}
        assert (await kit.force("run-1", 1))[0] == 200
    saved = back_up(state, AT)
    async with running(state, clock) as kit:
        before = await come_back(kit, "pod", 1, tokens[1], "one")
        await before.state(ended("superseded", 7), first_seq=3)
        epoch = 2
        while epoch < 6:
            granted = await (await kit.agent(f"after-{epoch}")).acquire("run-1")
            tokens[granted["epoch"]] = granted["token"]
            epoch = (await kit.force("run-1", granted["epoch"], pod_gone=True))[1]["epoch"]
    put_back(state, saved)
    async with running(state, clock) as kit:
        third = await come_back(kit, "third", 3, tokens[3])
        fifth = await come_back(kit, "fifth", 5, tokens[5])
        assert (await register(third))["type"] == "renewed"
        assert [row["outcome"] for row in await kit.attempts("run-1") if row["epoch"] == 1] == ["superseded"]
        assert (await register(fifth))["type"] == "renewed"
        assert (await third.renew())["code"] == (await register(third))["code"] == "superseded"
        assert ((await kit.run("run-1"))["holder"], (await fifth.renew())["type"]) == ("fifth", "renewed")


# -- killed on the way ---------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As kill -9: no handler of ours may make a difference."""


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, number: int, when: str) -> Iterator[list[str]]:
    """Dies at the `number`-th call that changes the disk, before or after it is carried out. What was called."""
    calls: list[str] = []

    def dying(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if calls and calls[-1] == "killed":
                raise Killed  # nothing of what comes after, `finally` included, reaches the disk
            calls.append(name)
            if len(calls) - 1 == number:
                if when == "after":
                    with suppress(OSError):
                        real(*args, **more)
                calls.append("killed")
                raise Killed
            return real(*args, **more)

        return call

    with monkeypatch.context() as patch:
        for owner, name in ((Path, "rename"), (Path, "unlink"), (os, "fsync"), (os, "open"), (Path, "mkdir")):
            patch.setattr(owner, name, dying(name, getattr(owner, name)))
        yield calls


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_restore_killed_at_any_step_is_old_or_new(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    saved = back_up(state, AT)
    db = sqlite3.connect(state / "relay.db")
    db.execute("UPDATE runs SET message = 'old'")
    db.commit()
    db.close()
    old = [("old",), ("old",)]
    seen: list[str] = []
    for number in range(200):
        copy = Path(shutil.copytree(state, tmp_path / f"{when}-{number}"))
        (copy / "relay.db-journal").write_bytes(b"")  # what is beside it moves along
        folder = StateFolder(copy, keyless=True)
        with killed_at(monkeypatch, number, when) as calls:
            try:
                restore(copy, copy / "backups" / saved.name, AT)
                died = False
            except Killed:
                died = True
        folder.close()
        # Whoever opens the folder next finds one or the other, and never both or neither.
        StateFolder(copy).close()
        found = rows(copy / "relay.db", "SELECT message FROM runs ORDER BY run_id")
        seen.append("old" if found == old else "new")
        assert rows(copy / "relay.db", "PRAGMA integrity_check") == [("ok",)]
        kept = list(copy.glob("relay.db.replaced-*Z"))
        assert len(kept) == (seen[-1] == "new")
        if kept:
            assert rows(kept[0], "SELECT message FROM runs ORDER BY run_id") == old
        assert not list(copy.glob("relay.db.restoring-*"))
        assert finish(copy) is None
        if not died:
            break
    assert seen == sorted(seen, reverse=True), "old up to one step, new from there on"
    assert seen[0] == "old"
    assert seen[-1] == "new"
    assert seen.count("new") > 5
    assert len(calls) > 12


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_backup_killed_at_any_step_is_whole_or_not_there(
    state: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    died = True
    for number in range(100):
        with killed_at(monkeypatch, number, when):
            try:
                back_up(state, AT + number)
                died = False
            except Killed:
                pass
        for path in backups(state):
            assert rows(path) == [("run-1", "running", 1), ("run-2", "completed", 1)]
        if not died:
            break
    assert not died
    assert number > 3
    # What a killed one left behind goes, in time.
    parts = list((state / "backups").glob(".*.part"))
    for part in parts:
        os.utime(part, (1.0, 1.0))
    back_up(state, time.time())
    assert not list((state / "backups").glob(".*.part"))


# -- from the shell ------------------------------------------------------------------------------------------------


def relay(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    return subprocess.run([RELAY, *arguments], capture_output=True, text=True, timeout=60, check=False, env=kept)


async def events_of(state: Path) -> str:
    async with running(state):
        return (await asyncio.to_thread(relay, "events", "--json", "--state", state)).stdout


async def test_the_commands_say_it_to_programs_too(state: Path, tmp_path: Path) -> None:
    before = time.time()
    done = await asyncio.to_thread(relay, "backup", "--json", "--state", state)
    said = json.loads(done.stdout)
    assert said.keys() == {"path", "bytes", "at", "seconds", "verified"}
    made = backups(state)[0]
    assert (said["path"], said["bytes"], said["verified"]) == (str(made), made.stat().st_size, True)
    assert before <= said["at"] <= time.time()
    assert said["seconds"] >= 0
    done = await asyncio.to_thread(relay, "restore", made, "--json", "--state", state)
    said = json.loads(done.stdout)
    assert said.keys() == {"path", "at", "replaced", "epoch_floor"}
    assert said["path"] == str(made)
    assert Path(said["replaced"]).name.startswith("relay.db.replaced-")
    assert said["epoch_floor"] > 0
    assert done.stderr == ""
    missing = await asyncio.to_thread(relay, "backup", "--json", "--state", state, "--to", made)
    assert (missing.returncode, missing.stdout) == (Exit.USAGE, "")


async def test_the_commands(state: Path, tmp_path: Path) -> None:
    done = await asyncio.to_thread(relay, "backup", "--state", state)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == backups(state)[0]
    done = await asyncio.to_thread(relay, "backup", "--state", state, "--to", tmp_path / "mine.db")
    assert done.stdout.strip() == str(tmp_path / "mine.db")
    async with running(state):
        refused = await asyncio.to_thread(relay, "restore", tmp_path / "mine.db", "--state", state)
        assert refused.returncode == Exit.STATE
        assert "belongs to a commander" in refused.stderr
        assert refused.stderr.count("\n") == 1
    done = await asyncio.to_thread(relay, "restore", tmp_path / "mine.db", "--state", state)
    assert done.returncode == 0, done.stderr
    assert "replaced" in done.stderr
    assert done.stdout == ""
    who = [event for event in json.loads(await events_of(state))["events"] if event["kind"] == "commander.restored"]
    assert [event["actor"] for event in who] == [whoami_here()], "as of every act of an operator"
    (tmp_path / "a file").write_bytes(b"")
    for arguments, words in (
        (("restore", tmp_path / "nothing"), "is not there"),
        (("restore", tmp_path), "is a folder"),
        (("backup", "--to", tmp_path / "mine.db"), "is there already"),
        (("backup", "--to", tmp_path), "is there already"),
        (("backup", "--to", tmp_path / "no folder" / "mine.db"), "no folder"),
        (("backup", "--to", tmp_path / "a file" / "mine.db"), "no folder"),
    ):
        refused = await asyncio.to_thread(relay, *arguments, "--state", state)
        assert refused.returncode == Exit.USAGE, "it is what was asked for that cannot be"
        assert words in refused.stderr
        assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["relay.db", "telemetry.db"])
def test_the_state_is_no_backup_of_itself(state: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to(state / name)
    before = (state / name).read_bytes()
    for source in (state / name, tmp_path / "link"):
        with pytest.raises(RelayError, match="is the state itself") as caught:
            put_back(state, source)
        assert "relay-tui backup" in caught.value.hint
    assert (state / name).read_bytes() == before
    assert sorted(state.glob("relay.db.replaced-*")) == []
