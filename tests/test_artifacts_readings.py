"""What a reading found is said of the file that was read, and of no other that came in its place meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from artifact_kit import CHUNK, Store, content, flip, pod, sha, some
from commander_kit import DEADLINE, FakeClock, Kit, running

from relaytui.commander.services import artifact_care
from relaytui.commander.services.artifacts import ArtifactStore
from relaytui.commander.store.content import Content

DATA = some(CHUNK)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def kit(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Kit]:
    async with running(tmp_path, clock) as kit:
        yield kit


@pytest.fixture
def artifacts(kit: Kit) -> ArtifactStore:
    return kit.commander.core.artifacts


@pytest.fixture
def path(artifacts: ArtifactStore) -> Path:
    return content(artifacts.content.root.parent, DATA)


class Slow:
    """The next file that is opened is handed out when `go` is set: what has its name may be another one by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.go = threading.Event(), threading.Event()
        real = Content.open

        def slowly(content: Content, sha256: str, size: int | None = None) -> Any:
            file = real(content, sha256, size)
            if not self.opened.is_set():
                self.opened.set()
                assert self.go.wait(DEADLINE)
            return file

        monkeypatch.setattr(Content, "open", slowly)

    async def is_open(self) -> None:
        async with asyncio.timeout(DEADLINE):
            while not self.opened.is_set():
                await asyncio.sleep(0.005)


def of_artifacts(kinds: list[str]) -> list[str]:
    return [kind for kind in kinds if kind.startswith("artifact.")]


async def test_what_was_mended_while_the_spoilt_one_was_read_stays_mended(
    kit: Kit, artifacts: ArtifactStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, operator = await pod(kit), Store(kit)
    row = await store.put(DATA)
    flip(path)
    await artifacts.damaged(sha(DATA), "its bytes are not what they were")
    slow = Slow(monkeypatch)
    reading = asyncio.create_task(operator.ask("POST", f"/{row['id']}/verify"))
    await slow.is_open()
    assert (await store.put(DATA)).get("damaged") is None
    slow.go.set()
    status, body = await reading
    assert (status, body["over"], body["artifact"].get("damaged")) == (200, True, None)
    assert await store.get(row["id"]) == (200, DATA)
    assert of_artifacts(await kit.kinds("run-1")) == ["artifact.stored", "artifact.damaged", "artifact.mended"]
    assert (await store.begin(DATA))[1]["stored"], "and it is believed"


async def test_what_went_while_it_was_read_is_not_called_whole(
    kit: Kit, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, operator = await pod(kit), Store(kit)
    row = await store.put(DATA)
    slow = Slow(monkeypatch)
    reading = asyncio.create_task(operator.ask("POST", f"/{row['id']}/verify"))
    await slow.is_open()
    path.unlink()
    slow.go.set()
    _, body = await reading
    assert body["artifact"].get("damaged") == "its content is missing, or cut off"


async def test_what_comes_back_while_it_is_looked_for_is_not_called_missing(
    kit: Kit, artifacts: ArtifactStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, aside = await pod(kit), path.with_name("aside")
    row = await store.put(DATA)
    path.rename(aside)
    slow = Slow(monkeypatch)
    getting = asyncio.create_task(store.get(row["id"]))
    await slow.is_open()
    aside.rename(path)
    slow.go.set()
    assert await getting == (200, DATA)
    assert of_artifacts(await kit.kinds("run-1")) == ["artifact.stored"]


async def test_a_verification_that_nobody_followed_is_no_answer_days_later(
    kit: Kit, artifacts: ArtifactStore, path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at the first question, and `relay-tui artifacts verify` said `whole` of what was read then."""
    store, operator = await pod(kit), Store(kit)
    row = await store.put(DATA)
    slow = Slow(monkeypatch)
    with monkeypatch.context() as hasty:
        hasty.setattr(artifact_care, "ANSWER_WITHIN", 0.01)
        _, body = await operator.ask("POST", f"/{row['id']}/verify")
    assert not body["over"]
    slow.go.set()
    async with asyncio.timeout(DEADLINE):
        while artifacts.readings._going:
            await asyncio.sleep(0.005)
    flip(path)
    clock.advance(86_400.0)
    _, body = await operator.ask("POST", f"/{row['id']}/verify")
    assert (body["over"], body["artifact"].get("damaged")) == (True, "its bytes are not what they were")
