"""An operator takes a run over, or has it drained: in ways that are safe, and on what he saw."""

from __future__ import annotations

from commander_kit import FakeClock, Kit, ended, published, started


async def test_force_burns_an_epoch_and_waits_for_the_old_trainer(kit: Kit) -> None:
    old, new = await kit.agent("old"), await kit.agent("new")
    await old.acquire("run-1")
    await old.state(started())
    status, body = await kit.force("run-1", 1)
    assert (status, body["epoch"], body["run"]["status"]) == (200, 2, "queued")
    assert (await old.hear("order"))["kind"] == "stop"
    assert (await old.renew())["code"] == "superseded"
    denied = await new.acquire("run-1")
    assert (denied["code"], denied.get("final", False)) == ("revoked", False)
    # What the old holder says now is history; that its tree is dead frees the run.
    assert (await old.state(published(9)))["type"] == "ack"
    assert (await old.state(ended("superseded", 9)))["type"] == "ack"
    granted = await new.acquire("run-1")
    assert granted["epoch"] == 3
    assert "newest" not in granted
    row = await kit.run("run-1")
    assert (row["status"], row["holder"], row.get("published", 0)) == ("leased", "new", 0)
    attempts = await kit.attempts("run-1")
    assert [(row["epoch"], row.get("outcome")) for row in attempts] == [(1, "superseded"), (3, None)]
    forced = next(event for event in await kit.events("run-1") if event["kind"] == "lease.forced")
    assert (forced["message"], forced["data"]["holder"]) == ("test", "old")


async def test_force_of_a_silent_holder_is_free_when_its_time_ran_out(kit: Kit, clock: FakeClock) -> None:
    old, new = await kit.agent("old"), await kit.agent("new")
    await old.acquire("run-1")
    await kit.pass_time(clock, 100)
    await kit.force("run-1", 1)
    await kit.pass_time(clock, 198)
    assert (await new.acquire("run-1"))["code"] == "revoked"
    await kit.pass_time(clock, 4)
    assert (await new.acquire("run-1"))["epoch"] == 3
    assert [row.get("outcome") for row in await kit.attempts("run-1")] == ["superseded", None]


async def test_pod_gone_frees_at_once(kit: Kit) -> None:
    old, new = await kit.agent("old"), await kit.agent("new")
    await old.acquire("run-1")
    await old.state(started())
    await kit.force("run-1", 1, pod_gone=True)
    assert (await new.acquire("run-1"))["epoch"] == 3
    # It was not gone after all: it is told, and changes nothing.
    assert (await old.renew())["code"] == "superseded"
    await old.state(published(7), ended("completed", 7))
    row = await kit.run("run-1")
    assert (row["status"], row["holder"]) == ("leased", "new")
    assert "newest_checkpoint" not in row


async def test_pod_gone_can_be_said_after_a_force(kit: Kit) -> None:
    old, new = await kit.agent("old"), await kit.agent("new")
    await old.acquire("run-1")
    await kit.force("run-1", 1)
    assert (await new.acquire("run-1"))["code"] == "revoked"
    assert (await kit.force("run-1", 2, pod_gone=True))[0] == 200
    assert (await new.acquire("run-1"))["epoch"] == 4


async def test_an_override_on_what_has_changed_is_refused(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started(), ended("preempted"))
    await agent.acquire("run-1")
    for answer in (await kit.force("run-1", 1), await kit.drain("run-1", 1)):
        status, body = answer
        assert (status, body["error"]["code"]) == (409, "epoch_changed")
    assert (await kit.run("run-1"))["holder"] == "pod"
    assert (await kit.force("nothing", 0))[0] == 404
    await agent.state(started(), ended("completed"))
    assert (await kit.force("run-1", 2))[1]["error"]["code"] == "ended"


# -- drain -------------------------------------------------------------------------------------------------------


async def test_drain_is_ordered_until_it_is_acknowledged(kit: Kit) -> None:
    agent = await kit.agent(incarnation="one")
    await agent.acquire("run-1")
    await agent.state(started())
    status, body = await kit.drain("run-1", 1)
    assert (status, body["run"]["status"]) == (200, "draining")
    order = await agent.hear("order")
    assert (order["kind"], order["order_id"], order["by"], order["why"]) == (
        "drain",
        body["order_id"],
        "operator",
        "test",
    )
    assert (await kit.drain("run-1", 1))[1]["order_id"] == body["order_id"]
    # Not acknowledged: after a reconnect it comes again.
    keep = (agent.run_id, agent.epoch, agent.token, agent.seq)
    await agent.close()
    agent = await kit.agent(incarnation="one")
    agent.run_id, agent.epoch, agent.token, agent.seq = keep
    assert (await agent.hear("order"))["order_id"] == body["order_id"]
    await agent.say(type="order_ack", order_id=body["order_id"])
    await agent.state(published(12), ended("drained", 12))
    row = await kit.run("run-1")
    assert (row["status"], row["newest_checkpoint"]) == ("queued", "step_00000012")
    await agent.close()
    agent = await kit.agent(incarnation="one")
    assert (await agent.acquire("run-1"))["type"] == "granted"


async def test_a_refused_drain_leaves_the_run_running(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started())
    order_id = (await kit.drain("run-1", 1))[1]["order_id"]
    await agent.say(type="order_ack", order_id=order_id, accepted=False, message="cannot\x1b[31m save")
    await agent.renew()
    row = await kit.run("run-1")
    assert (row["status"], row["message"]) == ("running", "drain refused: cannot save")


async def test_there_is_nothing_to_drain_where_nobody_holds(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started(), ended("preempted"))
    status, body = await kit.drain("run-1", 1)
    assert (status, body["error"]["code"]) == (409, "not_held")


async def test_a_revived_holder_still_drains(kit: Kit, clock: FakeClock) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started())
    order_id = (await kit.drain("run-1", 1))[1]["order_id"]
    await agent.say(type="order_ack", order_id=order_id)
    await agent.renew()
    await kit.pass_time(clock, 302)
    assert (await kit.run("run-1"))["status"] == "queued"
    await agent.renew()
    assert (await kit.run("run-1"))["status"] == "draining"
