"""A pod's side of the artifact store: its jobs done in this process, against a real commander."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

from artifact_kit import Store as Pod
from checkpoint_kit import RUN, put

from relay_agent.artifacts.calls import FAR
from relay_agent.artifacts.jobs import Archive, Kept, Put, Store
from relay_agent.checkpoints.publish import Published
from relay_agent.sending.child import Refused, told, work_for
from relay_agent.sending.protocol import Failed
from relay_agent.volume.volume import RunFolder
from relaytui.archive.pack import Pack


class Tell:
    """What a job says and asks. `on` is called with each of it; `allow`: what it may do."""

    def __init__(self, on: Callable[[str], None] = lambda what: None, *, allow: bool = True) -> None:
        self.phases: list[str] = []
        self.moved: list[tuple[int, int]] = []
        self.allow = allow
        self.on = on

    def phase(self, name: str) -> None:
        self.phases.append(name)
        self.on(name)

    def progress(self, done: int, total: int) -> None:
        self.moved.append((done, total))
        self.on(f"at {done}")

    def may(self, what: str) -> None:
        self.on(f"may {what}")
        self.still(what)

    def still(self, what: str) -> None:
        if not self.allow:
            raise Refused(what)

    def at(self, place: str) -> None: ...


def where(pod: Pod, **more: Any) -> Store:
    agent, kit = pod.agent, pod.kit
    assert agent is not None
    more = {"timeout": 20.0} | more
    return Store(kit.commander.url, more.pop("secret", kit.worker), pod.run_id, agent.epoch, agent.token, **more)


async def done(job: Any, tell: Tell | None = None) -> Any:
    """The result; what it raises, as the child tells it, is `Failing`."""

    def work() -> Any:
        try:
            return work_for(FAR, job)(job, tell or Tell())  # type: ignore[arg-type]
        except Refused:
            raise
        except Exception as error:
            raise Failing(told(FAR, job, error)) from error

    return await asyncio.to_thread(work)


class Failing(Exception):  # noqa: N818 - what a child tells, raised
    def __init__(self, failed: Failed) -> None:
        super().__init__(failed)
        self.failed = failed


def archive_of(checkpoint: Published) -> Archive:
    """What it has to become, packed by hand."""
    data = b"".join(Pack(checkpoint.path).chunks())
    return Archive(hashlib.sha256(data).hexdigest(), len(data))


async def sent(
    store: Store, checkpoint: Published, tell: Tell | None = None, *, final: bool = False, note: str = ""
) -> Kept:
    job = Put(store, str(checkpoint.path), checkpoint.manifest_sha256, final, note)
    kept: Kept = await done(job, tell)
    return kept


def published(run: RunFolder, step: int, size: int = 0, epoch: int = 1) -> Published:
    """Of a trainer whose weights are `size` bytes that do not get smaller."""
    assert run.run_id == RUN
    if not size:
        return put(run, epoch, step)
    return saved(run, {"weights.bin": noise(size, step)}, step, epoch)


def saved(run: RunFolder, files: dict[str, bytes], step: int = 1, epoch: int = 1) -> Published:
    """Of a trainer that saves those."""
    from relay_agent.checkpoints.publish import publish
    from relay_agent.checkpoints.staging import Staged

    path = run.staging(epoch) / f"step_{step}"
    path.mkdir(parents=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    (path / "COMPLETE").touch()
    return publish(run, Staged(step, path), epoch, lambda: True)


def noise(size: int, seed: int) -> bytes:
    import random

    return random.Random(seed).randbytes(size)
