"""Uploads to the artifact store over real sockets: they go on where they were cut off, and are whole or not at all."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from artifact_kit import CHUNK, Store, content, part_files, pod, sha, some, stored_files
from commander_kit import FakeClock, Kit, running, until

from relaytui.commander.services import uploads


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    async with running(tmp_path / "state") as kit:
        yield kit


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


async def test_a_checkpoint_goes_up_in_chunks_and_comes_back(kit: Kit, state: Path) -> None:
    store, data = await pod(kit), some(3 * CHUNK + 17)
    row = await store.put(data, step=1, manifest_sha256="ab" * 32, final=True)
    assert row | {"stored_at": 0, "verified_at": 0} == {
        "id": 1, "run_id": "run-1", "kind": "checkpoint", "name": "step_00000001", "sha256": sha(data),
        "size": len(data), "stored_at": 0, "by": "pod", "epoch": 1, "step": 1, "manifest_sha256": "ab" * 32,
        "final": True, "verified_at": 0,
    }  # fmt: skip
    assert await store.rows() == [row]
    assert await store.get(1) == (200, data)
    assert content(state, data).read_bytes() == data
    assert part_files(state) == []
    assert (content(state, data).stat().st_mode & 0o777, content(state, data).parent.stat().st_mode & 0o777) == (
        0o600, 0o700,
    )  # fmt: skip
    event = (await kit.events("run-1"))[-1]
    assert (event["kind"], event["actor"], event["epoch"]) == ("artifact.stored", "pod", 1)
    assert event["data"] == {
        "id": "1", "kind": "checkpoint", "name": "step_00000001", "bytes": str(len(data)), "sha256": sha(data),
        "step": "1",
    }  # fmt: skip


async def test_of_any_size(kit: Kit) -> None:
    store = await pod(kit)
    for size in (0, 1, CHUNK):
        row = await store.put(some(size), "config.yaml", kind="file")
        assert await store.get(row["id"]) == (200, some(size))


async def test_what_is_stored_is_not_sent_again(kit: Kit, state: Path) -> None:
    first, data = await pod(kit), some(CHUNK)
    row = await first.put(data)
    assert await first.begin(data) == (200, {"stored": True, "artifact": row})
    again = await first.begin(data, "step_00000002", step=2)
    assert again[1]["stored"]
    assert again[1]["artifact"]["name"] == "step_00000002"
    other = await pod(kit, "run-2", "pod-2")
    assert (await other.put(data))["run_id"] == "run-2"
    assert [len(await store.rows()) for store in (first, other)] == [2, 1]
    assert stored_files(state) == [sha(data)]
    assert part_files(state) == []
    assert (await kit.kinds("run-1")).count("artifact.stored") == 2
    status, body = await first.ask("GET", "", role="operator")
    assert (status, body["bytes"]) == (200, len(data)), "what is shared counts once"


async def test_a_wrong_offset_is_answered_with_the_right_one(kit: Kit) -> None:
    store, data = await pod(kit), some(2 * CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    assert (await store.chunk(upload, 0, data[:CHUNK]))[0] == 200
    for offset in (0, CHUNK - 1, CHUNK + 1, 2 * CHUNK):
        status, body = await store.chunk(upload, offset, data[offset : offset + 10] or b"x")
        assert (status, body["error"]["code"], body["offset"]) == (409, "wrong_offset", CHUNK)
    status, body = await store.finish(upload)
    assert (status, body["error"]["code"], body["offset"]) == (409, "incomplete", CHUNK)
    status, body = await store.chunk(upload, CHUNK, data[CHUNK:] + b"x")
    assert (status, body["error"]["code"], body["offset"]) == (413, "too_long", CHUNK)
    assert (await store.begin(data))[1] == {"upload": upload, "offset": CHUNK}, "begun again, it goes on"
    assert (await store.chunk(upload, CHUNK, data[CHUNK:])) == (200, {"offset": 2 * CHUNK})
    assert (await store.finish(upload))[0] == 200


async def test_a_body_that_is_cut_off_is_kept_as_far_as_it_came(
    kit: Kit, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "PIECE", 10_000)
    store, data = await pod(kit), some(2 * CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    port = kit.commander.port
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"PATCH /api/artifacts/uploads/{upload} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpload-Offset: 0\r\n"
        f"Authorization: Bearer {kit.worker}\r\nContent-Length: {len(data)}\r\n"
        + "".join(f"{name}: {value}\r\n" for name, value in store.headers.items())
        + "\r\n"
    )
    writer.write(head.encode() + data[:CHUNK])
    await writer.drain()
    coming = kit.commander.core.artifacts.uploads.coming[upload]
    await until(lambda: part_files(state) and part_files(state)[0].stat().st_size)
    writer.close()
    await until(lambda: not coming.lock.locked())
    at = await store.offset(upload)
    assert 0 < at <= CHUNK
    assert (await store.chunk(upload, at, data[at:]))[0] == 200
    assert (await store.finish(upload))[0] == 200
    assert (await store.get(1))[1] == data


async def test_one_that_falls_silent_is_hung_up_on_and_keeps_what_came(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "IDLE_WITHIN", 0.05)
    store, data = await pod(kit), some(2 * CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    hold = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield data[:CHUNK]
        await hold.wait()

    status, body = await store.chunk(upload, 0, slowly(), **{"Content-Length": str(len(data))})
    hold.set()
    assert (status, body["error"]["code"], body["offset"]) == (408, "stalled", CHUNK)
    assert (await store.chunk(upload, CHUNK, data[CHUNK:]))[0] == 200
    assert (await store.finish(upload))[0] == 200


STRANGE = [
    ({"Transfer-Encoding": "chunked"}, 411, "no_length"),
    ({"Content-Encoding": "gzip"}, 415, "bad_encoding"),
    ({"Upload-Offset": "-1"}, 422, "bad_field"),
    ({"Upload-Offset": "0x10"}, 422, "bad_field"),
    ({"Upload-Offset": "٣"}, 422, "bad_field"),
    ({"Upload-Offset": "9" * 40}, 422, "bad_field"),
    ({"Upload-Offset": ""}, 422, "bad_field"),
    ({"Content-Length": str((32 << 20) + 1)}, 413, "too_large"),
]


async def test_a_chunk_that_says_something_strange(kit: Kit) -> None:
    store = await pod(kit)
    upload = (await store.begin(some(CHUNK)))[1]["upload"]
    port = kit.commander.port
    for headers, status, code in STRANGE:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        lines = {"Host": f"127.0.0.1:{port}", "Authorization": f"Bearer {kit.worker}", "Upload-Offset": "0"}
        lines |= {} if "Transfer-Encoding" in headers else {"Content-Length": "5"}
        text = "".join(f"{name}: {value}\r\n" for name, value in (lines | store.headers | headers).items())
        writer.write(f"PATCH /api/artifacts/uploads/{upload} HTTP/1.1\r\n{text}\r\n".encode())
        answer = await reader.readuntil(b"}}")
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), (headers, answer)
        assert f'"{code}"'.encode() in answer, headers
        writer.close()
    assert await store.offset(upload) == 0


NO_UPLOADS: list[dict[str, object]] = [
    {"name": "../x"}, {"name": "a/b"}, {"name": ""}, {"name": "."}, {"name": "é"}, {"name": "a" * 129},
    {"name": "x\n"}, {"run_id": "../x"}, {"sha256": "AB" * 32}, {"sha256": "ab" * 31}, {"sha256": "../" * 21 + "a"},
    {"size": -1}, {"size": 2**60}, {"size": 1.5}, {"kind": "log"}, {"epoch": -1}, {"token": "short"},
    {"token": None}, {"step": -1}, {"manifest_sha256": "x"}, {"final": "yes"},
]  # fmt: skip


async def test_what_is_no_upload_is_refused_at_the_edge(kit: Kit, state: Path) -> None:
    store = await pod(kit)
    for fields in NO_UPLOADS:
        status, body = await store.begin(some(10), **fields)
        assert (status, body["error"]["code"]) == (422, "bad_field"), fields
    assert not (state / "artifacts").exists()


async def test_an_upload_that_can_be_none_is_no_route(kit: Kit) -> None:
    store = await pod(kit)
    for path in ("/uploads/x", f"/uploads/{'A' * 32}", "/uploads/..%2f..", f"/uploads/{'a' * 33}"):
        assert (await store.ask("GET", path))[0] == 404, path
    assert (await store.ask("GET", f"/uploads/{'a' * 32}"))[1]["error"]["code"] == "unknown_upload"


async def test_bytes_that_are_not_what_was_announced_are_nobodys(kit: Kit, state: Path) -> None:
    store, data = await pod(kit), some(CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    await store.chunk(upload, 0, data[:-1] + b"\0")
    status, body = await store.finish(upload)
    assert (status, body["error"]["code"]) == (422, "wrong_hash")
    assert (await store.finish(upload))[0] == 404
    assert (await store.rows(), stored_files(state), part_files(state)) == ([], [], [])
    assert (await store.put(data))["size"] == CHUNK, "begun anew, it is taken"


async def test_an_answer_to_a_finish_that_was_lost_is_given_again(kit: Kit) -> None:
    store, data = await pod(kit), some(CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    await store.chunk(upload, 0, data)
    first, second = await asyncio.gather(store.finish(upload), store.finish(upload))
    third = await store.finish(upload)
    assert {first[0], second[0], third[0]} == {200}
    assert first[1] == second[1] == third[1]
    assert await store.names() == ["step_00000001"]


async def test_all_who_finish_one_upload_at_once_are_told_the_same(kit: Kit) -> None:
    store, data = await pod(kit), some(CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    assert (await store.chunk(upload, 0, data))[0] == 200
    answers = await asyncio.gather(*(store.finish(upload) for _ in range(6)))
    assert [answer[0] for answer in answers] == [200] * 6
    assert {answer[1]["artifact"]["id"] for answer in answers} == {1}


async def test_two_that_send_one_upload_make_one_artifact(kit: Kit) -> None:
    store, data = await pod(kit), some(8 * CHUNK)
    upload = (await store.begin(data))[1]["upload"]

    async def send() -> None:
        at = 0
        while at < len(data):
            status, body = await store.chunk(upload, at, data[at : at + CHUNK])
            assert (status, body.get("error", {}).get("code")) in ((200, None), (409, "wrong_offset"))
            at = body["offset"]

    await asyncio.gather(send(), send(), send())
    assert (await store.finish(upload))[0] == 200
    assert (await store.get(1))[1] == data


async def test_two_runs_that_send_the_same_bytes_at_once_share_them(kit: Kit, state: Path) -> None:
    one, two, data = await pod(kit), await pod(kit, "run-2", "pod-2"), some(CHUNK)
    begun = [(await store.begin(data))[1]["upload"] for store in (one, two)]
    for store, upload in zip((one, two), begun, strict=True):
        await store.chunk(upload, 0, data)
    assert [answer[0] for answer in await asyncio.gather(one.finish(begun[0]), two.finish(begun[1]))] == [200, 200]
    assert stored_files(state) == [sha(data)]
    mine = (await one.rows())[0]["id"]
    assert (await one.get(mine))[1] == data


async def test_given_up_it_is_gone(kit: Kit, state: Path) -> None:
    store, data = await pod(kit), some(CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    await store.chunk(upload, 0, data)
    assert (await store.ask("DELETE", f"/uploads/{upload}"))[0] == 200
    assert part_files(state) == []
    assert (await store.chunk(upload, 0, data))[0] == 404


async def test_another_commander_goes_on_where_this_one_stopped(tmp_path: Path, state: Path) -> None:
    data, clock = some(3 * CHUNK), FakeClock()
    async with running(state, clock) as kit:
        store = await pod(kit)
        upload = (await store.begin(data))[1]["upload"]
        await store.chunk(upload, 0, data[:CHUNK])
    os.truncate(part_files(state)[0], CHUNK - 5)  # the last bytes never got to the disk
    async with running(state, clock) as kit:
        store.kit = kit
        assert await store.offset(upload) == CHUNK - 5
        assert (await store.chunk(upload, CHUNK - 5, data[CHUNK - 5 :]))[0] == 200
        assert (await store.finish(upload))[0] == 200
        assert (await Store(kit).get(1))[1] == data
