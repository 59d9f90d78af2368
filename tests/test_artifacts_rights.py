"""Who may put what into the artifact store and read it: the live holder of a run's lease its own run's, nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from artifact_kit import CHUNK, Store, part_files, pod, sha, some, stored_files
from commander_kit import FakeClock, Kit, ended, running, until

OTHER = "t" * 64


@pytest.fixture
async def kit(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Kit]:
    async with running(tmp_path / "state", clock, lease_seconds=60.0) as kit:
        yield kit


async def released(kit: Kit, store: Store, clock: FakeClock) -> None:
    assert store.agent is not None
    await store.agent.state(ended("preempted"))


async def expired(kit: Kit, store: Store, clock: FakeClock) -> None:
    await kit.pass_time(clock, 70.0)


async def run_out(kit: Kit, store: Store, clock: FakeClock) -> None:
    """By the clock; no sweep has said so yet."""
    clock.advance(1.0)
    await kit.commander.core.leases.sweep()
    view = kit.commander.core.board.runs["run-1"]
    view.expires = clock.boot() - 0.1


async def forced(kit: Kit, store: Store, clock: FakeClock) -> None:
    assert (await kit.force("run-1", 1))[0] == 200


async def superseded(kit: Kit, store: Store, clock: FakeClock) -> None:
    await released(kit, store, clock)
    await pod(kit, worker="successor")


@pytest.mark.parametrize("lose", [released, expired, forced, superseded])
async def test_who_has_just_lost_the_lease_uploads_nothing_more(
    kit: Kit, clock: FakeClock, tmp_path: Path, lose: Any
) -> None:
    store, data, last = await pod(kit), some(2 * CHUNK), some(CHUNK, 2)
    half, whole = [(await store.begin(bytes_))[1]["upload"] for bytes_ in (data, last)]
    await store.chunk(half, 0, data[:CHUNK])
    await store.chunk(whole, 0, last)
    await lose(kit, store, clock)
    for status, body in (
        await store.begin(some(10), "step_00000009"),
        await store.begin(data),
        await store.chunk(half, CHUNK, data[CHUNK:]),
        await store.ask("GET", f"/uploads/{half}"),
        await store.finish(whole),
        await store.ask("GET", "?run=run-1", headers=store.headers),
    ):
        assert (status, body["error"]["code"]) == (409, "lease_lost"), body
    assert await Store(kit).rows() == []
    assert stored_files(tmp_path / "state") == []
    assert len(part_files(tmp_path / "state")) == 2, "its successor may go on"


async def test_a_lease_that_runs_out_by_the_clock_is_over_before_anybody_swept(kit: Kit, clock: FakeClock) -> None:
    store, data = await pod(kit), some(CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    await run_out(kit, store, clock)
    assert (await store.chunk(upload, 0, data))[1]["error"]["code"] == "lease_lost"


async def test_a_lease_that_is_lost_in_the_middle_of_a_chunk_ends_it(
    kit: Kit, clock: FakeClock, tmp_path: Path
) -> None:
    store, data = await pod(kit), some(3 << 20)
    upload = (await store.begin(data))[1]["upload"]
    lost = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield data[: 1 << 20]
        await lost.wait()
        yield data[1 << 20 :]

    sending = asyncio.create_task(store.chunk(upload, 0, slowly(), **{"Content-Length": str(len(data))}))
    await until(lambda: sum(path.stat().st_size for path in part_files(tmp_path / "state")) >= 1 << 20)
    await forced(kit, store, clock)
    lost.set()
    status, body = await sending
    assert (status, body["error"]["code"]) == (409, "lease_lost")


async def test_the_commit_looks_at_the_lease_once_more(
    kit: Kit, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost between the last look and the transaction: not listed, and its content does not stay."""
    store, data = await pod(kit), some(CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    await store.chunk(upload, 0, data)
    artifacts = kit.commander.core.artifacts
    place = artifacts.content.place

    def placed(*given: Any) -> None:
        place(*given)
        future = asyncio.run_coroutine_threadsafe(kit.commander.core.orders.force(
            "run-1", 1, "me", "", pod_gone=True
        ), loop)  # fmt: skip
        future.result(5)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(artifacts.content, "place", placed)
    status, body = await store.finish(upload)
    assert (status, body["error"]["code"]) == (409, "lease_lost")
    assert (await Store(kit).rows(), stored_files(tmp_path / "state")) == ([], [])


async def test_the_successor_goes_on_with_what_was_begun(kit: Kit, clock: FakeClock) -> None:
    store, data = await pod(kit), some(2 * CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    await store.chunk(upload, 0, data[:CHUNK])
    await released(kit, store, clock)
    successor = await pod(kit, worker="successor")
    assert (await successor.begin(data))[1] == {"upload": upload, "offset": CHUNK}
    row = await successor.put(data)
    assert (row["by"], row["epoch"]) == ("successor", 2)


async def test_who_lost_the_lease_has_no_part_in_what_its_successor_goes_on_with(kit: Kit, clock: FakeClock) -> None:
    """They know the same upload by the same id."""
    store, data = await pod(kit), some(2 * CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    await store.chunk(upload, 0, data[:CHUNK])
    await released(kit, store, clock)
    successor = await pod(kit, worker="successor")
    assert (await successor.begin(data))[1]["upload"] == upload
    for answer in (
        await store.chunk(upload, CHUNK, bytes(CHUNK)),
        await store.finish(upload),
        await store.ask("GET", f"/uploads/{upload}"),
        await store.ask("DELETE", f"/uploads/{upload}"),
    ):
        assert (answer[0], answer[1]["error"]["code"]) == (409, "lease_lost")
    assert (await successor.put(data))["epoch"] == 2


async def test_every_request_about_an_upload_shows_the_lease(kit: Kit) -> None:
    store, other, data = await pod(kit), await pod(kit, "run-2", "pod-2"), some(CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    for headers, status in (
        ({}, 403), (other.headers, 404), (store.headers | {"X-Relay-Lease": OTHER}, 403),
        (store.headers | {"X-Relay-Epoch": "7"}, 409), (store.headers | {"X-Relay-Epoch": "x"}, 422),
    ):  # fmt: skip
        for method, path in (("PATCH", ""), ("GET", ""), ("POST", "/finish"), ("DELETE", "")):
            given = {**headers, "Upload-Offset": "0", "X-Bare": "1"}
            answered, _ = await store.ask(
                method, f"/uploads/{upload}{path}", data if method == "PATCH" else None, given
            )
            assert answered == status, (method, headers)
    assert await store.offset(upload) == 0
    mine = (await Store(kit).begin(data, "report", kind="file"))[1]["upload"]
    assert (await store.chunk(mine, 0, data))[0] == 404, "an operator's upload is no pod's"


@pytest.mark.parametrize(
    ("lease", "status", "code"),
    [
        ({"token": OTHER}, 403, "not_holder"),
        ({"epoch": 2}, 409, "lease_lost"),
        ({"epoch": 0}, 409, "lease_lost"),
        ({"run_id": "run-2"}, 403, "not_holder"),
        ({"run_id": "nobody"}, 404, "unknown_run"),
    ],
)
async def test_a_lease_that_is_not_ones_own(kit: Kit, lease: dict[str, Any], status: int, code: str) -> None:
    store = await pod(kit)
    await pod(kit, "run-2", "pod-2")
    answered, body = await store.begin(some(10), **lease)
    assert (answered, body["error"]["code"]) == (status, code)


async def test_a_pod_reads_its_own_run_and_no_other(kit: Kit) -> None:
    one, two = await pod(kit), await pod(kit, "run-2", "pod-2")
    mine, others = await one.put(some(10)), await two.put(some(10, 2))
    assert (await one.get(mine["id"]))[0] == 200
    assert (await one.ask("GET", f"/{mine['id']}", headers=one.headers))[1]["artifact"] == mine
    for path, headers in (
        ("", one.headers), ("?run=run-2", one.headers), (f"/{others['id']}", one.headers),
        (f"/{others['id']}/content", one.headers), (f"/{others['id']}", one.headers | {"X-Relay-Run": "run-2"}),
        ("?run=run-2", one.headers | {"X-Relay-Run": "run-2"}), (f"/{mine['id']}", {}), ("?run=run-1", {}),
        (f"/{mine['id']}", one.headers | {"X-Relay-Lease": OTHER}),
        (f"/{mine['id']}", one.headers | {"X-Relay-Lease": "é"}),
    ):  # fmt: skip
        status, body = await one.ask("GET", path, headers=headers)
        assert (status, body["error"]["code"]) in ((403, "forbidden"), (403, "not_holder")), (path, headers)
    for epoch in ("2", "x", "-1", ""):
        status, body = await one.ask("GET", f"/{mine['id']}", headers=one.headers | {"X-Relay-Epoch": epoch})
        assert status == (409 if epoch == "2" else 422), epoch


async def test_only_an_operator_verifies_and_deletes(kit: Kit) -> None:
    store = await pod(kit)
    row = await store.put(some(10))
    for method, path in (("POST", f"/{row['id']}/verify"), ("DELETE", f"/{row['id']}")):
        status, body = await store.ask(method, path, headers=store.headers)
        assert (status, body["error"]["code"]) == (403, "forbidden")
    assert await store.names() == ["step_00000001"]


async def test_an_operator_attaches_to_any_run_and_to_no_unknown_one(kit: Kit, clock: FakeClock) -> None:
    held = await pod(kit)
    await released(kit, held, clock)
    operator = Store(kit)
    row = await operator.put(b"loss: 1\n", "report.yaml", kind="file")
    assert (row["by"], row["epoch"], row["kind"]) == ("operator", 1, "file")
    status, body = await Store(kit, run_id="nobody").begin(b"x")
    assert (status, body["error"]["code"]) == (404, "unknown_run")


@pytest.mark.parametrize("role", [None, "wrong"])
async def test_without_a_token_there_is_nothing(kit: Kit, role: str | None) -> None:
    headers = {} if role is None else {"Authorization": f"Bearer {'x' * 64}"}
    for method, path in (
        ("GET", ""), ("POST", "/uploads"), ("PATCH", f"/uploads/{'a' * 32}"), ("GET", "/1"), ("GET", "/1/content"),
        ("DELETE", "/1"), ("POST", "/1/verify"), ("POST", f"/uploads/{'a' * 32}/finish"),
    ):  # fmt: skip
        url = kit.commander.url + "/api/artifacts" + path
        async with kit.session.request(method, url, headers=headers) as answer:
            assert answer.status == 401


async def test_what_a_pod_calls_by_the_commanders_names_is_filed_as_its_own(kit: Kit) -> None:
    store = await pod(kit)
    assert store.agent is not None
    await store.agent.state({"type": "event", "kind": "artifact.stored", "message": "made up", "data": {}})
    assert (await kit.kinds("run-1"))[-1] == "agent.artifact.stored"
    assert sha(b"") not in str(await kit.events("run-1"))


async def test_a_hash_of_another_run_gives_a_pod_nothing(kit: Kit) -> None:
    """Neither the content, nor that it is there; who runs the commander may link it, who has both runs may send it."""
    one, two, data = await pod(kit), await pod(kit, "run-2", "pod-2"), some(CHUNK)
    row = await one.put(data)
    status, begun = await two.begin(data)
    assert (status, begun.get("stored", False), begun.get("offset", 0)) == (200, False, 0)
    assert begun == {**(await two.begin(some(CHUNK, 9), "step_00000009"))[1], "upload": begun["upload"]}, "as any other"
    assert (await two.finish(begun["upload"]))[1]["error"]["code"] == "incomplete"
    assert await two.rows() == []
    assert (await two.chunk(begun["upload"], 0, some(CHUNK, 5)))[0] == 200
    assert (await two.finish(begun["upload"]))[1]["error"]["code"] == "wrong_hash"
    assert await two.rows() == []
    assert await one.get(row["id"]) == (200, data)
    assert (await two.put(data))["run_id"] == "run-2", "sent whole, it is"
    assert (await two.begin(data, "step_00000002", step=2))[1]["stored"]
