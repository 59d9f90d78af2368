"""Bits of stored content that turn where it lies: who reads it finds it, who offers it again mends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from artifact_kit import CHUNK, Store, content, flip, pod, sha, some
from artifact_pod_kit import Failing, Tell, archive_of, done, published, sent, where
from checkpoint_kit import new_run
from commander_kit import DEADLINE, FakeClock, Kit, running

from relay_agent.artifacts.jobs import ListStored, Offers, Pull
from relaytui.commander.services import artifact_readings
from relaytui.commander.store.content import Content
from relaytui.wire.text import counted

DATA = some(CHUNK)


@pytest.fixture
async def kit(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Kit]:
    async with running(tmp_path, clock) as kit:
        yield kit


@pytest.fixture
def state(kit: Kit) -> Path:
    return kit.commander.core.artifacts.content.root.parent


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Contents that were opened to be read."""
    found, real = list[str](), Content.open

    def opening(self: Content, sha256: str, size: int | None = None) -> Any:
        found.append(sha256)
        return real(self, sha256, size)

    monkeypatch.setattr(Content, "open", opening)
    return found


async def marked(store: Store) -> str:
    """Once a row is: why."""
    async with asyncio.timeout(DEADLINE):
        while not (why := [row["damaged"] for row in await store.rows() if row.get("damaged")]):
            await asyncio.sleep(0.01)
    return str(why[0])


async def test_what_is_offered_again_is_read_before_it_counts_as_stored(kit: Kit, state: Path) -> None:
    store = await pod(kit)
    row = await store.put(DATA)
    assert (await store.begin(DATA))[1]["stored"]
    flip(content(state, DATA))
    status, begun = await store.begin(DATA)
    assert (status, begun.get("stored")) == (200, None), "it is not: it has to be sent"
    assert await marked(store) == "its bytes are not what they were"
    again = await store.put(DATA)
    assert (again["id"], again.get("damaged")) == (row["id"], None)
    assert await store.get(row["id"]) == (200, DATA)
    kinds = await kit.kinds("run-1")
    assert [kind for kind in kinds if kind.startswith("artifact.")] == [
        "artifact.stored", "artifact.damaged", "artifact.mended",
    ]  # fmt: skip


async def test_an_operator_does_not_get_a_rotten_one_either(kit: Kit, state: Path) -> None:
    held, operator = await pod(kit), Store(kit)
    row = await held.put(DATA)
    flip(content(state, DATA))
    again = await operator.put(DATA, "again", kind="file")
    assert again["id"] != row["id"]
    assert content(state, DATA).read_bytes() == DATA
    assert (await kit.kinds("run-1")).count("artifact.mended") == 1, "the other row with the same bytes says so"


async def test_it_is_read_once_and_then_believed_for_a_while(
    kit: Kit, state: Path, clock: FakeClock, opened: list[str]
) -> None:
    store = await pod(kit)
    await store.put(DATA)
    assert (await store.begin(DATA))[1]["stored"]
    assert opened == [], "it was hashed as it came"
    clock.advance(artifact_readings.BELIEVED_FOR + 1)
    assert (await store.agent.renew())["type"] == "renewed"  # type: ignore[union-attr]
    for _ in range(2):
        assert (await store.begin(DATA))[1]["stored"]
    assert opened == [sha(DATA)]


async def test_who_offers_it_does_not_wait_for_ever(kit: Kit, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, go, real = await pod(kit), threading.Event(), Content.open
    await store.put(DATA)

    def slowly(self: Content, sha256: str, size: int | None = None) -> Any:
        assert go.wait(DEADLINE)
        return real(self, sha256, size)

    monkeypatch.setattr(Content, "open", slowly)
    monkeypatch.setattr(artifact_readings, "BEGIN_WITHIN", 0.05)
    content(state, DATA).touch()
    status, body = await store.begin(DATA)
    assert (status, body["error"]["code"]) == (503, "busy")
    go.set()
    async with asyncio.timeout(DEADLINE):
        while (await store.begin(DATA))[0] == 503:
            pass
    assert (await store.begin(DATA))[1]["stored"]


async def test_a_pod_that_doubts_has_it_read_and_no_others(kit: Kit, state: Path, opened: list[str]) -> None:
    store, other = await pod(kit), await pod(kit, "run-2", "pod-2")
    row = await store.put(DATA)
    status, body = await other.ask("POST", f"/{row['id']}/doubt", headers=other.headers)
    assert (status, body["error"]["code"]) == (403, "forbidden")
    assert (await store.ask("POST", f"/{row['id']}/doubt"))[0] in (403, 422), "it shows its lease"
    for _ in range(3):
        assert (await store.ask("POST", f"/{row['id']}/doubt", headers=store.headers))[0] == 200
    assert opened == [], counted(len(opened), "reading") + " of what has just been read"
    flip(content(state, DATA))
    assert (await store.ask("POST", f"/{row['id']}/doubt", headers=store.headers))[0] == 200
    assert await marked(store) == "its bytes are not what they were"


async def test_a_restore_that_finds_it_spoilt_has_it_marked(kit: Kit, state: Path, tmp_path: Path) -> None:
    store, run = await pod(kit), new_run(tmp_path)
    checkpoint = published(run, 1, 50_000)
    archive = archive_of(checkpoint)
    kept = await sent(where(store), checkpoint)
    offers: Offers = await done(ListStored(where(store)))
    offer = offers.offers[0]
    path = state / "artifacts" / "sha256" / archive.sha256[:2] / archive.sha256
    whole = path.read_bytes()
    flip(path)
    place = tmp_path / "place"
    job = Pull(where(store), kept.artifact, offer.archive, offer.step.name, offer.step.bytes, offer.files, str(place))
    with pytest.raises(Failing) as failing:
        await done(job, Tell())
    assert failing.value.failed.code == "not_whole"
    assert await marked(store) == "its bytes are not what they were"
    again = await sent(where(store), checkpoint)
    assert (again.artifact, again.stored, again.sent) == (kept.artifact, False, len(whole))
    assert path.read_bytes() == whole
    assert (await done(job, Tell())).moved


async def test_a_manifest_beside_it_that_is_spoilt_is_marked(kit: Kit, state: Path, tmp_path: Path) -> None:
    store, run = await pod(kit), new_run(tmp_path)
    checkpoint = published(run, 1)
    await sent(where(store), checkpoint)
    manifest = checkpoint.manifest_sha256
    flip(state / "artifacts" / "sha256" / manifest[:2] / manifest)
    offers: Offers = await done(ListStored(where(store)))
    assert "its manifest came with another hash" in offers.offers[0].step.trouble
    assert await marked(store) == "its bytes are not what they were"
