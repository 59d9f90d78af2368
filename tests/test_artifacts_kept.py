"""What the artifact store keeps: within quotas and the room on its disk, the newest of each run, and whole."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from artifact_kit import CHUNK, Store, content, flip, part_files, pod, sha, some, stored_files
from commander_kit import FakeClock, Kit, running, until

from relaytui.commander.model import artifacts as model
from relaytui.commander.model.artifacts import gives_way, in_words
from relaytui.commander.services import artifact_care, uploads
from relaytui.commander.settings import CommanderSettings
from relaytui.commander.store.backup import back_up
from relaytui.commander.store.restore import restore
from relaytui.wire.artifacts import ArtifactKind, ArtifactRow
from relaytui.wire.errors import RelayError


@pytest.fixture
async def kit(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Kit]:
    settings: dict[str, Any] = {"artifact_quota": 10 * CHUNK, "artifact_run_quota": 5 * CHUNK}
    async with running(tmp_path / "state", clock, **settings) as kit:
        yield kit


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


# -- room ----------------------------------------------------------------------------------------------------------


async def test_beyond_the_quota_nothing_is_sent(kit: Kit, state: Path) -> None:
    one, two, three = [await pod(kit, f"run-{n}", f"pod-{n}") for n in (1, 2, 3)]
    await one.put(some(3 * CHUNK))
    status, body = await one.begin(some(2 * CHUNK + 1, 2), "step_00000002")
    assert (status, body["error"]["code"]) == (507, "quota")
    assert body["error"]["message"] == (
        "run run-1 has 300 kB of 500 kB here: no room for 200 kB more; "
        "delete some (`relay-tui artifacts delete`), or raise RELAY_ARTIFACT_RUN_QUOTA at the commander"
    )
    operator = Store(kit)
    assert (await operator.begin(some(2 * CHUNK, 2), "step_00000002"))[0] == 200, (
        "what was announced counts from now on"
    )
    status, body = await one.begin(some(1, 3), "step_00000003")
    assert body["error"]["code"] == "quota"
    await two.put(some(5 * CHUNK, 4))
    status, body = await three.begin(some(1, 5))
    assert (status, body["error"]["code"]) == (507, "quota")
    assert body["error"]["message"] == (
        "the store holds 1 MB of 1 MB: no room for 1 B more; "
        "delete some (`relay-tui artifacts delete`), or raise RELAY_ARTIFACT_QUOTA at the commander"
    )
    assert len(part_files(state)) == 0
    assert (await three.begin(some(3 * CHUNK)))[0] == 507, "what is here already is the run's, too"


async def test_uploads_of_a_lease_that_is_over_give_way_to_the_next_ones(kit: Kit, state: Path) -> None:
    store, data = await pod(kit), some(4 * CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    await store.chunk(upload, 0, data[:CHUNK])
    await kit.force("run-1", 1, pod_gone=True)
    successor = await pod(kit, worker="successor")
    row = await successor.put(some(2 * CHUNK, 2), "step_00000002")
    assert row["epoch"] == 3
    assert part_files(state) == []


async def test_uploads_on_their_way_and_rows_are_counted(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaytui.commander.services.artifact_room.MAX_ROWS", 3)
    await pod(kit)
    store = Store(kit)
    for n in range(model.MAX_UNFINISHED):
        assert (await store.begin(some(1, n), f"file-{n}", kind="file"))[0] == 200
    status, body = await store.begin(some(1, 99), "file-99", kind="file")
    assert (status, body["error"]["code"]) == (507, "too_many")
    for n in range(3):
        await store.put(some(1, n), f"file-{n}", kind="file")
    status, body = await store.begin(some(1, 99), "file-99", kind="file")
    assert (status, body["error"]["code"]) == (507, "too_many")


async def test_the_disk_keeps_a_reserve_and_the_state_never_suffers(
    kit: Kit, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = kit.commander.core.artifacts
    reserve = kit.commander.settings.artifact_reserve
    other, store, data = await pod(kit), Store(kit), some(2 * CHUNK)
    monkeypatch.setattr(artifacts.content, "free", lambda: reserve + 2 * CHUNK - 1)
    status, body = await store.begin(data)
    assert (status, body["error"]["code"]) == (507, "store_full")
    monkeypatch.setattr(artifacts.content, "free", lambda: reserve + 2 * CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    assert (await other.begin(some(1, 2), "step_00000002"))[1]["error"]["code"] == "store_full", "announced"
    assert (await store.chunk(upload, 0, data[:CHUNK]))[0] == 200
    monkeypatch.setattr(artifacts.content, "free", lambda: reserve + 10)
    status, body = await store.chunk(upload, CHUNK, data[CHUNK:])
    assert (status, body["error"]["code"], body["offset"]) == (507, "store_full", CHUNK)
    assert body["error"]["message"] == (
        "the store's disk has 10 B to spare: no room for 100 kB; "
        "delete some (`relay-tui artifacts delete`), or raise the room on its disk at the commander"
    )
    monkeypatch.setattr(artifacts.content, "free", lambda: reserve + CHUNK)
    assert (await store.chunk(upload, CHUNK, data[CHUNK:]))[0] == 200
    assert (await store.finish(upload))[0] == 200


@pytest.mark.parametrize(
    ("number", "status", "code"), [(errno.ENOSPC, 507, "store_full"), (errno.EDQUOT, 507, "store_full"),
                                   (errno.EIO, 503, "store_failed")],
)  # fmt: skip
async def test_a_disk_that_fails_in_the_middle_of_a_chunk(
    kit: Kit, state: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int, code: str
) -> None:
    store, data = await pod(kit), some(4 << 20)
    kit.commander.core.artifacts.quota = kit.commander.core.artifacts.run_quota = 1 << 30
    upload = (await store.begin(data))[1]["upload"]
    pwrite, written = os.pwrite, 0

    def full(handle: int, piece: Any, at: int) -> int:
        nonlocal written
        if at + len(piece) > 2_500_000:
            room = 2_500_000 - at
            if room > 0:
                return pwrite(handle, piece[:room], at)
            raise OSError(number, os.strerror(number))
        return pwrite(handle, piece, at)

    with monkeypatch.context() as patch:
        patch.setattr("relaytui.commander.store.content.os.pwrite", full)
        answered, body = await store.chunk(upload, 0, data)
        assert (answered, body["error"]["code"], body["offset"]) == (status, code, 2_500_000), body
        assert "\n" not in str(body)
    assert (await store.chunk(upload, 2_500_000, data[2_500_000:]))[0] == 200
    assert (await store.finish(upload))[0] == 200
    assert (await store.get(1))[1] == data


async def test_a_flood_of_chunks_waits_and_renewals_do_not(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """All places taken by pods that send nothing, all threads by a disk that does not answer."""
    monkeypatch.setattr(uploads, "TURN_WITHIN", 0.2)
    stores = [await pod(kit, f"run-{n}", f"pod-{n}") for n in range(uploads.AT_ONCE + 1)]
    hold, data = asyncio.Event(), some(100)

    async def never() -> AsyncIterator[bytes]:
        yield data[:10]
        await hold.wait()

    begun = [(await store.begin(some(100, n)))[1]["upload"] for n, store in enumerate(stores)]
    sending = [
        asyncio.create_task(store.chunk(upload, 0, never(), **{"Content-Length": "100"}))
        for store, upload in zip(stores[:-1], begun[:-1], strict=True)
    ]
    places = kit.commander.core.artifacts.uploads._places
    await until(places.locked)
    status, body = await stores[-1].chunk(begun[-1], 0, some(100, uploads.AT_ONCE))
    assert (status, body["error"]["code"], body["offset"]) == (409, "busy", 0)
    for store in stores:
        assert store.agent is not None
        assert (await store.agent.renew())["type"] == "renewed"
    for task in sending:
        task.cancel()
    hold.set()
    await asyncio.gather(*sending, return_exceptions=True)
    await until(lambda: not places.locked())


# -- what gives way ------------------------------------------------------------------------------------------------


def row(number: int, **more: Any) -> ArtifactRow:
    return ArtifactRow(number, "run-1", ArtifactKind.CHECKPOINT, f"step_{number}", "ab" * 32, 1, 1.0, "pod", **more)


@pytest.mark.parametrize(
    ("rows", "keep", "gone"),
    [
        ([row(3), row(2), row(1)], 3, []),
        ([row(4), row(3), row(2), row(1)], 2, [2, 1]),
        ([row(4), row(3), row(2, final=True), row(1, final=True)], 2, [1]),
        ([row(4, damaged="x"), row(3), row(2), row(1)], 2, [1]),
        ([row(4, damaged="x"), row(3, damaged="x")], 1, []),
        ([row(4), row(3, damaged="x"), row(2, damaged="x", final=True), row(1, final=True)], 1, [3, 2]),
        ([row(4), row(3), row(2), row(1)], 0, []),
    ],
)
def test_the_newest_stay_and_the_newest_final_one(rows: list[ArtifactRow], keep: int, gone: list[int]) -> None:
    assert [each.id for each in gives_way(rows, keep)] == gone


def test_sizes_in_words() -> None:
    sizes = (0, 999, 1_000, 1_549, 999_499, 999_999, 20 * 10**9, 10**18)
    assert [in_words(size) for size in sizes] == [
        "0 B",
        "999 B",
        "1 kB",
        "1.55 kB",
        "999 kB",
        "1 MB",
        "20 GB",
        "1e+03 PB",
    ]


@pytest.mark.parametrize(
    ("said", "size"), [("0", 0), ("500M", 500 * 10**6), ("20 GB", 20 * 10**9), ("1Ti", 1 << 40), ("20gib", 20 << 30)]
)
def test_sizes_as_people_say_them(said: str, size: int) -> None:
    assert CommanderSettings.from_env({"RELAY_ARTIFACT_QUOTA": said}, state="/tmp/x").artifact_quota == size


@pytest.mark.parametrize("said", ["-1", "1.5G", "G", "20X", "9" * 17, "٣", "1e9"])
def test_sizes_that_are_none(said: str) -> None:
    with pytest.raises(RelayError, match="RELAY_ARTIFACT_QUOTA") as caught:
        CommanderSettings.from_env({"RELAY_ARTIFACT_QUOTA": said}, state="/tmp/x")
    assert caught.value.exit_code == 2


async def test_the_oldest_give_way_and_so_do_their_bytes(kit: Kit, state: Path) -> None:
    store = await pod(kit)
    await store.put(some(10), "step_00000001", final=True)
    for n in (2, 3, 4, 5):
        await store.put(some(10, n), f"step_{n:08d}")
    for n in range(4):
        await store.put(some(10, 10 + n), "report.json", kind="file")
        await store.put(some(10, 20 + n), f"rollout-{n}.jsonl", kind="file")
    names = await store.names()
    assert [name for name in names if name.startswith("step")] == [f"step_{n:08d}" for n in (1, 3, 4, 5)]
    assert names.count("report.json") == 3
    assert sum(name.startswith("rollout") for name in names) == 4
    assert sha(some(10, 2)) not in stored_files(state)
    deleted = [event for event in await kit.events("run-1") if event["kind"] == "artifact.deleted"]
    assert [event["data"]["name"] for event in deleted] == ["step_00000002", "report.json"]
    assert deleted[0]["message"] == "checkpoint step_00000002 gives way: the newest 3 are kept"
    assert deleted[0]["actor"] == "commander"


async def test_an_operator_deletes_and_the_history_says_who(kit: Kit, state: Path) -> None:
    one, two, data = await pod(kit), await pod(kit, "run-2", "pod-2"), some(10)
    first, second = await one.put(data), await two.put(data)
    headers = {"X-Relay-Actor": "alice"}
    status, body = await one.ask("DELETE", f"/{first['id']}?why=not+needed", headers=headers, role="operator")
    assert (status, body["artifact"]) == (200, first)
    assert stored_files(state) == [sha(data)], "another run has it"
    event = (await kit.events("run-1"))[-1]
    assert (event["kind"], event["actor"], event["message"]) == ("artifact.deleted", "alice", "not needed")
    assert (await one.ask("DELETE", f"/{first['id']}", role="operator"))[0] == 404
    await one.ask("DELETE", f"/{second['id']}", role="operator")
    assert stored_files(state) == []


async def test_the_manifest_of_a_checkpoint_that_is_deleted_goes_with_it(kit: Kit, state: Path) -> None:
    """It stayed behind, and nothing could be made of it. One that another checkpoint has, and people's files, stay."""
    store, manifest = await pod(kit), some(20, 2)
    seal = {"manifest_sha256": sha(manifest), "step": 1}
    await store.put(some(10, 9), "notes.json", kind="file")
    await store.put(manifest, "checkpoint.manifest.json", kind="file", **seal)
    first = await store.put(some(30, 3), "step_00000001", **seal)
    again = await store.put(some(40, 4), "step_00000001.e00000002", **seal)
    await store.ask("DELETE", f"/{first['id']}", role="operator")
    assert await store.names() == ["notes.json", "checkpoint.manifest.json", "step_00000001.e00000002"]
    await store.ask("DELETE", f"/{again['id']}", role="operator")
    assert await store.names() == ["notes.json"]
    assert stored_files(state) == [sha(some(10, 9))]
    last = (await kit.events("run-1"))[-1]
    assert (last["kind"], last["data"]["name"]) == ("artifact.deleted", "checkpoint.manifest.json")


async def test_who_listens_sees_what_comes_is_damaged_and_goes(kit: Kit, state: Path) -> None:
    store, feed, data = await pod(kit), await kit.feed(), some(CHUNK)
    row = await store.put(data)
    assert (await feed.until(lambda body: body["type"] == "artifact"))["artifact"] == row
    flip(content(state, data))
    await verified(store, row["id"])
    assert (await feed.until(lambda body: body["type"] == "artifact"))["artifact"]["damaged"]
    await store.ask("DELETE", f"/{row['id']}", role="operator")
    gone = await feed.until(lambda body: body["type"] == "artifact_gone")
    assert (gone["run_id"], gone["id"]) == ("run-1", row["id"])


async def test_a_run_says_the_newest_step_that_is_stored_whole(state: Path, clock: FakeClock) -> None:
    """In its row, so that a list can show it, also after the commander was started again."""
    async with running(state, clock) as kit:
        store = await pod(kit)
        assert "stored_step" not in await kit.run("run-1")
        for n in (1, 2, 3):
            await store.put(some(10, n), f"step_{n:08d}", step=n)
        await store.put(some(10, 9), "report.json", kind="file")
        assert (await kit.run("run-1"))["stored_step"] == 3
        flip(content(state, some(10, 3)))
        newest = next(row for row in await store.rows() if row["name"] == "step_00000003")
        await verified(store, newest["id"])
        assert (await kit.run("run-1"))["stored_step"] == 2, "what is damaged is not there"
        second = next(row for row in await store.rows() if row["name"] == "step_00000002")
        await store.ask("DELETE", f"/{second['id']}", role="operator")
        assert (await kit.run("run-1"))["stored_step"] == 1
    async with running(state, clock) as kit:
        assert (await kit.run("run-1"))["stored_step"] == 1


# -- whole ---------------------------------------------------------------------------------------------------------


async def verified(store: Store, artifact: int) -> dict[str, Any]:
    while True:
        status, body = await store.ask("POST", f"/{artifact}/verify", role="operator")
        assert status == 200, body
        if body["over"]:
            return body


async def test_a_flipped_bit_is_found_and_said(kit: Kit, state: Path, clock: FakeClock) -> None:
    one, two, data = await pod(kit), await pod(kit, "run-2", "pod-2"), some(CHUNK)
    first, second = await one.put(data), await two.put(data)
    clock.advance(100.0)
    body = await verified(one, first["id"])
    assert (body["hashed"], body["artifact"]["verified_at"]) == (CHUNK, clock.wall())
    flip(content(state, data))
    body = await verified(one, first["id"])
    assert body["artifact"]["damaged"] == "its bytes are not what they were"
    for store in (one, two):
        assert (await store.rows())[0]["damaged"]
        assert (await kit.kinds(store.run_id)).count("artifact.damaged") == 1
        status, answer = await store.get(first["id"] if store is one else second["id"])
        assert (status, answer["error"]["code"]) == (409, "damaged")
    await verified(one, first["id"])
    assert (await kit.kinds("run-1")).count("artifact.damaged") == 1, "said once"
    assert not (await one.begin(data))[1].get("stored"), "what is damaged is not there"
    assert await one.put(data) == first | {"verified_at": clock.wall()}
    assert (await two.get(second["id"]))[1] == data, "and mended for all that have it"
    assert (await one.ask("POST", "/99/verify", role="operator"))[0] == 404


@pytest.mark.parametrize("harm", ["missing", "short", "a folder", "a link"])
async def test_content_that_is_not_there_is_said(kit: Kit, state: Path, harm: str) -> None:
    store, data = await pod(kit), some(CHUNK)
    artifact = (await store.put(data))["id"]
    path = content(state, data)
    if harm == "short":
        os.truncate(path, 5)
    else:
        path.unlink()
    if harm == "a folder":
        path.mkdir()
    elif harm == "a link":
        path.symlink_to("/etc/passwd")
    if harm in ("missing", "short"):  # who asks for it finds out; else the next look does
        status, body = await store.get(artifact)
        assert (status, body["error"]["code"]) == (409, "damaged")
    await kit.commander.core.care.sweep()
    assert (await store.rows())[0]["damaged"] == "its content is missing, or cut off"
    assert (await verified(store, artifact))["artifact"]["damaged"]
    if harm != "a folder":
        assert "damaged" not in await store.put(data)


async def test_what_nobody_finishes_goes_after_a_day(kit: Kit, state: Path, clock: FakeClock) -> None:
    await pod(kit)
    store, data = Store(kit), some(2 * CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    clock.advance(80_000.0)
    await store.chunk(upload, 0, data[:CHUNK])
    (state / "artifacts" / "uploads" / ("c" * 32)).write_bytes(b"of nobody")
    clock.advance(80_000.0)
    await kit.commander.core.care.sweep()
    assert [path.name for path in part_files(state)] == [upload], "its last byte is not a day old"
    clock.advance(10_000.0)
    await kit.commander.core.care.sweep()
    assert part_files(state) == []
    assert (await Store(kit).ask("GET", f"/uploads/{upload}"))[0] == 404


async def test_content_without_a_row_stays_a_while_and_is_known_again(
    kit: Kit, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, data = await pod(kit), some(CHUNK)
    for each in (data, some(10, 2)):
        content(state, each).parent.mkdir(parents=True, exist_ok=True)
        content(state, each).write_bytes(each)
    await kit.commander.core.care.sweep()
    assert "stored" not in (await store.begin(data))[1], "to a pod nobody's: it may be another run's"
    ask = {"run_id": "run-1", "kind": "file", "name": "found", "sha256": sha(data), "size": len(data)}
    assert (await store.ask("POST", "/uploads", ask, role="operator"))[1]["stored"]
    monkeypatch.setattr(artifact_care, "UNKNOWN_FOR", -10.0)
    await kit.commander.core.care.sweep()
    assert stored_files(state) == [sha(data)]


async def test_a_backup_that_is_put_back_says_what_it_has_no_bytes_of(state: Path, clock: FakeClock) -> None:
    kept, gone, later = some(10), some(10, 2), some(10, 3)
    async with running(state, clock) as kit:
        store = await pod(kit)
        await store.put(kept, "kept.txt", kind="file")
        await store.put(gone, "gone.txt", kind="file")
        half = (await store.begin(some(CHUNK, 4)))[1]["upload"]
        backup = await asyncio.to_thread(back_up, state, clock.wall())
        await store.chunk(half, 0, some(CHUNK, 4)[:50])
        await store.put(later, "later.txt", kind="file")
        await store.ask("DELETE", "/2", role="operator")
    restore(state, backup, clock.wall())
    async with running(state, clock) as kit:
        operator = Store(kit)
        await kit.commander.core.care.sweep()
        assert {row["name"]: row.get("damaged", "") for row in await operator.rows()} == {
            "kept.txt": "", "gone.txt": "its content is missing, or cut off",
        }  # fmt: skip
        assert (await operator.begin(later, "later.txt", kind="file"))[1]["stored"], "offered again, it is known"
        assert "artifact.damaged" in await kit.kinds("run-1")


# -- ranges --------------------------------------------------------------------------------------------------------


RANGES: list[tuple[dict[str, str], int, int, int]] = [
    ({}, 200, 0, CHUNK),
    ({"Range": "bytes=0-9"}, 206, 0, 10),
    ({"Range": f"bytes={CHUNK - 5}-"}, 206, CHUNK - 5, CHUNK),
    ({"Range": "bytes=-7"}, 206, CHUNK - 7, CHUNK),
    ({"Range": f"bytes=10-{CHUNK * 9}"}, 206, 10, CHUNK),
    ({"Range": f"bytes=-{CHUNK * 9}"}, 206, 0, CHUNK),
    ({"Range": "bytes=5-9", "If-Range": '"SHA"'}, 206, 5, 10),
    ({"Range": "bytes=5-9", "If-Range": '"other"'}, 200, 0, CHUNK),
    ({"If-None-Match": '"SHA"'}, 304, 0, 0),
    ({"Range": f"bytes={CHUNK}-"}, 416, 0, 0),
    ({"Range": "bytes=9-5"}, 416, 0, 0),
    ({"Range": "lines=1-2"}, 416, 0, 0),
    ({"Range": "bytes=0-1,4-5"}, 416, 0, 0),
]


@pytest.mark.parametrize("sendfile", [True, False])
async def test_ranges(kit: Kit, sendfile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    store, data = await pod(kit), some(CHUNK)
    artifact = (await store.put(data))["id"]
    if not sendfile:

        async def none(*given: Any, **more: Any) -> int:
            raise NotImplementedError

        monkeypatch.setattr(asyncio.get_running_loop(), "sendfile", none)
    url = f"{kit.commander.url}/api/artifacts/{artifact}/content"
    for headers, status, first, last in RANGES:
        named = {name: value.replace("SHA", sha(data)) for name, value in headers.items()}
        async with kit.session.get(url, headers=kit.headers("operator") | named) as answer:
            body = await answer.read()
            assert answer.status == status, (headers, body)
            if status in (200, 206):
                assert body == data[first:last], headers
                assert answer.headers["ETag"] == f'"{sha(data)}"'
                assert answer.headers["Accept-Ranges"] == "bytes"
            if status == 206:
                assert answer.headers["Content-Range"] == f"bytes {first}-{last - 1}/{CHUNK}"
    assert (await store.get(artifact))[1] == data, "the connection is still good"
