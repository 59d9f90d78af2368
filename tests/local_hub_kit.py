"""Fixtures for the tests of the test hub: a hub, and one real client for a whole file of tests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import programs
import pytest

from tests.hub import RealClient, TestHub
from tests.hub.store import Tree, large

REPO = "relay/run-1"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealClient]:
    with RealClient(home=tmp_path_factory.mktemp("home"), by=programs.Popen) as client:
        yield client


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[TestHub]:
    async with TestHub(tmp_path / "hub") as hub:
        hub.store.create(REPO, "model", private=True, author="relay")
        yield hub


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def checkpoint(hub: TestHub, step: int, files: dict[str, bytes], *, run: dict[str, Any] | None = None) -> Tree:
    """The tree of a whole checkpoint as Relay puts it there; its files are stored as large objects."""
    repo = hub.repo(REPO)
    rows = [{"path": path, "size": len(data), "sha256": sha256(data)} for path, data in sorted(files.items())]
    manifest = {
        "relay_manifest": 1,
        "run_id": "run-1",
        "name": f"step_{step:08}",
        "step": step,
        "epoch": 1,
        "files": rows,
    }
    tree: Tree = {}
    for path, data in files.items():
        repo.objects[hub.content.put(data)] = len(data)
        tree[f"checkpoint/{path}"] = large(sha256(data), len(data))
    said = {"run_id": "run-1", "complete": True} if run is None else run
    tree["checkpoint/manifest.json"] = hub.store.small(json.dumps(manifest).encode())
    tree["relay/run.json"] = hub.store.small(json.dumps(said).encode())
    return tree


def put(hub: TestHub, tag: str, tree: Tree) -> str:
    """A commit of exactly that tree and a tag on it; its oid."""
    repo = hub.repo(REPO)
    repo.tags[tag] = oid = hub.store.add(repo, "main", tree, tag, "", "relay").oid
    return oid
