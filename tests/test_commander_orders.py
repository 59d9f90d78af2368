"""Cancel and save as orders: what takes them, that they reach the agent and outlive it, and what is left of the run."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from commander_kit import DEADLINE, Agent, FakeClock, Kit, ended, published, running, started
from test_commander_backup import AT, put_back
from test_original_worker import worker

from relaytui.commander.model.orders import LASTING
from relaytui.commander.store.backup import back_up
from relaytui.wire.messages import Order
from relaytui.wire.status import OrderKind


async def give(kit: Kit, kind: str, epoch: int = 1, why: str = "test") -> tuple[int, Any]:
    return await kit.post(f"/api/runs/run-1/{kind}", {"expected_epoch": epoch, "why": why})


async def code(kit: Kit, kind: str, epoch: int = 1) -> tuple[int, str]:
    status, body = await give(kit, kind, epoch)
    return status, body["error"]["code"]


async def holder(kit: Kit, incarnation: str = "one") -> Agent:
    agent = await kit.agent(incarnation=incarnation)
    await agent.acquire("run-1")
    await agent.state(started())
    return agent


async def back(kit: Kit, agent: Agent) -> Agent:
    """The same agent in a new connection."""
    await agent.close()
    again = await kit.agent(incarnation=agent.incarnation)
    again.run_id, again.epoch, again.token, again.seq = agent.run_id, agent.epoch, agent.token, agent.seq
    return again


# -- every status ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "cancel", "save"),
    [
        ("queued", (200, "cancelled"), (409, "not_held")),
        ("leased", (200, "draining"), (409, "not_now")),
        ("running", (200, "draining"), (200, "running")),
        ("draining", (200, "draining"), (409, "not_now")),
        ("completed", (409, "not_held"), (409, "not_held")),
        ("failed", (409, "not_held"), (409, "not_held")),
        ("cancelled", (409, "not_held"), (409, "not_held")),
    ],
)
async def test_what_takes_which_order(kit: Kit, status: str, cancel: tuple[int, str], save: tuple[int, str]) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    if status != "leased":
        await agent.state(started())
    if status == "draining":
        await kit.drain("run-1", 1)
    if status in ("completed", "failed", "cancelled"):
        await agent.state(ended(status))
    if status == "queued":
        await agent.state(ended("preempted"))
    assert (await kit.run("run-1"))["status"] == status
    for kind, (number, word) in (("save", save), ("sync", save), ("cancel", cancel)):
        answered, body = await give(kit, kind)
        assert answered == number, body
        assert (body["run"]["status"] if number == 200 else body["error"]["code"]) == word
        if number == 200:
            assert (body["order_id"] is None) == (status == "queued"), "nobody has to be asked about a queued run"


@pytest.mark.parametrize("kind", ["drain", "cancel", "save", "sync"])
async def test_an_order_on_what_has_changed_or_is_not_there_is_refused(kit: Kit, kind: str) -> None:
    agent = await holder(kit)
    assert await code(kit, kind, 0) == (409, "epoch_changed")
    assert (await kit.post(f"/api/runs/nothing/{kind}", {"expected_epoch": 0}))[0] == 404
    assert (await kit.post(f"/api/runs/run-1/{kind}", {"why": "x"}))[0] == 422
    assert (await kit.post(f"/api/runs/run-1/{kind}", {"expected_epoch": 1}, role="worker"))[0] == 403
    assert (await kit.run("run-1"))["status"] == "running"
    await agent.renew()


@pytest.mark.parametrize("kind", ["drain", "cancel", "save", "sync"])
async def test_an_original_worker_takes_no_orders(kit: Kit, kind: str) -> None:
    pod = worker(kit, secret=kit.worker)
    await pod.acquire("run-1")
    await pod.report("RUNNING", step=1)
    assert await code(kit, kind) == (409, f"cannot_{kind}")
    assert (await kit.run("run-1"))["status"] == "running"


async def test_an_original_worker_is_not_granted_a_cancelled_run_again(kit: Kit) -> None:
    pod = worker(kit, secret=kit.worker)
    await pod.acquire("run-1")
    await pod.report("PREEMPTED", step=1)
    assert (await give(kit, "cancel"))[1]["run"]["status"] == "cancelled"
    assert (await pod.acquire("run-1"))[1]["status"] == "denied"
    assert (await pod.acquire("run-1", force=True))[1]["status"] == "denied"
    assert (await kit.run("run-1"))["status"] == "cancelled"


# -- cancel ------------------------------------------------------------------------------------------------------


async def test_cancel_saves_and_is_final_until_it_is_requeued(kit: Kit) -> None:
    agent = await holder(kit)
    status, body = await give(kit, "cancel", why="wrong data")
    assert (status, body["run"]["status"], body["run"]["message"]) == (200, "draining", "cancel asked by operator")
    order = await agent.hear("order")
    assert (order["kind"], order["order_id"], order["by"], order["why"]) == (
        "cancel", body["order_id"], "operator", "wrong data",
    )  # fmt: skip
    assert (await give(kit, "cancel"))[1]["order_id"] == body["order_id"]
    await agent.say(type="order_ack", order_id=body["order_id"])
    assert await code(kit, "drain") == (409, "not_now"), "it would be queued again"
    await agent.state(published(12), ended("cancelled", 12, message="cancelled by operator: wrong data"))
    row = await kit.run("run-1")
    assert (row["status"], row["newest_checkpoint"]) == ("cancelled", "step_00000012")
    assert (await agent.acquire("run-1"))["code"] == "ended"
    kinds = await kit.kinds("run-1")
    assert kinds.count("run.cancel_asked") == kinds.count("run.cancelled") == 1
    assert (await kit.requeue("run-1", 1))[0] == 200
    assert (await agent.acquire("run-1"))["epoch"] == 2
    await agent.state(started())
    await agent.state(ended("preempted"))
    assert (await kit.run("run-1"))["status"] == "queued", "that was the last attempt's, not this one's"


@pytest.mark.parametrize(
    "outcome", ["cancelled", "failed", "preempted", "crashed", "drained", "superseded", "completed"]
)
@pytest.mark.parametrize("acknowledged", [True, False])
async def test_however_the_attempt_ends_the_run_is_cancelled(kit: Kit, outcome: str, acknowledged: bool) -> None:
    agent = await holder(kit)
    order_id = (await give(kit, "cancel"))[1]["order_id"]
    if acknowledged:
        await agent.say(type="order_ack", order_id=order_id)
    await agent.state(ended(outcome, 5, message="its own words"))
    row = await kit.run("run-1")
    assert row["status"] == ("completed" if outcome == "completed" else "cancelled")
    assert "its own words" in row["message"]
    assert [attempt["outcome"] for attempt in await kit.attempts("run-1")] == [outcome]


async def test_a_holder_that_stays_silent_after_a_cancel_leaves_a_cancelled_run(kit: Kit, clock: FakeClock) -> None:
    agent = await holder(kit)
    await give(kit, "cancel")
    await agent.close()
    await kit.pass_time(clock, 302)
    row = await kit.run("run-1")
    assert (row["status"], row.get("holder")) == ("cancelled", None)
    assert "silent for 300 s" in row["message"]
    assert [attempt["outcome"] for attempt in await kit.attempts("run-1")] == ["lost"]
    assert (await (await kit.agent("other")).acquire("run-1"))["code"] == "ended"
    # Late, it finds the run over; what it still says is history.
    agent = await back(kit, agent)
    assert (await agent.renew())["code"] == "released"
    assert (await agent.state(published(9), ended("preempted", 9)))["type"] == "ack"
    row = await kit.run("run-1")
    assert (row["status"], row.get("newest_checkpoint")) == ("cancelled", None)


@pytest.mark.parametrize("pod_gone", [True, False])
async def test_force_on_a_run_that_is_being_cancelled_ends_it(kit: Kit, clock: FakeClock, pod_gone: bool) -> None:
    agent = await holder(kit)
    await give(kit, "cancel")
    status, body = await kit.force("run-1", 1, pod_gone=pod_gone)
    assert (status, body["run"]["status"], body["epoch"]) == (200, "cancelled", 2)
    assert (await agent.renew())["code"] == "superseded"
    await kit.pass_time(clock, 302)
    row = await kit.run("run-1")
    assert (row["status"], row["message"], row.get("holder")) == ("cancelled", "cancelled by operator", None)
    assert (await kit.requeue("run-1", 2))[0] == 200


async def test_who_asks_anew_after_a_cancel_is_denied(kit: Kit) -> None:
    agent = await holder(kit)
    await give(kit, "cancel")
    await agent.hear("order")
    denied = await agent.acquire("run-1", request_id="anew")
    assert (denied["code"], denied["final"]) == ("ended", True)
    assert (await kit.run("run-1"))["status"] == "cancelled"


async def test_a_queued_run_whose_holder_may_come_back_is_cancelled_at_once(kit: Kit, clock: FakeClock) -> None:
    agent = await holder(kit)
    await kit.pass_time(clock, 302)
    assert (await kit.run("run-1"))["status"] == "queued"
    assert (await give(kit, "cancel"))[1]["run"]["status"] == "cancelled"
    assert (await agent.state(published(3)))["type"] == "ack"
    assert (await agent.renew())["code"] == "released"
    assert (await kit.run("run-1"))["status"] == "cancelled"


async def test_a_forced_run_is_cancelled_while_its_old_holder_still_stops(kit: Kit, clock: FakeClock) -> None:
    agent = await holder(kit)
    await kit.force("run-1", 1)
    status, body = await give(kit, "cancel", 2)
    assert (status, body["run"]["status"], body["run"]["holder"]) == (200, "cancelled", "pod")
    assert (await kit.requeue("run-1", 2))[1]["error"]["code"] == "held"
    await agent.state(ended("superseded"))
    row = await kit.run("run-1")
    assert (row["status"], row["message"], row.get("holder")) == ("cancelled", "cancelled by operator", None)
    assert (await kit.requeue("run-1", 2))[0] == 200


async def test_a_cancel_after_a_drain_counts(kit: Kit) -> None:
    agent = await holder(kit)
    drain = (await kit.drain("run-1", 1))[1]["order_id"]
    cancel = (await give(kit, "cancel"))[1]["order_id"]
    assert cancel != drain
    assert [(await agent.hear("order"))["kind"] for _ in range(2)] == ["drain", "cancel"]
    await agent.state(ended("drained"))
    assert (await kit.run("run-1"))["status"] == "cancelled"


async def test_a_refused_cancel_leaves_the_run_as_it_was(kit: Kit) -> None:
    agent = await holder(kit)
    await kit.drain("run-1", 1)
    order_id = (await give(kit, "cancel"))[1]["order_id"]
    await agent.say(type="order_ack", order_id=order_id, accepted=False, message="no")
    await agent.renew()
    assert (await kit.run("run-1"))["status"] == "draining", "it was asked to drain, too"
    await agent.state(ended("drained"))
    assert (await kit.run("run-1"))["status"] == "queued"


# -- that it arrives ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["drain", "cancel", "save", "sync"])
async def test_an_order_survives_reconnects_and_restarts_and_is_answered_once(tmp_path: Path, kind: str) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await holder(kit)
        order_id = (await give(kit, kind))[1]["order_id"]
        assert (await agent.hear("order"))["order_id"] == order_id
        agent = await back(kit, agent)
        assert (await agent.hear("order"))["order_id"] == order_id
        await agent.close()
    async with running(tmp_path / "state", clock) as kit:
        agent = await back(kit, agent)
        assert (await agent.hear("order"))["order_id"] == order_id
        assert (await give(kit, kind))[1]["order_id"] == order_id
        for words in ("as you say", "and again"):
            await agent.say(type="order_ack", order_id=order_id, message=words)
        await agent.renew()
        said = [event for event in await kit.events("run-1") if event["kind"] == "order.acknowledged"]
        assert [(event["message"], event["data"]["order"]) for event in said] == [("as you say", kind)]
        # What stops a trainer is told to the next agent that takes it over, too; others are done with their answer.
        agent = await back(kit, agent)
        await agent.say(type="renew", request=99, run_id="run-1", epoch=1, token=agent.token)
        heard = [await agent.hear()]
        while heard[-1]["type"] != "renewed":
            heard.append(await agent.hear())
        assert [message["type"] for message in heard[:-1]] == (["order"] if kind in LASTING else [])


async def test_orders_of_an_attempt_that_has_ended_are_over(kit: Kit) -> None:
    agent = await holder(kit)
    for kind in ("save", "cancel"):
        await give(kit, kind)
    await agent.state(ended("cancelled"))
    agent = await back(kit, agent)
    assert (await agent.acquire("run-1"))["type"] == "denied", "and nothing came before it"


@pytest.mark.parametrize("kind", ["drain", "save"])
async def test_who_comes_back_in_the_same_epoch_hears_it_again(kit: Kit, clock: FakeClock, kind: str) -> None:
    agent = await holder(kit)
    order_id = (await give(kit, kind))[1]["order_id"]
    await agent.close()
    await kit.pass_time(clock, 302)
    agent = await back(kit, agent)
    await agent.say(type="renew", request=7, run_id="run-1", epoch=1, token=agent.token)
    heard = {message["type"]: message for message in (await agent.hear(), await agent.hear())}
    assert heard["order"]["order_id"] == order_id
    assert (await kit.run("run-1"))["status"] == ("running" if kind == "save" else "draining")


# -- save --------------------------------------------------------------------------------------------------------


async def test_save_changes_nothing_about_the_run_and_can_be_asked_again(kit: Kit) -> None:
    agent = await holder(kit)
    order_id = (await give(kit, "save", why="before the demo"))[1]["order_id"]
    order = await agent.hear("order")
    assert (order["kind"], order["why"]) == ("save", "before the demo")
    await agent.say(type="order_ack", order_id=order_id, message="asked by file\x1b[2J; its next save counts")
    await agent.renew()
    assert (await kit.run("run-1"))["status"] == "running"
    asked, answered = (await kit.events("run-1"))[-2:]
    assert (asked["kind"], asked["message"], asked["actor"]) == ("run.save_asked", "before the demo", "operator")
    assert (answered["kind"], answered["message"]) == ("order.acknowledged", "asked by file; its next save counts")
    assert (await give(kit, "save"))[1]["order_id"] > order_id


async def test_a_save_that_an_agent_refuses_is_said(kit: Kit) -> None:
    agent = await holder(kit)
    order_id = (await give(kit, "save"))[1]["order_id"]
    await agent.say(type="order_ack", order_id=order_id, accepted=False, message="the trainer has exited")
    await agent.renew()
    assert (await kit.events("run-1"))[-1]["kind"] == "order.refused"
    assert (await kit.run("run-1"))["status"] == "running"


async def test_what_became_of_an_order_can_be_asked(kit: Kit) -> None:
    """Whoever gave it need not look for its answer among the events."""
    agent = await holder(kit)

    async def order(number: int) -> dict[str, Any]:
        status, body = await kit.get(f"/api/runs/run-1/orders/{number}")
        assert status == 200, body
        row: dict[str, Any] = body["order"]
        return row

    sync = (await give(kit, "sync"))[1]["order_id"]
    given = await order(sync)
    assert (given["kind"], given["by"], given["epoch"], given["why"]) == ("sync", "operator", 1, "test")
    assert "accepted" not in given, "nobody has answered yet"
    await agent.say(type="order_ack", order_id=sync, accepted=False, message="no repository\x1b[2J")
    await agent.renew()
    assert ((await order(sync))["accepted"], (await order(sync))["message"]) == (False, "no repository")
    drain = (await give(kit, "drain"))[1]["order_id"]
    await agent.say(type="order_ack", order_id=drain)
    await agent.renew()
    assert (await order(drain))["accepted"] is True
    assert "closed_at" not in await order(drain), "it lasts until the attempt has ended"
    await agent.state(ended("drained"))
    assert "closed_at" in await order(drain)
    assert (await kit.get("/api/runs/run-1/orders/99"))[0] == 404
    assert (await kit.get(f"/api/runs/other/orders/{drain}"))[0] == 404
    assert (await kit.get("/api/runs/run-1/orders/x"))[0] in (404, 422)
    assert (await kit.get(f"/api/runs/run-1/orders/{drain}", role="worker"))[0] == 403


# -- a restored state --------------------------------------------------------------------------------------------


async def test_a_cancel_outlives_a_restore(tmp_path: Path) -> None:
    """The books are older than what happened since: the holder is still told, and nobody else gets the run."""
    clock, state = FakeClock(), tmp_path / "state"
    async with running(state, clock) as kit:
        agent = await holder(kit)
        order_id = (await give(kit, "cancel"))[1]["order_id"]
        await agent.close()
    put_back(state, back_up(state, AT))
    async with running(state, clock) as kit:
        assert (await (await kit.agent("other")).acquire("run-1"))["code"] == "recovering"
        agent = await back(kit, agent)
        assert (await agent.hear("order"))["order_id"] == order_id
        await agent.renew()
        assert (await kit.run("run-1"))["status"] == "draining"
        await agent.close()
    put_back(state, back_up(state, AT + 1))
    async with running(state, clock) as kit:
        await kit.pass_time(clock, 302)
        assert (await (await kit.agent("other")).acquire("run-1"))["code"] == "ended"
        assert (await kit.run("run-1"))["status"] == "cancelled"


def test_every_kind_but_stop_has_a_route() -> None:
    from relaytui.commander.model.orders import ORDERS

    assert set(ORDERS) == set(OrderKind) - {OrderKind.STOP}


async def test_an_order_that_comes_while_an_agent_says_hello_waits_for_its_welcome(kit: Kit) -> None:
    """Whose first message was another took the commander for one of another version, and connected no more."""
    first = await kit.agent()
    assert (await first.acquire("run-1"))["type"] == "granted"
    held, go = threading.Event(), threading.Event()

    def busy(tx: object) -> None:
        held.set()
        go.wait(DEADLINE)

    holding = asyncio.create_task(kit.commander.core.relay.run(busy))
    await asyncio.to_thread(held.wait, DEADLINE)
    before = kit.commander.core.workers._sessions[first.incarnation]
    ws = await kit.session.ws_connect(kit.commander.url + "/ws/agent", headers=kit.headers("worker"))
    again = Agent(ws, "pod", first.incarnation)
    await again.say(type="hello", protocol=1, worker="pod", incarnation=first.incarnation)
    async with asyncio.timeout(DEADLINE):
        while kit.commander.core.workers._sessions.get(first.incarnation) is before:
            await asyncio.sleep(0.001)
    kit.commander.core.workers._sessions[first.incarnation].send_order(Order(1, "run-1", 1, OrderKind.DRAIN))
    go.set()
    await holding
    assert [(await again.hear())["type"] for _ in range(2)] == ["welcome", "order"]
