"""After a restore: who held a run comes back first, and nobody trains it twice."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from backup_kit import AT, a_state, asked, put_back
from commander_kit import Agent, FakeClock, Kit, ended, published, running, started

from relaytui.commander.store.backup import back_up
from relaytui.commander.store.restore import EPOCHS_APART


@pytest.fixture
def state(tmp_path: Path) -> Path:
    asyncio.run(a_state(tmp_path / "state"))
    return tmp_path / "state"


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
