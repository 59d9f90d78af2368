"""The original relay-trainer worker, played over real HTTP: its calls, fields, header and codes, unchanged.

And where its commander was weak, this one is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from commander_kit import FakeClock, Kit, running

from relaytui.commander.server import Commander
from relaytui.commander.settings import CommanderSettings

SECRET = "hunter2"


class Worker:
    """What the original's worker sends, and nothing else."""

    def __init__(self, session: aiohttp.ClientSession, url: str, worker_id: str, secret: str = SECRET) -> None:
        self.session, self.url, self.worker_id, self.secret = session, url, worker_id, secret
        self.token = ""
        self.run_id = ""

    async def call(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        headers = {"X-Relay-Secret": self.secret} if self.secret else {}
        async with self.session.post(self.url + path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def acquire(self, run_id: str, *, force: bool = False) -> tuple[int, dict[str, Any]]:
        body: dict[str, Any] = {"worker_id": self.worker_id, "run_id": run_id, "cap": {"gpu": "cpu", "count": 0}}
        if force:
            body["force"] = True
        status, answer = await self.call("/api/lease/acquire", body)
        if answer.get("status") == "granted":
            self.token, self.run_id = answer["lease_token"], run_id
        return status, answer

    async def renew(self) -> tuple[int, dict[str, Any]]:
        return await self.call("/api/lease/renew", {"lease_token": self.token, "worker_id": self.worker_id})

    async def report(self, status: str, **more: Any) -> tuple[int, dict[str, Any]]:
        body = {"lease_token": self.token, "run_id": self.run_id, "status": status} | more
        return await self.call("/api/job/report", body)


@pytest.fixture
async def kit(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Kit]:
    async with running(tmp_path / "state", clock, shared_secret=SECRET, lease_seconds=3_600.0, hf_repo="me/m") as kit:
        yield kit


def worker(kit: Kit, name: str = "pod", secret: str = SECRET) -> Worker:
    return Worker(kit.session, kit.commander.url, name, secret)


async def test_a_whole_run(kit: Kit) -> None:
    async with kit.session.get(kit.commander.url + "/api/health") as answer:
        assert answer.status == 200
        assert (await answer.json())["ok"] is True
    pod = worker(kit)
    status, granted = await pod.acquire("relay-run")
    assert (status, granted["status"], granted["lease_expires_in_sec"]) == (200, "granted", 3_600)
    assert granted["config"] == {
        "l1_root": "/mnt/relay", "run_id": "relay-run", "ckpt_interval_sec": 600, "ckpt_keep_last_n": 3,
        "hf_sync_interval_sec": 14_400, "hf_repo": "me/m", "hf_push_on_improve": False,
    }  # fmt: skip
    assert await pod.renew() == (200, {"ok": True, "lease_expires_in_sec": 3_600})
    assert await pod.report("RUNNING", step=3, latest_ckpt="step_00000003") == (200, {"ok": True})
    hub = {"last_synced": "step_00000003", "repo": "me/m", "revision": "abc"}
    assert (await pod.report("RUNNING", step=6, latest_ckpt="/mnt/relay/runs/relay-run/ckpt/step_00000006", hf=hub))[
        0
    ] == 200
    assert (await pod.report("RUNNING", step=6, hf=hub))[0] == 200
    row = await kit.run("relay-run")
    assert (row["status"], row["step"], row["newest_checkpoint"]) == ("running", 6, "step_00000006")
    assert (await kit.kinds("relay-run")).count("hub.synced") == 1
    assert (await pod.report("COMPLETED", step=9, msg="fine\x1b[0m"))[0] == 200
    row = await kit.run("relay-run")
    assert (row["status"], row["step"], row["message"]) == ("completed", 9, "fine")
    assert (await pod.report("RUNNING"))[0] == 409
    assert (await pod.renew())[0] == 409
    workers = (await kit.get("/api/workers"))[1]["workers"]
    assert [(row["worker"], row["status"]) for row in workers] == [("pod", "idle")]


async def test_codes_of_the_original(kit: Kit, clock: FakeClock) -> None:
    pod = worker(kit)
    await pod.acquire("run-1")
    other = worker(kit, "other")
    assert await other.acquire("run-1") == (200, {"status": "denied", "reason": "active lease exists"})
    # The same name is another pod until it proves otherwise: the original denied it too.
    assert (await worker(kit).acquire("run-1"))[1]["status"] == "denied"
    other.token = pod.token
    assert (await other.renew())[0] == 403
    other.token = "f" * 32
    assert (await other.renew())[0] == 403
    assert (await other.report("RUNNING"))[0] == 422  # it never learned a run id
    for body in (b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 100_000):
        status, answer = await kit.post("/api/lease/acquire", body, role="worker")
        assert status == 422, body[:10]
        assert answer["detail"]
    status, _ = await pod.call("/api/lease/acquire", {"worker_id": "w", "run_id": 5})
    assert status == 422
    assert (await pod.report("SLEEPING"))[0] == 422
    assert (await pod.report("RUNNING", step=-1))[0] == 422
    await kit.pass_time(clock, 3_602)
    assert (await pod.renew())[0] == 409
    assert (await pod.report("RUNNING"))[0] == 409
    nobody = worker(kit, "nobody")
    nobody.token = "e" * 32
    assert (await nobody.renew())[0] == 409


async def test_one_lease_a_run_not_one_in_all(kit: Kit) -> None:
    assert (await worker(kit, "a").acquire("run-1"))[1]["status"] == "granted"
    assert (await worker(kit, "b").acquire("run-2"))[1]["status"] == "granted"


async def test_a_preempted_worker_frees_its_run(kit: Kit) -> None:
    pod = worker(kit)
    await pod.acquire("run-1")
    await pod.report("RUNNING", step=5)
    assert (await pod.report("PREEMPTED", step=5, latest_ckpt="step_00000005"))[0] == 200
    assert (await kit.run("run-1"))["status"] == "queued"
    granted = (await worker(kit, "next").acquire("run-1"))[1]
    assert (granted["status"], granted["epoch"]) == ("granted", 2)
    assert (await pod.report("RUNNING", step=99))[0] == 409
    assert (await pod.renew())[0] == 409
    assert (await kit.run("run-1"))["step"] == 5


async def test_the_secret_holds_on_every_call(kit: Kit) -> None:
    good = worker(kit)
    await good.acquire("run-1")
    for secret in ("", "wrong", SECRET + "x", "hünter2"):
        bad = worker(kit, secret=secret)
        bad.token, bad.run_id = good.token, "run-1"
        assert (await bad.acquire("run-2"))[0] == 401
        assert (await bad.renew())[0] == 401
        assert (await bad.report("COMPLETED"))[0] == 401
    assert (await kit.run("run-1"))["status"] == "leased"


async def test_a_holder_cannot_report_another_run(kit: Kit) -> None:
    pod, other = worker(kit, "a"), worker(kit, "b")
    await pod.acquire("run-1")
    await other.acquire("run-2")
    pod.run_id = "run-2"
    assert (await pod.report("COMPLETED", step=1_000))[0] == 403
    assert (await kit.run("run-2"))["status"] == "leased"


async def test_force_takes_the_run_and_the_loser_learns_it(kit: Kit) -> None:
    old, new = worker(kit, "old"), worker(kit, "new")
    await old.acquire("run-1")
    assert (await new.acquire("run-1", force=True))[1]["status"] == "granted"
    assert (await old.renew())[0] == 409
    assert (await old.report("COMPLETED"))[0] == 409
    assert (await new.report("RUNNING", step=1))[0] == 200
    event = next(event for event in await kit.events("run-1") if event["kind"] == "lease.forced")
    assert event["actor"] == "new"


async def test_force_takes_no_agents_run_within_its_time(tmp_path: Path) -> None:
    """To take it is the operator's, who can see whether that pod is gone."""
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        pod, agent = worker(kit, secret=kit.worker), await kit.agent("agent")
        await agent.acquire("run-1")
        denied = (await pod.acquire("run-1", force=True))[1]
        assert denied["status"] == "denied"
        assert "relay-tui force-acquire run-1" in denied["reason"]
        assert (await agent.renew())["type"] == "renewed"
        assert (await kit.kinds("run-1"))[-1] == "lease.granted"
        # Nor while it stops because the operator did.
        assert (await kit.force("run-1", 1))[0] == 200
        assert (await pod.acquire("run-1", force=True))[1]["status"] == "denied"
        assert (await kit.run("run-1"))["holder"] == "agent"
        await kit.pass_time(clock, 302)
        assert (await pod.acquire("run-1", force=True))[1]["status"] == "granted"


async def test_an_agent_and_an_original_worker_share_the_same_leases(kit: Kit) -> None:
    pod, agent = worker(kit), await kit.agent("agent")
    await pod.acquire("run-1")
    assert (await agent.acquire("run-1"))["code"] == "held"
    await pod.report("PREEMPTED", step=4, latest_ckpt="step_00000004")
    granted = await agent.acquire("run-1")
    # A checkpoint without a manifest of ours is no promise an agent could be held to.
    assert (granted["type"], "newest" in granted) == ("granted", False)
    assert (await pod.acquire("run-1"))[1]["status"] == "denied"
    assert (await kit.drain("run-1", 9))[0] == 409
    await agent.state({"type": "ended", "outcome": "preempted"})
    await pod.acquire("run-1")
    assert (await kit.drain("run-1", (await kit.run("run-1"))["epoch"]))[1]["error"]["code"] == "cannot_drain"


async def test_the_state_survives_a_restart(tmp_path: Path, clock: FakeClock) -> None:
    settings = CommanderSettings(state=tmp_path / "s", port=0, shared_secret=SECRET)
    async with aiohttp.ClientSession() as session:
        first = Commander(settings, clock)
        await first.start()
        pod = Worker(session, first.url, "pod")
        await pod.acquire("run-1")
        await pod.report("RUNNING", step=7)
        await first.stop()
        second = Commander(settings, clock)
        await second.start()
        try:
            pod.url = second.url
            assert (await pod.renew())[0] == 200
            assert (await pod.report("COMPLETED", step=8))[0] == 200
        finally:
            await second.stop()


async def test_ids_and_sizes_are_checked_at_the_edge(kit: Kit) -> None:
    pod = worker(kit)
    for run_id in ("", ".", "..", "a/b", "a\\b", "x" * 129, "a\nb", "a\x00", "-x", "ü", "latest/..", "a b", "\u202ea"):
        status, answer = await pod.acquire(run_id)
        assert (status, answer["error"]["code"]) == (422, "bad_field"), run_id
    assert (await kit.post("/api/lease/acquire", b'{"worker_id":"' + b"x" * (1 << 20) + b'"}', role="worker"))[0] == 413
    assert (await kit.get("/api/runs"))[1]["runs"] == []


@pytest.mark.parametrize("ending", ["FAILED", "COMPLETED"])
async def test_an_ended_run_is_granted_again_to_whoever_asks(kit: Kit, ending: str) -> None:
    pod = worker(kit, "pod-1")
    await pod.acquire("run-1")
    assert (await pod.report(ending, step=3))[0] == 200
    status, answer = await pod.acquire("run-1")
    assert (status, answer["status"], answer["epoch"]) == (200, "granted", 2)
    requeued = next(event for event in await kit.events("run-1") if event["kind"] == "run.requeued")
    assert requeued["actor"] == "pod-1"
    # It is a grant like any other: one holder, who can work.
    assert (await worker(kit, "pod-2").acquire("run-1"))[1]["status"] == "denied"
    assert (await pod.report("RUNNING", step=4))[0] == 200
    assert (await pod.renew())[0] == 200
    assert (await kit.run("run-1"))["status"] == "running"


async def test_many_at_once_get_one_lease(kit: Kit) -> None:
    answers = await asyncio.gather(*(worker(kit, f"pod-{n}").acquire("run-1") for n in range(10)))
    assert sorted(answer["status"] for _, answer in answers) == ["denied"] * 9 + ["granted"]
