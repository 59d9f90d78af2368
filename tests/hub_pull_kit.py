"""Checkpoints that lie on the test hub already, whatever is wrong with them, and jobs that bring them back."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from checkpoint_kit import RUN
from hub_sync_kit import REPO, run_file

from relay_agent.checkpoints.manifest import read
from relay_agent.hub import layout
from relay_agent.hub.far import list_steps, pull
from relay_agent.hub.protocol import Listed, ListSteps, Pull, Pulled, Where
from relay_agent.sending.protocol import Step
from relay_agent.volume.volume import RunFolder
from tests.hub import TestHub
from tests.hub.store import Entry, large

NONE: Mapping[str, bytes] = MappingProxyType({})


def where(hub: TestHub, token: str = "hf_write", timeout: float = 20.0) -> Where:
    return Where(REPO, token, hub.url, timeout=timeout)


def shelve(
    hub: TestHub,
    run: RunFolder,
    name: str,
    *,
    tag: str = "",
    drop: Collection[str] = (),
    instead: Mapping[str, bytes] = NONE,
    complete: bool = True,
    repo: str = REPO,
) -> str:
    """A published checkpoint as a sync leaves it there; the commit. `drop`: paths in the repository that are missing;
    `instead`: what others hold in its place."""
    if ("model", repo) not in hub.store.repos:
        hub.store.create(repo, "model", True, "relay")
    there, folder = hub.repo(repo), run.ckpt / name
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    contents = {layout.path_of(path): data for path, data in found.items()}
    contents[layout.RUN] = run_file(run, name, complete=complete).encode()
    tree: dict[str, Entry] = {}
    for path, data in {**contents, **instead}.items():
        if path in drop:
            continue
        sha256 = hub.content.put(data)
        lfs = path.endswith(".bin") and bool(data)
        tree[path] = large(sha256, len(data)) if lfs else hub.store.small(data)
        if lfs:
            there.objects[sha256] = len(data)
    oid = hub.store.add(there, "main", tree, name, "", "relay").oid
    there.tags[tag or layout.tag_of(name)] = oid
    return oid


class Tell:
    """What a job says, where it works in this process."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def phase(self, name: str) -> None: ...

    def at(self, place: str) -> None: ...

    def progress(self, done: int, total: int) -> None:
        self.told.append((done, total))


async def listed(hub: TestHub, token: str = "hf_write") -> dict[str, Step]:
    """By tag."""
    job = ListSteps(where(hub, token))
    found: Listed = await asyncio.to_thread(list_steps.work, job, Tell())
    return {step.tag: step for step in found.steps}


def pull_job(hub: TestHub, run: RunFolder, name: str, revision: str, place: Path, **more: Any) -> Pull:
    sha256 = read(run.ckpt / name).sha256
    return Pull(where(hub, timeout=more.pop("timeout", 20.0)), RUN, revision, sha256, str(place), **more)


async def pulled(job: Pull, tell: Tell | None = None) -> Pulled:
    return await asyncio.to_thread(pull.work, job, tell or Tell())


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
