"""Who may train a run: one holder, epochs that only grow, and ways to take a run over that are safe."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import WSMsgType
from backup_kit import asked
from commander_kit import DEADLINE, Agent, FakeClock, Kit, ended, published, running, started, step, until
from msgspec.structs import replace

from relaytui.commander.http.outbox import Outbox
from relaytui.commander.http.ws_agent import REPLACED
from relaytui.commander.model.lease import LeaseState
from relaytui.commander.store import runs
from relaytui.wire.ids import shown
from relaytui.wire.status import Gone, WorkerStatus


async def test_a_grant_carries_what_the_agent_needs(kit: Kit) -> None:
    agent = await kit.agent()
    granted = await agent.acquire("run-1")
    assert granted["epoch"] == 1
    assert len(granted["token"]) == 64
    assert granted["lease_seconds"] == 300
    assert granted["config"]["run_id"] == "run-1"
    assert granted["config"]["ckpt_keep_last_n"] == 3
    row = await kit.run("run-1")
    assert (row["status"], row["holder"], row["epoch"]) == ("leased", "pod", 1)
    assert row["lease_expires_at"] == pytest.approx(1_800_000_300.0)
    assert await kit.kinds("run-1") == ["run.created", "lease.granted"]


async def test_a_retry_of_a_lost_answer_gets_the_same_grant(kit: Kit) -> None:
    agent = await kit.agent(incarnation="one")
    first = await agent.acquire("run-1", request_id="same")
    await agent.close()
    agent = await kit.agent(incarnation="one")
    again = await agent.acquire("run-1", request_id="same")
    assert (again["epoch"], again["token"]) == (first["epoch"], first["token"])
    assert await kit.kinds("run-1") == ["run.created", "lease.granted"]


async def test_one_incarnation_that_asks_anew_gives_up_what_it_held(kit: Kit) -> None:
    agent = await kit.agent()
    first = await agent.acquire("run-1", request_id="a")
    second = await agent.acquire("run-1", request_id="b")
    assert second["epoch"] == 2
    assert second["token"] != first["token"]
    old = await agent.renew(epoch=1, token=first["token"])
    assert (old["type"], old["code"]) == ("refused", "superseded")
    assert [row.get("outcome") for row in await kit.attempts("run-1")] == ["superseded", None]


async def test_a_lease_is_per_run_and_names_are_labels(kit: Kit) -> None:
    first, second = await kit.agent("pod", "one"), await kit.agent("pod", "two")
    assert (await first.acquire("run-1"))["type"] == "granted"
    denied = await second.acquire("run-1")
    assert (denied["type"], denied["code"]) == ("denied", "held")
    assert not denied.get("final", False)
    assert 0 < denied["retry_after"] <= 5
    assert (await second.acquire("run-2"))["type"] == "granted"


async def test_only_one_of_many_at_once_is_granted(kit: Kit) -> None:
    agents = [await kit.agent(f"pod-{n}") for n in range(12)]
    answers = await asyncio.gather(*(agent.acquire("run-1") for agent in agents))
    assert sorted(answer["type"] for answer in answers) == ["denied"] * 11 + ["granted"]


async def test_the_grant_is_above_every_claim_on_the_volume(kit: Kit) -> None:
    agent = await kit.agent()
    assert (await agent.acquire("run-1", highest_epoch=41))["epoch"] == 42
    absurd = await (await kit.agent("other")).acquire("run-2", highest_epoch=2**50)
    assert (absurd["type"], absurd["code"], absurd["final"]) == ("denied", "epoch", True)
    assert (await kit.get("/api/runs/run-2"))[0] == 404


async def test_a_run_keeps_its_mode(kit: Kit) -> None:
    await (await kit.agent("one")).acquire("run-1", mode="sft")
    denied = await (await kit.agent("two")).acquire("run-1", mode="rl")
    assert (denied["code"], denied["final"]) == ("mode", True)


async def test_an_ended_run_is_not_granted_again(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started(), ended("completed", 10, exit_code=0))
    denied = await agent.acquire("run-1")
    assert (denied["code"], denied["final"]) == ("ended", True)


@pytest.mark.parametrize("outcome", ["preempted", "drained", "superseded"])
async def test_a_release_frees_the_run_at_once(kit: Kit, outcome: str) -> None:
    agent = await kit.agent("one")
    await agent.acquire("run-1")
    await agent.state(started(), published(5), ended(outcome, 7))
    row = await kit.run("run-1")
    assert row["status"] == "queued"
    assert "holder" not in row
    granted = await (await kit.agent("two")).acquire("run-1")
    assert granted["epoch"] == 2
    assert granted["newest"] == {"name": "step_00000005", "step": 5, "epoch": 1, "manifest": "ab" * 32}
    refused = await agent.renew()
    assert refused["code"] == "superseded"


async def test_a_renewal_extends_and_only_for_its_holder(kit: Kit, clock: FakeClock) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await kit.pass_time(clock, 200)
    assert (await agent.renew())["type"] == "renewed"
    await kit.pass_time(clock, 200)
    assert (await kit.run("run-1"))["status"] == "leased"
    assert (await agent.renew(token="x" * 64))["code"] == "not_holder"
    assert (await agent.renew(epoch=9))["code"] == "unknown"
    assert (await agent.renew(run_id="other"))["code"] == "unknown"
    await agent.state(started(), ended("failed", 3, exit_code=1))
    assert (await agent.renew())["code"] == "released"


async def test_silence_loses_the_run_and_the_next_one_gets_it(kit: Kit, clock: FakeClock) -> None:
    agent = await kit.agent("silent")
    await agent.acquire("run-1")
    await agent.state(started(5))
    await kit.pass_time(clock, 298)
    assert (await kit.run("run-1"))["status"] == "running"
    await kit.pass_time(clock, 4)
    row = await kit.run("run-1")
    assert row["status"] == "queued"
    assert "lost" in row["message"]
    assert "silent" in row["message"]
    assert (await kit.events("run-1"))[-1]["kind"] == "run.lost"
    assert (await (await kit.agent("next")).acquire("run-1"))["epoch"] == 2
    assert (await agent.renew())["code"] == "superseded"
    assert [row.get("outcome") for row in await kit.attempts("run-1")] == ["lost", None]


async def test_a_holder_that_comes_back_before_others_goes_on_in_its_epoch(kit: Kit, clock: FakeClock) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started())
    await kit.pass_time(clock, 400)
    assert (await kit.run("run-1"))["status"] == "queued"
    assert (await agent.renew())["type"] == "renewed"
    row = await kit.run("run-1")
    assert (row["status"], row["epoch"], row["holder"]) == ("running", 1, "pod")
    assert "lease.revived" in await kit.kinds("run-1")
    assert [row.get("outcome") for row in await kit.attempts("run-1")] == [None]


async def test_reports_after_an_expiry_revive_too_and_nothing_of_them_is_lost(kit: Kit, clock: FakeClock) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started())
    await kit.pass_time(clock, 400)
    await agent.state(published(50), ended("completed", 60, exit_code=0))
    row = await kit.run("run-1")
    assert (row["status"], row["newest_checkpoint"], row["step"]) == ("completed", "step_00000050", 60)


async def test_wall_clock_steps_change_no_lease(kit: Kit, clock: FakeClock) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    for jump in (7_200.0, -14_400.0):
        clock.step_wall(jump)
        await kit.pass_time(clock, 4)
        assert (await kit.run("run-1"))["status"] == "leased"


async def test_a_commander_that_slept_gives_holders_time_to_come_back(kit: Kit, clock: FakeClock) -> None:
    agent, other = await kit.agent("holder"), await kit.agent("other")
    await agent.acquire("run-1")
    clock.advance(8 * 3_600)  # the laptop's lid was closed
    assert (await other.acquire("run-1"))["code"] == "held"
    await kit.commander.core.leases.sweep()
    await kit.pass_time(clock, 80)
    assert (await agent.renew())["type"] == "renewed"
    # A holder that does not come back loses it after the window.
    clock.advance(8 * 3_600)
    await kit.commander.core.leases.sweep()
    await kit.pass_time(clock, 92)
    assert (await other.acquire("run-1"))["type"] == "granted"


# -- restart -----------------------------------------------------------------------------------------------------


async def test_a_restart_never_shortens_a_lease(tmp_path: Path, clock: FakeClock) -> None:
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent(incarnation="one")
        granted = await agent.acquire("run-1", request_id="q")
        await agent.state(started(3))
        await agent.tell(step(4, 10, loss=2.0))
        generation = kit.commander.generation
    clock.advance(290)
    async with running(tmp_path / "state", clock) as kit:
        assert kit.commander.generation == generation
        row = await kit.run("run-1")
        assert (row["status"], row["holder"], row["step"], row["loss"]) == ("running", "pod", 4, 2.0)
        await kit.pass_time(clock, 88)  # 10 s were left; the window gives 90
        assert (await kit.run("run-1"))["status"] == "running"
        agent = await kit.agent(incarnation="one")
        again = await agent.acquire("run-1", request_id="q")
        assert (again["epoch"], again["token"]) == (1, granted["token"])
        await kit.pass_time(clock, 298)
        assert (await kit.run("run-1"))["status"] == "running"


async def test_a_restart_on_another_boot_gives_the_full_length(tmp_path: Path, clock: FakeClock) -> None:
    async with running(tmp_path / "state", clock) as kit:
        await (await kit.agent()).acquire("run-1")
    clock.reboot("boot-2")
    async with running(tmp_path / "state", clock) as kit:
        await kit.pass_time(clock, 298)
        assert (await kit.run("run-1"))["status"] == "leased"
        await kit.pass_time(clock, 4)
        assert (await kit.run("run-1"))["status"] == "queued"


async def test_a_crash_loop_keeps_no_dead_holder_alive_for_ever(tmp_path: Path, clock: FakeClock) -> None:
    async with running(tmp_path / "state", clock) as kit:
        await (await kit.agent()).acquire("run-1")
    survived = 0.0
    for _ in range(40):
        clock.advance(60)
        survived += 60
        async with running(tmp_path / "state", clock) as kit:
            await kit.commander.core.leases.sweep()
            if (await kit.run("run-1"))["status"] == "queued":
                break
    assert 300 <= survived <= 300 + 5 * 90


async def test_epochs_survive_and_waiting_agents_are_seen(tmp_path: Path, clock: FakeClock) -> None:
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent("one")
        for expected in (1, 2, 3):
            assert (await agent.acquire("run-1"))["epoch"] == expected
            await agent.state(started(), ended("preempted"))
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent("one")
        assert (await agent.acquire("run-1"))["epoch"] == 4
        waiting = await kit.agent("two")
        await waiting.acquire("run-1")
        rows = {row["worker"]: row for row in (await kit.get("/api/workers"))[1]["workers"]}
        assert (rows["one"]["status"], rows["one"]["run_id"]) == ("busy", "run-1")
        assert (rows["two"]["status"], rows["two"]["waiting_for"]) == ("idle", "run-1")


# -- an ended run ------------------------------------------------------------------------------------------------


async def test_a_run_that_ended_waits_again_on_an_operators_word(kit: Kit) -> None:
    agent = await kit.agent("old")
    await agent.acquire("run-1")
    assert (await kit.requeue("run-1", 1))[1]["error"]["code"] == "not_ended"
    await agent.state({"type": "ended", "t": 1.0, "outcome": "failed", "exit_code": 7, "step": 5})
    denied = await (await kit.agent("new")).acquire("run-1")
    assert (denied["code"], denied["final"]) == ("ended", True)
    assert denied["reason"] == "run run-1 is failed: `relay-tui requeue run-1` queues it again"
    assert (await kit.requeue("run-1", 0))[1]["error"]["code"] == "epoch_changed"
    status, body = await kit.requeue("run-1", 1)
    assert (status, body["run"]["status"]) == (200, "queued")
    granted = await (await kit.agent("new")).acquire("run-1")
    assert (granted["type"], granted["epoch"]) == ("granted", 2)
    requeued = next(event for event in await kit.events("run-1") if event["kind"] == "run.requeued")
    assert (requeued["message"], requeued["data"]) == ("test", {"was": "failed"})


@pytest.mark.parametrize("outcome", ["completed", "cancelled", "failed"])
async def test_every_ending_can_be_queued_again_and_says_who_did_it(kit: Kit, outcome: str) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started(), published(5), ended(outcome, 7))
    path, body = "/api/runs/run-1/requeue", {"expected_epoch": 1, "why": "more steps"}
    status, answer = await kit.post(path, body, headers={"X-Relay-Actor": "ada"})
    assert (status, answer["run"]["status"], answer["run"]["epoch"]) == (200, "queued", 1)
    assert "holder" not in answer["run"]
    event = (await kit.events("run-1"))[-1]
    assert (event["kind"], event["actor"], event["message"]) == ("run.requeued", "ada", "more steps")
    # Said twice, it is no longer so; and the attempt that ended cannot come back under its old epoch.
    assert (await kit.post(path, body))[1]["error"]["code"] == "not_ended"
    assert (await agent.renew())["type"] == "refused"
    await agent.state(started())
    assert (await kit.run("run-1"))["status"] == "queued"
    granted = await (await kit.agent("next")).acquire("run-1")
    assert (granted["epoch"], granted["newest"]["name"]) == (2, "step_00000005")


async def test_an_unknown_run_is_not_queued_again(kit: Kit) -> None:
    assert (await kit.requeue("nowhere", 1))[0] == 404
    path = "/api/runs/nowhere/requeue"
    assert (await kit.post(path, {"expected_epoch": 1}, role="worker"))[0] == 403
    assert (await kit.post(path, {"expected_epoch": "1"}))[0] == 422


async def test_a_row_of_the_same_name_that_holds_a_run_stays(kit: Kit) -> None:
    first = await kit.agent("pod", "one")
    await first.acquire("run-1")
    await first.close()
    await until(lambda: not kit.commander.core.workers.is_connected("one"))
    here = [await kit.agent("pod", "two"), await kit.agent("pod", "three")]
    rows = (await kit.get("/api/workers"))[1]["workers"]
    assert {row["incarnation"] for row in rows} == {shown("one"), shown("three"), shown("two")}
    assert len(rows) == 3
    assert not any(agent.ws.closed for agent in here)


async def test_an_agent_that_comes_back_is_one_row(kit: Kit) -> None:
    feed = await kit.feed()
    first = await kit.agent("pod", "one")
    await first.close()
    await feed.until(lambda m: m["type"] == "worker" and m["worker"]["status"] == "offline")
    await kit.agent("pod", "two")
    await feed.until(lambda m: m["type"] == "worker_gone" and m["incarnation"] == shown("one"))
    rows = (await kit.get("/api/workers"))[1]["workers"]
    assert [row["incarnation"] for row in rows] == [shown("two")]


LATE = {
    "acquire": {"request": 90, "run_id": "run-1", "request_id": "late", "mode": "sft"},
    "renew": {"request": 90},
    "register": {"request": 90, "run_id": "run-2", "epoch": 3, "token": "a" * 64, "mode": "sft"},
    "reports": {"stream": "state", "first_seq": 2, "reports": [{"t": 1.0} | ended("failed", 3, exit_code=1)]},
    "telemetry": {"type": "reports", "stream": "telemetry", "first_seq": 1, "reports": [{"t": 1.0} | step(9)]},
    "skip": {"stream": "state", "first_seq": 2, "last_seq": 9, "why": "lost"},
    "order_ack": {"order_id": 1, "accepted": False, "message": "no"},
}


@pytest.mark.parametrize("kind", LATE)
async def test_what_still_comes_in_on_a_socket_that_was_replaced_changes_nothing(
    kit: Kit, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """An agent connected again because the network held its first connection up, which lets go of it now."""
    may_close = asyncio.Event()
    flush = Outbox.flush

    async def slow_flush(box: Outbox) -> None:
        await may_close.wait()
        await flush(box)

    monkeypatch.setattr(Outbox, "flush", slow_flush)
    ws = await kit.session.ws_connect(
        kit.commander.url + "/ws/agent", headers=kit.headers("worker"), autoping=False, max_msg_size=1 << 20
    )
    older = Agent(ws, "pod", "one")
    await older.say(type="hello", protocol=1, worker="pod", incarnation="one")
    await older.hear("welcome")
    await older.acquire("run-1", request_id="first")
    await older.state(started())
    assert (await kit.drain("run-1", 1))[0] == 200
    assert (await older.hear())["order_id"] == LATE["order_ack"]["order_id"]
    await kit.agent("pod", "one")
    clock.advance(50)

    async def everything() -> object:
        core = kit.commander.core
        rows = await core.relay.run(lambda tx: (runs.everything(tx), runs.all_leases(tx)))
        await core.frames.run(lambda tx: None)
        return rows, await kit.run("run-1"), await kit.attempts("run-1"), await kit.events("run-1")

    before = await everything()
    await older.say(**{"type": kind, "run_id": "run-1", "epoch": 1, "token": older.token} | LATE[kind])
    await ws.ping()
    assert (await ws.receive(timeout=DEADLINE)).type is WSMsgType.PONG  # whatever came before it was taken
    assert await everything() == before
    may_close.set()
    closed = await ws.receive(timeout=DEADLINE)
    assert (closed.type, closed.data) == (WSMsgType.CLOSE, REPLACED)


async def test_runs_are_as_many_as_the_settings_say(tmp_path: Path) -> None:
    async with running(tmp_path / "state", FakeClock(), max_runs=2) as kit:
        agent = await kit.agent()
        assert [(await agent.acquire(f"run-{n}"))["type"] for n in range(2)] == ["granted", "granted"]
        answer = await agent.acquire("run-2")
        assert (answer["type"], answer["code"], answer["final"]) == ("denied", "full", True)
        assert "RELAY_MAX_RUNS" in answer["reason"]
        body = {"worker_id": "old", "run_id": "run-3"}
        status, said = await kit.post("/api/lease/acquire", body, role="worker")
        assert (status, said["status"]) == (200, "denied")
        assert len((await kit.get("/api/runs"))[1]["runs"]) == 2
        assert (await agent.acquire("run-1"))["type"] == "granted"  # those that are known go on


async def test_workers_that_come_and_go_under_new_names_are_forgotten_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relaytui.commander.services.workers.KEPT_OFFLINE", 5)
    async with running(tmp_path / "state") as kit:
        holder = await kit.agent("holder")
        await holder.acquire("run-1")
        for number in range(12):
            await (await kit.agent(f"w{number}")).close()
        await until(lambda: len(kit.commander.core.board.workers) < 12)
        assert (await holder.renew())["type"] == "renewed"


async def test_a_worker_that_is_offline_is_missing_only_where_nobody_knows_why(tmp_path: Path) -> None:
    def gone(kit: Kit) -> dict[str, Gone | None]:
        rows = kit.commander.core.board.worker_rows()
        return {row.worker: row.gone for row in rows if row.status is WorkerStatus.OFFLINE}

    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        for name, outcome in (("done", "completed"), ("drained", "drained"), ("retries", "crashed")):
            agent = await kit.agent(name)
            await agent.acquire(f"run-{name}")
            await agent.state(started(), ended(outcome, 9, exit_code=0))
            assert name not in gone(kit), "it is here still"
            await agent.close()
        waits = await kit.agent("waits")
        await waits.acquire("run-waits")
        await waits.state(started(), ended("drained", 9))
        holder = await kit.agent("holder")
        await holder.acquire("run-held")
        assert (await waits.acquire("run-held"))["type"] == "denied"
        await waits.close()
        await holder.close()
        # Of these the one lost its run, and the others are never granted the one they want; another is, after all.
        silent = await kit.agent("silent")
        await silent.acquire("run-forced")
        await silent.close()
        assert (await kit.force("run-forced", 1, pod_gone=True))[0] == 200
        heir = await kit.agent("heir")
        await heir.acquire("run-forced")
        await heir.state(started())
        refused, persists = await kit.agent("refused"), await kit.agent("persists")
        for agent in (refused, persists):
            assert (await agent.acquire("run-done"))["final"]
            assert (await agent.acquire("run-done"))["final"]
        assert (await persists.acquire("run-other"))["type"] == "granted"
        for agent in (refused, persists, heir):
            await agent.close()
        expected = {
            "done": Gone.LEFT, "drained": Gone.LEFT, "retries": None, "waits": None, "holder": None,
            "silent": Gone.SUPERSEDED, "heir": None, "refused": Gone.REFUSED, "persists": None,
        }  # fmt: skip
        await until(lambda: len(gone(kit)) == len(expected))
        assert gone(kit) == expected
        status, said = await asyncio.to_thread(asked, tmp_path / "state", "status")
        assert (status, "2 left, 5 offline, 1 superseded, 1 refused" in said) == (0, True), said
        status, said = await asyncio.to_thread(asked, tmp_path / "state", "workers")
        words = dict(line.split()[:2] for line in said.splitlines()[1:])
        assert words == {name: "offline" if why is None else why.value for name, why in expected.items()}
    async with running(tmp_path / "state", clock) as kit:
        assert gone(kit) == expected | {"waits": Gone.LEFT}, "that it waited for another run is not in the books"
        await kit.agent("refused")
        assert "refused" not in gone(kit)


@pytest.mark.parametrize("state", [LeaseState.HELD, LeaseState.REVOKED])
async def test_nothing_is_queued_again_over_a_lease_that_somebody_has(kit: Kit, state: LeaseState) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started(), ended("failed", 3, exit_code=1))
    core = kit.commander.core
    lease = core.board.runs["run-1"].lease
    assert lease is not None
    await core.relay.run(lambda tx: runs.save_lease(tx, replace(lease, state=state)))  # no way of ours leads here
    status, body = await kit.requeue("run-1", 1)
    assert (status, body["error"]["code"]) == (409, "held")
    assert "pod" in body["error"]["message"]
    assert (await kit.run("run-1"))["status"] == "failed"
    await core.relay.run(lambda tx: runs.save_lease(tx, lease))
    assert (await kit.requeue("run-1", 1))[0] == 200


async def test_who_registers_what_is_known_is_renewed_by_it(kit: Kit, clock: FakeClock) -> None:
    """Its first answer was lost, or its renewal came first: it counts on what it was told."""
    holder, other = await kit.agent("holder"), await kit.agent("other")
    await holder.acquire("run-1")
    await kit.pass_time(clock, 200)
    lease = {"run_id": "run-1", "epoch": 1, "token": holder.token, "mode": "sft"}
    await holder.say(type="register", request=9, **lease)
    assert (await holder.hear())["lease_seconds"] == 300
    await kit.pass_time(clock, 290)
    assert (await other.acquire("run-1"))["code"] == "held"
    await kit.pass_time(clock, 12)
    assert (await other.acquire("run-1"))["type"] == "granted"


async def test_nobody_registers_what_cannot_have_been_granted(kit: Kit) -> None:
    agent = await kit.agent()
    granted = await agent.acquire("run-1")

    async def register(**other: object) -> dict[str, object]:
        await agent.say(
            **(
                {"type": "register", "request": 9, "run_id": "run-2", "epoch": 3, "token": "a" * 64, "mode": "sft"}
                | other
            )
        )
        return await agent.hear()

    for epoch in (2**53, 2_000_000):
        assert (await register(epoch=epoch))["code"] == "not_holder"
    assert (await register(token=granted["token"]))["code"] == "not_holder"
    # Its key could prove whatever it granted: this is made up, or another commander's.
    assert (await register())["code"] == "unknown"
    assert (await kit.get("/api/runs/run-2"))[0] == 404


@pytest.mark.parametrize("starts", [1, 2])
async def test_what_a_lost_key_granted_is_entered_by_one_that_is_as_new_as_the_books(
    tmp_path: Path, starts: int
) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    for start in range(starts):
        async with running(state, FakeClock()) as kit:
            if start + 1 < starts:
                continue
            holder, other = await kit.agent("holder"), await kit.agent("other")
            lease = {"run_id": "run-2", "epoch": 3, "token": "a" * 64, "mode": "sft"}
            await holder.say(type="register", request=9, **lease)
            assert (await holder.hear())["type"] == "renewed"
            assert (await kit.run("run-2"))["epoch"] == 3
            await other.say(type="register", request=9, **lease | {"epoch": 4, "token": "b" * 64})
            assert (await other.hear())["code"] == "superseded"


async def test_no_agent_is_an_original_worker(kit: Kit) -> None:
    """Their incarnations are made of their names, so that anybody could say them."""
    body = {"worker_id": "old", "run_id": "run-1", "mode": "sft"}
    granted = (await kit.post("/api/lease/acquire", body, role="worker"))[1]
    taken = (await kit.run("run-1"))["incarnation"]
    ws = await kit.session.ws_connect(kit.commander.url + "/ws/agent", headers=kit.headers("worker"))
    agent = Agent(ws, "evil", taken)
    await agent.say(type="hello", protocol=1, worker="evil", incarnation=taken)
    assert (await agent.hear())["code"] == "bad_field"
    assert (await ws.receive(timeout=DEADLINE)).type is WSMsgType.CLOSE
    renewal = {"worker_id": "old", "lease_token": granted["lease_token"]}
    assert (await kit.post("/api/lease/renew", renewal, role="worker"))[0] == 200
