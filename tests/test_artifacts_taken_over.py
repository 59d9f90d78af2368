"""An upload passes from one lease to the next, in whatever moment: only the later one's bytes and words count."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from artifact_kit import CHUNK, Store, pod, sha, some
from commander_kit import Kit, ended, until

from relaytui.commander.http.bodies import body_of
from relaytui.commander.services import uploads
from relaytui.wire.artifacts import FinishUpload
from relaytui.wire.errors import RelayError

LATE: dict[str, Any] = {"sha256": None, "manifest_sha256": "ab" * 32, "size": CHUNK}
"""Of an upload that says at its end what it is."""


async def succeed(kit: Kit, store: Store) -> Store:
    """The pod after it."""
    assert store.agent is not None
    await store.agent.state(ended("preempted"))
    return await pod(kit, store.run_id, "successor")


class Between:
    """The body of a chunk, in pieces; between the first one and the others something happens."""

    def __init__(self, pieces: list[bytes], happens: Callable[[], Awaitable[None]]) -> None:
        self._pieces = pieces
        self._happens = happens
        self._given = 0

    async def readany(self) -> bytes:
        if self._given == 1:
            await self._happens()
        self._given += 1
        return self._pieces.pop(0)


@pytest.mark.parametrize("pieces", [2, 3])
async def test_a_chunk_ends_where_its_upload_passes_to_a_later_lease(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """What comes after that is nobody's, though it is in the middle of a chunk and its last piece; what came before is
    good."""
    monkeypatch.setattr(uploads, "PIECE", 10)
    store, data = await pod(kit), some(CHUNK)
    upload, taking = (await store.begin(data))[1]["upload"], list[Any]()

    async def take_over() -> None:
        successor = await succeed(kit, store)
        taking.extend((successor, asyncio.create_task(successor.begin(data))))
        coming = kit.commander.core.artifacts.uploads.coming[upload]
        await until(lambda: coming.upload.epoch == 2)

    body = Between([data[:50], *[b"x" * 20] * (pieces - 1)], take_over)
    length = 50 + 20 * (pieces - 1)
    with pytest.raises(RelayError) as caught:
        await kit.commander.core.artifacts.uploads.receive(upload, 0, length, body)
    assert caught.value.code == "lease_lost"
    successor, begun = taking
    assert await begun == (200, {"upload": upload, "offset": 50})
    assert (await successor.put(data))["epoch"] == 2


async def test_a_chunk_of_an_upload_that_is_gone_is_nobodys(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was begun anew, with another size, by the same pod."""
    monkeypatch.setattr(uploads, "PIECE", 10)
    store, data, begun = await pod(kit), some(CHUNK), list[str]()
    upload = (await store.begin(b"", **LATE | {"size": 2 * CHUNK}))[1]["upload"]

    async def begin_anew() -> None:
        begun.append((await store.begin(b"", **LATE))[1]["upload"])

    body = Between([data[:50], data[50:70]], begin_anew)
    with pytest.raises(RelayError) as caught:
        await kit.commander.core.artifacts.uploads.receive(upload, 0, 70, body)
    assert (caught.value.code, begun == [upload]) == ("unknown_upload", False)
    assert (await store.chunk(begun[0], 0, data)) == (200, {"offset": CHUNK})


async def test_who_waits_for_its_turn_is_the_one_that_it_was(kit: Kit) -> None:
    """Its lease was over before it came: it speaks for no successor."""
    store, data = await pod(kit), some(CHUNK)
    upload = (await store.begin(data))[1]["upload"]
    artifacts = kit.commander.core.artifacts
    coming = artifacts.uploads.coming[upload]
    async with coming.lock:
        waiting = [
            asyncio.create_task(store.ask("DELETE", f"/uploads/{upload}")),
            asyncio.create_task(store.chunk(upload, 0, bytes(CHUNK))),
            asyncio.create_task(store.finish(upload)),
        ]
        await until(lambda: coming.users == 3)
        successor = await succeed(kit, store)
        taking = asyncio.create_task(successor.begin(data))
        await until(lambda: coming.upload.epoch == 2)
    for answer in waiting:
        assert (await answer)[1]["error"]["code"] == "lease_lost"
    assert (await taking)[1]["upload"] == upload
    assert (await successor.put(data))["epoch"] == 2


async def test_an_end_that_is_still_being_said_is_said_of_no_successors_upload(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose it is was seen before its body came."""
    store, data = await pod(kit), some(CHUNK)
    upload = (await store.begin(b"", **LATE))[1]["upload"]
    assert (await store.chunk(upload, 0, data))[0] == 200
    successors: list[Store] = []

    async def slowly(*given: Any) -> Any:
        told = await body_of(*given)
        if told == FinishUpload(sha(b"other"), CHUNK):
            successors.append(await succeed(kit, store))
            assert (await successors[0].begin(b"", **LATE))[1] == {"upload": upload, "offset": CHUNK}
        return told

    monkeypatch.setattr("relaytui.commander.http.artifacts.body_of", slowly)
    wrong = {"sha256": sha(b"other"), "size": CHUNK}
    assert (await store.ask("POST", f"/uploads/{upload}/finish", wrong))[1]["error"]["code"] == "lease_lost"
    right = {"sha256": sha(data), "size": CHUNK}
    assert (await successors[0].ask("POST", f"/uploads/{upload}/finish", right))[0] == 200


async def test_an_end_that_was_said_wrong_takes_nothing_from_the_successor(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is lost while its bytes are looked at."""
    store, data = await pod(kit), some(CHUNK)
    upload = (await store.begin(b"", **LATE))[1]["upload"]
    assert (await store.chunk(upload, 0, data))[0] == 200
    inside, taking = kit.commander.core.artifacts.uploads, list[Any]()
    coming, offset = inside.coming[upload], inside.offset

    async def taken_over(given: uploads.Coming) -> int:
        monkeypatch.setattr(inside, "offset", offset)
        successor = await succeed(kit, store)
        taking.extend((successor, asyncio.create_task(successor.begin(b"", **LATE))))
        await until(lambda: coming.upload.epoch == 2)
        return await offset(given)

    monkeypatch.setattr(inside, "offset", taken_over)
    wrong = {"sha256": sha(b"other"), "size": CHUNK}
    assert (await store.ask("POST", f"/uploads/{upload}/finish", wrong))[1]["error"]["code"] == "lease_lost"
    assert await taking[1] == (200, {"upload": upload, "offset": CHUNK})
