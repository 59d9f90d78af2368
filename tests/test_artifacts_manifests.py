"""A checkpoint's manifest stays as long as the checkpoint does: by it the checkpoint is known, and can be restored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from artifact_kit import Store, pod, sha, some
from commander_kit import Kit, running

NAME = "checkpoint.manifest.json"


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    async with running(tmp_path / "state", artifact_keep_last_n=2) as kit:
        yield kit


async def manifest(store: Store, step: int, *, final: bool = False) -> str:
    """Its hash."""
    data = some(50, 1_000 + step)
    await store.put(data, NAME, kind="file", step=step, manifest_sha256=sha(data), final=final)
    return sha(data)


async def checkpoint(store: Store, step: int, *, final: bool = False) -> int:
    """Its id. The manifest first, as agents do."""
    sealed = await manifest(store, step, final=final)
    name = f"step_{step:08d}"
    row = await store.put(some(20, step), name, step=step, manifest_sha256=sealed, final=final)
    number: int = row["id"]
    return number


async def steps(store: Store) -> tuple[list[int], list[int]]:
    """Of checkpoints, and of manifests."""
    rows = await store.rows()
    kinds = [[row["step"] for row in rows if row["kind"] == kind] for kind in ("checkpoint", "file")]
    return kinds[0], kinds[1]


async def test_manifests_of_checkpoints_that_were_not_stored_push_out_no_others(kit: Kit) -> None:
    store = await pod(kit)
    await checkpoint(store, 1, final=True)
    await checkpoint(store, 2)
    for step in (3, 4, 5):
        await manifest(store, step)
    assert await steps(store) == ([1, 2], [1, 2, 4, 5]), "the newest few of those alone"


async def test_a_checkpoint_that_gives_way_takes_its_manifest_along(kit: Kit) -> None:
    store = await pod(kit)
    await checkpoint(store, 1, final=True)
    for step in (2, 3, 4, 5):
        await checkpoint(store, step)
    assert await steps(store) == ([1, 4, 5], [1, 4, 5])
    deleted = [event["message"] for event in await kit.events("run-1") if event["kind"] == "artifact.deleted"]
    assert deleted == [
        f"{words} step_0000000{step}{end}"
        for step in (2, 3)
        for words, end in (("checkpoint", " gives way: the newest 2 are kept"), ("the manifest of", ", which gave way"))
    ]


async def test_the_manifest_of_two_checkpoints_stays_for_the_second(kit: Kit) -> None:
    store = await pod(kit)
    first = await checkpoint(store, 1)
    sealed = (await store.rows())[0]["sha256"]
    await store.put(some(21, 1), "step_00000001.e00000002", step=1, manifest_sha256=sealed)
    await checkpoint(store, 2)
    assert (await store.ask("GET", f"/{first}", role="operator"))[0] == 404
    assert await steps(store) == ([1, 2], [1, 2])


async def test_files_that_are_called_like_manifests_are_files(kit: Kit) -> None:
    store = await pod(kit)
    await checkpoint(store, 1)
    for n in range(3):
        await store.put(some(30, n), NAME, kind="file", step=10 + n)
    assert await steps(store) == ([1], [1, 11, 12])
