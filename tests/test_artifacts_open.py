"""Checkpoints whose archive is made while it is sent: what it is, is said at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from artifact_kit import CHUNK, Store, content, flip, part_files, pod, sha, some, stored_files
from commander_kit import Kit, running

MANIFEST, OTHER = "ab" * 32, "cd" * 32
MOST = 4 * CHUNK


@pytest.fixture
async def store(kit: Kit) -> Store:
    return await pod(kit)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


async def begin(store: Store, manifest: str | None = MANIFEST, **more: Any) -> tuple[int, Any]:
    return await store.begin(b"", sha256=None, size=MOST, step=1, manifest_sha256=manifest, **more)


async def finish(store: Store, upload: str, data: bytes, **more: Any) -> tuple[int, Any]:
    return await store.ask("POST", f"/uploads/{upload}/finish", {"sha256": sha(data), "size": len(data)} | more)


async def put(store: Store, data: bytes, **more: Any) -> dict[str, Any]:
    begun = (await begin(store, **more))[1]
    for at in range(begun.get("offset", 0), len(data), CHUNK):
        assert (await store.chunk(begun["upload"], at, data[at : at + CHUNK]))[0] == 200
    status, done = await finish(store, begun["upload"], data)
    assert status == 200, done
    row: dict[str, Any] = done["artifact"]
    return row


async def used(store: Store) -> int:
    found: int = (await store.ask("GET", "", role="operator"))[1]["bytes"]
    return found


async def test_it_is_what_its_end_says(store: Store, state: Path) -> None:
    data = some(2 * CHUNK + 17)
    row = await put(store, data)
    assert (row["sha256"], row["size"], row["manifest_sha256"]) == (sha(data), len(data), MANIFEST)
    assert await store.get(row["id"]) == (200, data)
    assert await used(store) == len(data), "not what it was announced as"
    assert part_files(state) == []


async def test_what_is_there_by_its_manifest_is_not_sent_again(kit: Kit, store: Store) -> None:
    row = await put(store, some(CHUNK))
    assert await begin(store) == (200, {"stored": True, "artifact": row})
    marked = await begin(store, final=True)
    assert marked[1]["artifact"] == row | {"final": True}
    assert not (await begin(store, OTHER))[1].get("stored")
    other = await pod(kit, "run-2", "pod-2")
    assert not (await begin(other))[1].get("stored"), "of its own run alone a pod may know"
    exact = await store.put(some(CHUNK), manifest_sha256=MANIFEST, step=1)
    assert exact["id"] == row["id"], "nor where its hash is known"


async def test_until_its_end_it_counts_with_what_it_may_become(kit: Kit, store: Store) -> None:
    kit.commander.core.artifacts.run_quota = MOST - 1
    assert (await begin(store))[1]["error"]["code"] == "quota"
    kit.commander.core.artifacts.run_quota = MOST + 1
    upload = (await begin(store))[1]["upload"]
    assert await used(store) == MOST
    assert (await store.chunk(upload, 0, some(CHUNK)))[0] == 200
    assert (await store.chunk(upload, CHUNK, some(MOST)))[0] == 413, "more than it said that it may be"


async def test_it_goes_on_where_it_was(store: Store) -> None:
    data = some(2 * CHUNK)
    upload = (await begin(store))[1]["upload"]
    assert (await store.chunk(upload, 0, data[:CHUNK]))[0] == 200
    assert await begin(store) == (200, {"upload": upload, "offset": CHUNK})
    assert (await put(store, data))["sha256"] == sha(data)


async def test_another_checkpoint_of_its_name_begins_anew(store: Store, state: Path) -> None:
    upload = (await begin(store))[1]["upload"]
    assert (await store.chunk(upload, 0, some(CHUNK)))[0] == 200
    status, other = await begin(store, OTHER)
    assert (status, other.get("offset", 0), other["upload"] != upload) == (200, 0, True)
    assert (await store.ask("GET", f"/uploads/{upload}"))[0] == 404
    assert part_files(state) == [], "what came of the one before is gone"


@pytest.mark.parametrize(
    ("more", "words"),
    [({"kind": "file"}, "sha256"), ({"manifest_sha256": None}, "sha256"), ({"sha256": ""}, "sha256")],
)
async def test_only_a_checkpoint_that_is_named_may_say_so_late(store: Store, more: dict[str, Any], words: str) -> None:
    body = {"sha256": None, "size": MOST, "step": 1, "manifest_sha256": MANIFEST} | more
    status, answer = await store.begin(b"", **body)
    assert (status, words in answer["error"]["message"]) == (422, True)


async def test_an_end_that_says_too_little_or_too_much_is_refused(store: Store) -> None:
    data = some(CHUNK)
    upload = (await begin(store))[1]["upload"]
    assert (await store.chunk(upload, 0, data))[0] == 200
    for wrong in ({"size": MOST + 1}, {"size": -1}, {"sha256": "zz"}, {"sha256": None}):
        assert (await finish(store, upload, data, **wrong))[0] == 422
    assert (await store.finish(upload))[0] == 422, "it must say what it is"
    assert (await store.ask("POST", f"/uploads/{upload}/finish", b"{"))[0] == 400
    status, body = await finish(store, upload, data, size=CHUNK + 1)
    assert (status, body["error"]["code"], body["offset"]) == (409, "incomplete", CHUNK)
    assert (await finish(store, upload, data))[0] == 200
    assert (await finish(store, upload, data))[1]["artifact"]["sha256"] == sha(data), "its answer was lost"


@pytest.mark.parametrize("wrong", [{"sha256": "00" * 32}, {"size": CHUNK - 1}])
async def test_an_end_that_says_something_else_ends_it(store: Store, state: Path, wrong: dict[str, Any]) -> None:
    data = some(CHUNK)
    upload = (await begin(store))[1]["upload"]
    assert (await store.chunk(upload, 0, data))[0] == 200
    status, body = await finish(store, upload, data, **wrong)
    assert (status, body["error"]["code"]) == (422, "wrong_hash")
    assert (stored_files(state), part_files(state)) == ([], [])
    assert (await begin(store))[1].get("offset", 0) == 0


async def test_one_that_said_what_it_is_ends_as_that(store: Store) -> None:
    data = some(CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    assert (await store.chunk(upload, 0, data))[0] == 200
    assert (await finish(store, upload, data, sha256="00" * 32))[0] == 422
    assert (await finish(store, upload, data))[0] == 200


@pytest.mark.parametrize("how", ["gone", "spoilt", "doubted"])
async def test_what_is_lost_or_spoilt_there_is_sent_again(store: Store, state: Path, how: str) -> None:
    data = some(CHUNK)
    row = await put(store, data)
    path = content(state, data)
    if how == "gone":
        path.unlink()
    else:
        flip(path)
    if how == "doubted":
        assert (await store.ask("POST", f"/{row['id']}/doubt", headers=store.headers))[0] == 200
    again = await begin(store)
    assert not again[1].get("stored")
    assert (await put(store, data))["id"] == row["id"]
    assert await store.get(row["id"]) == (200, data)


async def test_only_the_holder_is_told_anything(kit: Kit, store: Store) -> None:
    await put(store, some(CHUNK))
    assert (await begin(store, token="x" * 43))[1]["error"]["code"] == "not_holder"
    assert (await begin(store, run_id="run-9"))[1]["error"]["code"] == "unknown_run"
    assert store.agent is not None
    await store.agent.state({"type": "ended", "outcome": "completed"})
    assert (await begin(store))[1]["error"]["code"] == "lease_lost"


async def test_it_outlives_the_commander(tmp_path: Path) -> None:
    data = some(2 * CHUNK)
    async with running(tmp_path / "state") as kit:
        store = await pod(kit)
        upload = (await begin(store))[1]["upload"]
        assert (await store.chunk(upload, 0, data[:CHUNK]))[0] == 200
    async with running(tmp_path / "state") as kit:
        operator = Store(kit)
        assert (await operator.ask("GET", f"/uploads/{upload}"))[1] == {"offset": CHUNK}
        assert await used(operator) == MOST
