"""What is replaced in the real code while a world runs: pids, randomness, threads' sockets, the disk's system calls."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import random
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import relay_agent.attempt.attempt
import relay_agent.attempt.holding
import relay_agent.attempt.running
import relay_agent.checkpoints.publisher
import relay_agent.checkpoints.tree
import relay_agent.link.link
import relay_agent.pod.pod
import relay_agent.pod.takeover
import relay_agent.runner
import relay_agent.trainer.command
import relay_agent.trainer.supervise
import relay_agent.volume.volume
import relaytui.commander.store.database
from relay_agent.checkpoints.disk import Disk
from relaytui.commander.store.database import Schema
from tests.faults.sim.loop import PROCESS, Dead, Process
from tests.faults.sim.net import SimContact
from tests.faults.sim.pod import PodHost, sync_noted
from tests.faults.sim.trainer import SimSupervised

if TYPE_CHECKING:
    from tests.faults.sim.world import World

GROWING = ("create", "write", "mkdir", "symlink", "link")


@contextlib.contextmanager
def patched(world: World) -> Iterator[None]:
    rng = random.Random(world.seed * 7 + 1)

    def urandom(size: int) -> bytes:
        return rng.randbytes(size)

    def getpid() -> int:
        process = PROCESS.get()
        return process.pid if process is not None else 1

    def pod() -> PodHost:
        process = PROCESS.get()
        assert process is not None
        assert isinstance(process.host, PodHost)
        return process.host

    replaced: list[tuple[Any, str, Any]] = [
        (os, "urandom", urandom),
        (os, "getpid", getpid),
        (secrets, "token_hex", lambda size=32: urandom(size).hex()),
        (secrets, "token_bytes", urandom),
        (signal, "signal", lambda number, handler: None),
        (sys, "stderr", _Said(world)),
        (relay_agent.runner, "random", SimpleNamespace(Random=lambda: random.Random(rng.random()))),
        (relay_agent.runner, "Contact", world.contact),
        # What only looks whether there is something to do, and was most of the work of a world.
        (relay_agent.checkpoints.publisher, "LOOK_EVERY", 2.0),
        (relay_agent.link.link, "SYNC_EVERY", 3.0),
        (relay_agent.attempt.running, "_ticking", _ticking),
        (relay_agent.trainer.command, "pod_environment", lambda environ: {"PATH": os.defpath}),  # other tests' matter
        (Schema, "migrations", _migrations),
        (relaytui.commander.store.database, "check_tables", lambda db, path, migrations: None),
        (relay_agent.attempt.attempt, "Supervised", SimSupervised),
        (relay_agent.attempt.holding, "start_of", lambda pid: pod().start_of(pid)),
        (relay_agent.pod.pod, "start_of", lambda pid: pod().start_of(pid)),
        (relay_agent.pod.pod.Pod, "hold", lambda pod, run_id: True),  # a lock would outlive a simulated death
        (relay_agent.pod.takeover, "_call", lambda folder, guard: (pod().call_guardian(folder), 0)),
        (relay_agent.pod.takeover, "_peer", lambda line: line.guard.process.pid),
        (relay_agent.pod.takeover, "stop_leftovers", lambda guard: pod().stop_leftovers(guard)),
        (relay_agent.trainer.supervise, "stop_leftovers", lambda guard: pod().stop_leftovers(guard)),
        (relay_agent.trainer.supervise, "thaw", lambda pid: None),
        (relay_agent.trainer.supervise, "kill_tree", lambda guard, root, pid: pod().stop_leftovers(guard)),
        (relay_agent.checkpoints.tree, "ThreadPoolExecutor", _Inline),
        (relay_agent.pod.pod.Pod, "hold", _released_at_death(getattr(relay_agent.pod.pod.Pod, "hold", None))),
        (relay_agent.volume.volume, "renames_in_one_step", lambda place, disk=None: world.plan.atomic),
    ]
    calls = ("create", "write", "fsync", "rename", "link", "symlink", "mkdir", "unlink", "rmdir")
    replaced += [(Disk, name, _watched(world, name, getattr(Disk, name))) for name in calls]
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.ExitStack() as stack:
            for target, name, value in [*replaced, *(world.bug.replaced if world.bug is not None else ())]:
                stack.enter_context(mock.patch.object(target, name, value, create=name in ("deadline", "hold")))
            yield
    finally:
        logging.disable(before)


async def _ticking(follower: Any) -> None:
    while True:
        await asyncio.sleep(1.0)
        follower.tick()


_migrations = functools.cache(Schema.migrations)
"""Files that are read at each start of a commander."""


def _watched(world: World, name: str, original: Any) -> Any:
    def call(disk: Disk, *args: Any, **given: Any) -> Any:
        process = PROCESS.get()
        if process is None or process is world.loop.root:
            return original(disk, *args, **given)
        if not process.alive:
            raise Dead
        after = False
        if process.calls_left > 0:
            process.calls_left -= 1
            if process.calls_left == 0:
                after = world.loop.rng.random() < 0.5
                if not after:
                    if name == "write" and (part := args[1][: len(args[1]) // 2]):
                        original(disk, args[0], part)
                    world.loop.on_crash(process)
                    raise Dead
        if name in GROWING and (world.faults.volume_full or getattr(process.host, "full", False)):
            _refuse_when_full(world, process, name, args, given)
        result = original(disk, *args, **given)
        if name == "fsync":
            sync_noted(process.host, args[0])
        elif name in ("rename", "link"):
            _tell(world, process, name, args, given)
        elif name == "unlink" and os.fspath(args[0]).endswith("manifest.json"):
            world.observer.unlinked(_place(args[0], given.get("dir_fd")))
        if after:
            world.loop.on_crash(process)
            raise Dead
        return result

    return call


def _place(name: Any, dir_fd: int | None) -> str:
    if dir_fd is None:
        return os.fspath(name)  # type: ignore[no-any-return]
    return f"{os.readlink(f'/proc/self/fd/{dir_fd}')}/{os.fspath(name)}"  # noqa: PTH115


def _refuse_when_full(world: World, process: Process, name: str, args: Any, given: Any) -> None:
    if name == "write":
        path = os.readlink(f"/proc/self/fd/{args[0]}")  # noqa: PTH115
    else:
        path = _place(args[1] if name in ("link", "symlink") else args[0], given.get("dir_fd"))
    on_volume = path.startswith(f"{world.volume}/")
    if world.faults.volume_full if on_volume else getattr(process.host, "full", False):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def _tell(world: World, process: Process, name: str, args: Any, given: Any) -> None:
    source, target = (_place(each, given.get("dir_fd")) for each in args)
    if target.startswith(f"{world.volume}/"):
        world.observer.moved(process, source, target, linked=name == "link")


def _released_at_death(hold: Any) -> Any:
    """The kernel lets go of the lock of a process that dies."""

    def held(pod: Any, run_id: str) -> Any:
        first, process = hold(pod, run_id), PROCESS.get()
        lock = getattr(pod, "_lock", None)
        if first and process is not None and isinstance(lock, int) and lock >= 0:
            process.on_death.append(lambda: os.close(lock))
        return first

    return held


class _Inline:
    """Stands for a pool of threads."""

    def __init__(self, *args: Any, **given: Any) -> None:
        pass

    def __enter__(self) -> _Inline:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def shutdown(self, **given: object) -> None:
        pass

    map = staticmethod(map)

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        done = Future[Any]()
        try:
            done.set_result(work(*args))
        except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
            done.set_exception(error)
        return done


class _Said:
    """Stands for stderr: what agents say goes into the world's story."""

    def __init__(self, world: World) -> None:
        self._world = world

    def write(self, text: str) -> None:
        process = PROCESS.get()
        if text.strip() and process is not None:
            self._world.log(process, text.strip())
            if "internal error" in text:
                self._world.loop.troubles.append(text.strip())

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        raise OSError("no file behind it")


def contact_of(world: World) -> type[SimContact]:
    return type("Contact", (SimContact,), {"net": world.net, "commander": world.commander.host})
