"""Uploads that nobody finishes: they cost nobody the room of the store, and give way to what is begun."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from artifact_kit import CHUNK, Store, part_files, pod, sha, some
from commander_kit import FakeClock, Kit, ended, running, until

from relaytui.commander.model.artifact_room import Held, Room, make_room
from relaytui.commander.model.artifacts import MAX_UNFINISHED, Upload
from relaytui.wire.artifacts import ArtifactKind
from relaytui.wire.errors import RelayError

ROOM, MANIFEST = Room(100, 50, 1_000), "ab" * 32


@pytest.fixture
async def kit(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Kit]:
    settings: dict[str, Any] = {"artifact_quota": 10 * CHUNK, "artifact_run_quota": 5 * CHUNK}
    async with running(tmp_path / "state", clock, **settings) as kit:
        yield kit


async def left_behind(store: Store, chunks: int, seed: int) -> str:
    """An upload that broke off in its middle."""
    data = some(chunks * CHUNK, seed)
    status, begun = await store.begin(data, f"step_{seed:08d}")
    assert status == 200, begun
    assert (await store.chunk(begun["upload"], 0, data[:CHUNK]))[0] == 200
    upload: str = begun["upload"]
    return upload


async def is_there(store: Store, upload: str) -> bool:
    status, _ = await store.ask("GET", f"/uploads/{upload}", role="operator", headers={"X-Bare": "1"})
    return status != 404


# -- which of them -------------------------------------------------------------------------------------------------


def upload(number: int, size: int, run_id: str = "run-1") -> Upload:
    name = f"step_{number}"
    return Upload(f"{number}", run_id, ArtifactKind.CHECKPOINT, name, "ab" * 32, size, float(number), "pod", True, 1)


OTHERS = [upload(1, 30, "run-2"), upload(2, 20), upload(3, 10, "run-2"), upload(4, 0), upload(5, 20)]


@pytest.mark.parametrize(
    ("size", "held", "room", "gone"),
    [
        (10, Held(80, 40, 3), ROOM, []),
        (11, Held(80, 40, 3), ROOM, ["2"]),  # its run's quota: others' would not help
        (31, Held(80, 40, 3), ROOM, ["2", "5"]),
        (10, Held(100, 40, 3), ROOM, ["1"]),  # the store's
        (10, Held(130, 40, 3), ROOM, ["1", "2"]),
        (20, Held(100, 40, 3), ROOM, ["2"]),  # what its own run's quota needs helps here, too
        (10, Held(80, 40, 3), Room(100, 50, 9), ["1"]),  # the disk
        (10, Held(80, 40, 3), Room(100, 50, -25), ["1", "2"]),
        (10, Held(80, 40, MAX_UNFINISHED), ROOM, ["2"]),
        (0, Held(80, 50, MAX_UNFINISHED + 1), ROOM, ["2", "4"]),
    ],
)
def test_as_many_give_way_as_are_needed_and_help(size: int, held: Held, room: Room, gone: list[str]) -> None:
    assert [one.upload for one in make_room(upload(9, size), held, room, OTHERS)] == gone


RUN_QUOTA, QUOTA, DISK = (
    f"; delete some (`relay-tui artifacts delete`), or raise {what} at the commander"
    for what in ("RELAY_ARTIFACT_RUN_QUOTA", "RELAY_ARTIFACT_QUOTA", "the room on its disk")
)
"""What to do is in the message itself."""


@pytest.mark.parametrize(
    ("size", "held", "room", "code", "words"),
    [
        (51, Held(80, 40, 3), ROOM, "quota", "run run-1 has 40 B of 50 B here: no room for 51 B more" + RUN_QUOTA),
        (10, Held(181, 40, 3), ROOM, "quota", "the store holds 181 B of 100 B: no room for 10 B more" + QUOTA),
        (
            10,
            Held(80, 40, 3),
            Room(100, 50, -75),
            "store_full",
            "the store's disk has 0 B to spare: no room for 10 B" + DISK,
        ),
        (10, Held(80, 40, MAX_UNFINISHED + 3), ROOM, "too_many", "run run-1 has 8 uploads on their way"),
    ],
)
def test_where_all_of_them_would_not_do_none_gives_way(
    size: int, held: Held, room: Room, code: str, words: str
) -> None:
    with pytest.raises(RelayError) as caught:
        make_room(upload(9, size), held, room, OTHERS)
    assert (caught.value.code, caught.value.message) == (code, words)


# -- over real sockets ---------------------------------------------------------------------------------------------


async def test_what_an_agent_left_behind_gives_way_to_what_it_sends_next(kit: Kit, tmp_path: Path) -> None:
    """Of its own lease: an agent sends one thing at a time."""
    store = await pod(kit)
    first, second = await left_behind(store, 2, 1), await left_behind(store, 2, 2)
    await store.put(some(3 * CHUNK, 3), "step_00000003")
    assert [await is_there(store, one) for one in (first, second)] == [False, True], "no more than is needed"
    assert [path.name for path in part_files(tmp_path / "state")] == [second]
    await store.put(some(2 * CHUNK, 4), "step_00000004")
    assert await store.names() == ["step_00000003", "step_00000004"]


async def test_what_ended_runs_left_behind_costs_other_runs_nothing(kit: Kit) -> None:
    one, two, three = [await pod(kit, f"run-{n}", f"pod-{n}") for n in (1, 2, 3)]
    begun = [await left_behind(store, 5, n) for n, store in enumerate((one, two))]
    status, body = await three.begin(some(CHUNK, 3))
    assert (status, body["error"]["code"]) == (507, "quota"), "those of live leases are theirs"
    assert two.agent is not None
    await two.agent.state(ended("completed"))
    await three.put(some(CHUNK, 3))
    assert [await is_there(one, upload) for upload in begun] == [True, False]


async def test_it_does_not_give_way_for_what_there_is_no_room_for_anyway(kit: Kit) -> None:
    store = await pod(kit)
    await store.put(some(3 * CHUNK, 1))
    upload = await left_behind(store, 2, 2)
    assert (await store.begin(some(2 * CHUNK + 1, 3), "step_00000003"))[0] == 507
    assert await store.offset(upload) == CHUNK


async def test_too_many_give_way_too(kit: Kit) -> None:
    store = await pod(kit)
    begun = [(await store.begin(some(1, n), f"file-{n}", kind="file"))[1]["upload"] for n in range(MAX_UNFINISHED)]
    assert (await store.begin(some(1, 99), "file-99", kind="file"))[0] == 200
    assert [await is_there(store, upload) for upload in begun] == [False] + [True] * (MAX_UNFINISHED - 1)


async def test_room_on_the_disk_is_made_too(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    artifacts, store = kit.commander.core.artifacts, await pod(kit)
    reserve = kit.commander.settings.artifact_reserve
    upload = await left_behind(store, 2, 1)
    monkeypatch.setattr(artifacts.content, "free", lambda: reserve + CHUNK)
    assert (await store.begin(some(2 * CHUNK + 1, 2), "step_00000002"))[0] == 507
    assert await is_there(store, upload)
    assert (await store.begin(some(2 * CHUNK, 2), "step_00000002"))[0] == 200
    assert not await is_there(store, upload)


async def test_one_whose_chunk_comes_in_does_not_give_way(kit: Kit) -> None:
    store, data, go = await pod(kit), some(5 * CHUNK), asyncio.Event()
    upload = (await store.begin(data))[1]["upload"]

    async def slowly() -> AsyncIterator[bytes]:
        yield data[:CHUNK]
        await go.wait()
        yield data[CHUNK:]

    sending = asyncio.create_task(store.chunk(upload, 0, slowly(), **{"Content-Length": str(len(data))}))
    await until(lambda: kit.commander.core.artifacts.uploads.coming[upload].lock.locked())
    status, body = await store.begin(some(1, 2), "step_00000002")
    assert (status, body["error"]["code"]) == (507, "quota")
    go.set()
    assert await sending == (200, {"offset": len(data)})
    assert (await store.finish(upload))[0] == 200


async def test_an_operators_upload_does_not_give_way(kit: Kit) -> None:
    store, operator = await pod(kit), Store(kit)
    upload = await left_behind(operator, 5, 1)
    assert (await store.begin(some(1, 2)))[0] == 507
    assert (await operator.begin(some(1, 3), "step_00000003"))[0] == 507
    assert await operator.offset(upload) == CHUNK


# -- begun again -----------------------------------------------------------------------------------------------


async def succeed(kit: Kit, store: Store) -> Store:
    """The pod after it."""
    assert store.agent is not None
    await store.agent.state(ended("preempted"))
    return await pod(kit, store.run_id, "successor")


async def begin_open(store: Store, size: int) -> tuple[int, Any]:
    """What it is, is said at its end."""
    return await store.begin(b"", sha256=None, size=size, step=1, manifest_sha256=MANIFEST)


async def finish_open(store: Store, upload: str, data: bytes) -> tuple[int, Any]:
    return await store.ask("POST", f"/uploads/{upload}/finish", {"sha256": sha(data), "size": len(data)})


@pytest.mark.parametrize("later", [False, True])
async def test_an_open_one_takes_the_size_that_it_is_begun_with_again(kit: Kit, later: bool) -> None:
    """As long as what is there is not more than that; and there is room for it."""
    store, data = await pod(kit), some(3 * CHUNK)
    upload = (await begin_open(store, 2 * CHUNK))[1]["upload"]
    assert (await store.chunk(upload, 0, data[:CHUNK]))[0] == 200
    store = await succeed(kit, store) if later else store
    status, body = await begin_open(store, 5 * CHUNK + 1)
    assert (status, body["error"]["code"]) == (507, "quota")
    for size in (CHUNK, 5 * CHUNK, 3 * CHUNK):
        assert await begin_open(store, size) == (200, {"upload": upload, "offset": CHUNK})
        assert (await store.ask("GET", "", role="operator"))[1]["bytes"] == size
    assert (await store.chunk(upload, CHUNK, data[CHUNK:]))[0] == 200
    assert (await finish_open(store, upload, data))[0] == 200


async def test_an_open_one_that_came_further_than_its_new_size_begins_anew(kit: Kit, tmp_path: Path) -> None:
    store, data = await pod(kit), some(CHUNK)
    upload = (await begin_open(store, 4 * CHUNK))[1]["upload"]
    assert (await store.chunk(upload, 0, some(2 * CHUNK, 9)))[0] == 200
    status, begun = await begin_open(store, CHUNK)
    assert (status, begun.get("offset", 0), begun["upload"] != upload) == (200, 0, True)
    assert (part_files(tmp_path / "state"), await is_there(store, upload)) == ([], False)
    assert (await store.chunk(begun["upload"], 0, data))[0] == 200
    assert (await finish_open(store, begun["upload"], data))[0] == 200


async def test_a_size_is_known_after_a_restart_too(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as kit:
        store = await pod(kit)
        upload = (await begin_open(store, 4 * CHUNK))[1]["upload"]
        assert (await store.chunk(upload, 0, some(2 * CHUNK)))[0] == 200
    async with running(tmp_path / "state") as kit:
        operator, store.kit = Store(kit), kit
        assert (await begin_open(store, 2 * CHUNK))[1] == {"upload": upload, "offset": 2 * CHUNK}
        assert (await begin_open(store, 2 * CHUNK - 1))[1]["upload"] != upload
        assert not await is_there(operator, upload)


async def test_one_that_said_another_size_is_replaced_by_a_later_lease_alone(kit: Kit) -> None:
    store, data = await pod(kit), some(2 * CHUNK)
    upload = (await store.begin(data, size=5))[1]["upload"]
    status, body = await store.begin(data)
    assert (status, body["error"]["message"]) == (422, "size: begun with 5 bytes")
    successor = await succeed(kit, store)
    assert (await successor.put(data))["by"] == "successor"
    assert not await is_there(successor, upload)
