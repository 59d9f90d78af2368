"""What of a run is on the Hub, and how far its transfers are: told by pods, kept, and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commander_kit import Agent, FakeClock, Kit, ended, published, running, started, step
from test_original_worker import Worker


def transfer(kind: str = "hub", **more: Any) -> dict[str, Any]:
    values = {"step": 500, "phase": "uploading", "done": 10, "total": 40, "rate": 5.0, "attempt": 2}
    return {"type": "transfer", "kind": kind} | values | more


def synced(number: int, **more: str) -> dict[str, Any]:
    data = {"repo": "me/run-1", "revision": "abc", "step": str(number), "tag": f"step-{number}", "bytes": "10"}
    return {"type": "event", "kind": "hub.synced", "message": f"step {number}", "data": data | more}


def trouble(kind: str = "hub.failed", **data: str) -> dict[str, Any]:
    return {"type": "event", "kind": kind, "message": "it failed", "data": data}


async def holder(kit: Kit, name: str = "pod") -> Agent:
    agent = await kit.agent(name)
    assert (await agent.acquire("run-1"))["type"] == "granted"
    await agent.state(started())
    return agent


async def tags(kit: Kit) -> dict[str, str]:
    rows = (await kit.get("/api/runs/run-1"))[1]["checkpoints"]
    return {row["name"]: row.get("hub", "") for row in rows}


# -- transfers ---------------------------------------------------------------------------------------------------


async def test_the_newest_word_on_each_kind_is_shown_at_once_and_outlives_a_restart(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with running(tmp_path / "state", clock) as kit:
        agent = await holder(kit)
        feed = await kit.feed()
        await agent.tell(transfer(), step(501, 900, loss=1.0), transfer("artifact", done=1), transfer(done=20))
        row = await feed.run("run-1", step=501)
        by_kind = {each["kind"]: each for each in row["transfers"]}
        assert by_kind["hub"] == {
            "kind": "hub", "epoch": 1, "at": clock.wall(), "step": 500, "phase": "uploading", "done": 20, "total": 40,
            "rate": 5.0, "attempt": 2,
        }  # fmt: skip
        assert by_kind["artifact"]["done"] == 1
        await agent.tell(transfer(phase="failed", error="no room", synced=400))
        before = (await kit.run("run-1"))["transfers"]
    async with running(tmp_path / "state", clock) as kit:
        after = (await kit.run("run-1"))["transfers"]
        assert after == before
        assert [each.get("error") for each in after if each["kind"] == "hub"] == ["no room"]


async def test_a_transfer_of_an_older_attempt_is_not_shown_over_a_newer_ones(kit: Kit) -> None:
    old = await holder(kit)
    await kit.force("run-1", 1, pod_gone=True)
    new = await holder(kit, "other")
    await new.tell(transfer(step=700))
    await old.tell(transfer(step=600), transfer("artifact", step=600))
    shown = {each["kind"]: each["step"] for each in (await kit.run("run-1"))["transfers"]}
    assert shown == {"hub": 700, "artifact": 600}


async def test_an_error_is_cleaned_and_cut_and_a_rate_that_cannot_be_is_none(kit: Kit) -> None:
    agent = await holder(kit)
    await agent.tell(transfer(error="\x1b]52;c;aGk=\x07[/x]\x1b[2J" + "e" * 1_000, rate=-1.0))
    await agent.tell(transfer("restore", error="plain " + "e" * 900, rate=1e300))
    hub, restore = sorted((await kit.run("run-1"))["transfers"], key=lambda row: str(row["kind"]))
    assert hub["error"].startswith("[/x]eee")
    assert len(hub["error"]) <= 300
    assert len(restore["error"]) == 300
    assert hub.get("rate") is None
    assert restore.get("rate") is None


async def test_a_transfer_belongs_to_telemetry(kit: Kit) -> None:
    agent = await holder(kit)
    await agent.send("state", transfer())
    assert (await agent.hear())["code"] == "bad_field"


# -- what is on the Hub ------------------------------------------------------------------------------------------


async def test_a_sync_is_shown_on_the_run_and_on_its_checkpoint(tmp_path: Path, clock: FakeClock) -> None:
    async with running(tmp_path / "state", clock) as kit:
        agent = await holder(kit)
        await agent.state(published(400), published(500), trouble(code="quota", words="no space\x1b[0m left"))
        assert (await kit.run("run-1"))["sync_error"] == "no space left"
        feed = await kit.feed()
        await agent.state(synced(500))
        row = await feed.run("run-1", synced_step=500)
        assert (row["synced_repo"], row["synced_revision"], row["synced_at"]) == ("me/run-1", "abc", clock.wall())
        assert "sync_error" not in row, "what worked since is not in trouble"
        assert await tags(kit) == {"step_00000400": "", "step_00000500": "step-500"}
        await agent.state(trouble("hub.refused", words="another run's"))
    async with running(tmp_path / "state", clock) as kit:
        row = await kit.run("run-1")
        assert (row["synced_step"], row["sync_error"]) == (500, "another run's")
        assert (await tags(kit))["step_00000500"] == "step-500"


async def test_a_checkpoint_that_had_to_have_another_tag_is_found_by_its_name(kit: Kit) -> None:
    agent = await holder(kit)
    name = "step_00000500.e00000002"
    await agent.state(published(500), published(500, name, "cd" * 32), published(600))
    await agent.state(synced(500, tag="step-500.e2"), synced(600, tag="step-600.e1.2", checkpoint="step_00000600"))
    assert await tags(kit) == {"step_00000500": "", name: "step-500.e2", "step_00000600": "step-600.e1.2"}
    await agent.state({"type": "event", "kind": "hub.pruned", "message": "", "data": {"tags": "step-500.e2 step-1"}})
    assert (await tags(kit))[name] == ""


async def test_the_newest_attempt_that_spoke_of_the_hub_has_the_word(kit: Kit) -> None:
    old = await holder(kit)
    await old.state(synced(500))
    await kit.force("run-1", 1, pod_gone=True)
    new = await holder(kit, "other")
    await old.state(synced(510))
    assert (await kit.run("run-1"))["synced_step"] == 510, "nobody else has said anything, and it is there"
    await new.state(synced(400))
    await old.state(synced(520), trouble(words="too late"))
    row = await kit.run("run-1")
    assert (row["synced_step"], row.get("sync_error", "")) == (400, "")
    await new.state(ended("completed", 500), synced(500))
    assert (await kit.run("run-1"))["synced_step"] == 500, "the last sync may be told after the end"


async def test_what_failed_in_an_attempt_that_was_replaced_is_no_trouble_of_the_run(kit: Kit) -> None:
    old = await holder(kit)
    await old.state(trouble(words="no space left"))
    assert (await kit.run("run-1"))["sync_error"] == "no space left"
    await kit.force("run-1", 1, pod_gone=True)
    new = await holder(kit, "other")
    assert "sync_error" not in await kit.run("run-1"), "nothing of this attempt has failed"
    await old.state(trouble(words="still none"))
    assert "sync_error" not in await kit.run("run-1")
    await new.state(trouble(words="none here"))
    assert (await kit.run("run-1"))["sync_error"] == "none here"


@pytest.mark.parametrize("number", ["", "-1", "five", "9" * 40, "²"])
async def test_a_step_that_is_none_is_not_shown_as_one(kit: Kit, number: str) -> None:
    agent = await holder(kit)
    await agent.state(synced(1, step=number, tag="../../x", repo="[/x]\x1b[2J" + "r" * 900))
    row = await kit.run("run-1")
    assert row.get("synced_step") is None
    assert row["synced_repo"].startswith("[/x]r")
    assert 150 < len(row["synced_repo"]) <= 200


async def test_a_worker_of_the_original_protocol_says_it_in_its_way(kit: Kit) -> None:
    pod = Worker(kit.session, kit.commander.url, "pod", kit.worker)
    await pod.acquire("run-1")
    await pod.report("RUNNING", step=4, latest_ckpt="step_00000003", hf={"repo": "me/m", "revision": "dry-run-17"})
    assert (await kit.run("run-1")).get("synced_at") is None, "nothing was sent"
    await pod.report("RUNNING", step=4, hf={"last_synced": "step_00000003", "repo": "me/m", "revision": "abc"})
    row = await kit.run("run-1")
    assert (row["synced_step"], row["synced_repo"], row["synced_revision"]) == (3, "me/m", "abc")
    await pod.report("RUNNING", step=5, hf={"last_synced": "2026-01-02T03:04:05", "repo": "me/m", "revision": "abd"})
    row = await kit.run("run-1")
    assert (row.get("synced_step"), row["synced_revision"]) == (None, "abd")
