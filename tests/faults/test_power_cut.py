"""The power fails under ext4 on a real block device: what was not flushed is gone, whatever programs had been told.
What is found when it is back is the old state or the new, and holds all that anybody was promised."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest
from agent_rig import Rig, eventually, mock
from checkpoint_kit import Crash, FaultyDisk, names, put, stage, take, whole_names
from commander_kit import Agent, ended, log, started
from disks import Ext4, ext4
from test_commander_durability import Process, keys
from test_commander_durability import put as database_put

from relay_agent import guardian
from relay_agent.checkpoints.prune import prune
from relay_agent.checkpoints.publish import publish
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.staging import Staged
from relay_agent.volume.volume import RunFolder, highest_claim, open_run, read_claim
from relaytui.commander.store.database import RELAY, open_database
from relaytui.commander.store.writer import Writer

LONG = os.environ.get("RELAY_FAULTS") == "long"


class Powered(FaultyDisk):
    """The power of `disk` fails right before call number `at`."""

    def __init__(self, disk: Ext4, at: int, *, flushes: bool = True) -> None:
        super().__init__(at, self._cut)
        self.disk = disk
        self.flushes = flushes
        self.out = False

    def _cut(self) -> BaseException:
        self.out = True
        self.disk.cut()
        return Crash()

    def fsync(self, fd: int) -> None:
        if self.flushes:
            super().fsync(fd)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Ext4]:
    with ext4(tmp_path / "volume", 4) as disk:
        yield disk


def with_two(disk: Ext4, *, atomic: bool = True) -> RunFolder:
    run = RunFolder(open_run(disk.place, "run-1").root, atomic)
    take(run, 1)
    for step in (1, 2):
        put(run, 1, step)
    disk.settle()
    return run


def published(run: RunFolder, disk: Powered) -> bool:
    """Whether whoever published step 3 was told that it is done."""
    try:
        publish(run, Staged(3, run.staging(1) / "step_3"), 1, lambda: True, disk=disk)
    except Crash:
        return False
    except OSError:  # in another of its threads: the power is gone for that one, too
        if not disk.out:
            raise
        return False
    return True


# -- the volume, at every call -------------------------------------------------------------------------------------


@pytest.mark.parametrize("atomic", [True, False], ids=["rename", "manifest"])
def test_at_every_call_of_a_publish(disk: Ext4, atomic: bool) -> None:
    """One volume, cut again and again, one call later each time, and at last right after it was said to be done."""
    run = with_two(disk, atomic=atomic)
    at, told = 0, False
    while not told:
        stage(run, 1, 3)
        told = published(run, Powered(disk, at))
        if told:
            disk.cut()
        disk.again()
        at += 1
        assert whole_names(run) == names(run)
        assert names(run)[:2] == ["step_00000001", "step_00000002"]
        resume = choose(run)
        assert resume is not None
        assert not resume.bad
        assert resume.step == 3 if told else resume.step in (2, 3)
        if not told:
            for path in [run.ckpt / name for name in names(run)[2:]] + list(run.staging(1).iterdir()):
                shutil.rmtree(path)
        open_run(disk.place, "run-1")
        prune(run, 2)
        disk.settle()
    assert at > 15
    take(run, 2, "step_00000003")
    put(run, 2, 4)
    assert whole_names(run)[-1] == "step_00000004"


def test_at_every_call_of_a_claim(disk: Ext4) -> None:
    """Who was told that an epoch is his has it for ever; and none that was claimed is ever free again."""
    run = with_two(disk)
    epoch, at = 1, 0
    while at >= 0:
        epoch = max(epoch, highest_claim(run)) + 1
        try:
            take(run, epoch, "step_00000002", Powered(disk, at))
        except Crash:
            at += 1
        else:
            disk.cut()
            at = -1
        disk.again()
        if at < 0:
            made = read_claim(run, epoch)
            assert made is not None
            assert (made.worker, made.base) == (f"pod-{epoch}", "step_00000002")
        assert choose(run, None) is not None
        assert whole_names(run) == names(run)
    assert highest_claim(run) == epoch > 5


def test_a_publisher_that_does_not_flush_would_be_caught(disk: Ext4) -> None:
    run = with_two(disk)
    stage(run, 1, 3)
    assert published(run, Powered(disk, -1, flushes=False))
    disk.cut()
    disk.again()
    resume = choose(run)
    assert resume is None or resume.step != 3 or resume.bad


# -- the volume of a pod that trains -------------------------------------------------------------------------------


def kill_all(rig: Rig, worker: str) -> None:
    """Everything that ran on the pod."""
    agent = rig.agents[-1]
    agent.process.send_signal(signal.SIGSTOP)
    for folder in (rig.root / worker / "runs" / rig.run_id).glob("e????????"):
        with suppress(OSError, AssertionError):
            trainer = guardian.tree(rig.guard(worker, int(folder.name[1:])))
            guardian.signal_all(trainer, signal.SIGKILL)
    agent.process.kill()
    agent.process.wait()
    shutil.rmtree(rig.root / worker)


def test_the_volume_of_a_pod_that_trains(tmp_path: Path) -> None:
    """Each time with the pod, at any moment. What the commander was told of is on the volume, and the next pod goes on
    from there or further."""
    dice = random.Random(5)
    command = mock("--steps", 2000, "--step-seconds", 0.01, "--save-every", 10)
    with ext4(tmp_path / "volume", 16) as disk:
        rig = Rig(tmp_path, lease_seconds=1.0)
        try:
            rig.start_commander()
            known, begun = 0, 0
            for number in range(20 if LONG else 2):
                worker = f"pod-{number}"
                rig.agent(command, worker=worker)
                eventually(lambda known=known: rig.run()["newest_step"] >= known + 20, "two more checkpoints")
                time.sleep(dice.uniform(0, 0.3))
                disk.cut()
                kill_all(rig, worker)
                known = rig.run()["newest_step"]
                disk.again()
                run = RunFolder(rig.folder)
                resume = choose(run)
                assert resume is not None
                assert not resume.bad
                assert resume.step >= known, "what the commander knows of is there"
                assert highest_claim(run) == rig.run()["epoch"] > begun
                begun = rig.run()["epoch"]
            last = rig.agent(mock("--steps", known + 20, "--step-seconds", 0.01, "--save-every", 10), worker="last")
            assert last.wait() == 0, last.says()
            attempts = rig.run()["attempts"]
            assert [attempt["epoch"] for attempt in attempts] == list(range(1, len(attempts) + 1))
            assert attempts[-1]["started_step"] >= known
            assert rig.checkpoints()
        finally:
            rig.close()


# -- the commander's state -----------------------------------------------------------------------------------------


class Holder:
    """Trains and gives the run back again and again, in its own words; remembers what it was promised."""

    def __init__(self, number: int) -> None:
        self.name = f"pod-{number}"
        self.run_id = f"run-{number}"
        self.granted: list[int] = []
        self.lines: dict[int, int] = {}
        """Acknowledged, by epoch."""
        self.ended: set[int] = set()

    async def work(self, commander: Process, session: aiohttp.ClientSession) -> None:
        """Until it is hung up."""
        ws = await session.ws_connect(commander.url + "/ws/agent", headers=commander.headers())
        agent = Agent(ws, self.name, self.name)
        await agent.say(type="hello", protocol=1, worker=self.name, incarnation=self.name)
        await agent.hear("welcome")
        while True:
            given = await agent.acquire(self.run_id, request_id=f"q{len(self.granted)}.{time.monotonic_ns()}")
            if given["type"] != "granted":
                assert given["type"] == "wait", given
                await asyncio.sleep(0.05)
                continue
            epoch = given["epoch"]
            if not self.granted or self.granted[-1] != epoch or epoch in self.ended:
                self.granted.append(epoch)
            assert (await agent.state(started()))["type"] in ("ack", "refused")
            for first in range(1, 60, 20):
                answer = await agent.tell(*(log(n, f"line {n}") for n in range(first, first + 20)))
                assert answer["type"] == "ack", answer
                self.lines[epoch] = max(self.lines.get(epoch, 0), answer["seq"])
            answer = await agent.state(ended("preempted", 1))
            assert answer["type"] == "ack", answer
            self.ended.add(epoch)

    async def keep_working(self, commander: Process, session: aiohttp.ClientSession, over: asyncio.Event) -> None:
        while not over.is_set():
            with suppress(aiohttp.ClientError, OSError, AssertionError, KeyError):
                await self.work(commander, session)
            await asyncio.sleep(0.02)


async def test_the_commanders_state(tmp_path: Path) -> None:
    dice = random.Random(11)
    with ext4(tmp_path / "disk", 32) as disk:
        (disk.place / "state").mkdir(mode=0o700)  # its key is the commander's own, whose writing is looked at too
        commander = Process(disk.place / "state")
        holders = [Holder(number) for number in range(4)]
        over = asyncio.Event()
        await commander.start()
        alive = True
        try:
            async with aiohttp.ClientSession() as session:
                working = [asyncio.create_task(holder.keep_working(commander, session, over)) for holder in holders]
                for _ in range(20 if LONG else 2):
                    before = sum(len(holder.ended) for holder in holders)
                    end = time.monotonic() + 30
                    while sum(len(holder.ended) for holder in holders) < before + 8:
                        assert time.monotonic() < end, "attempts come and go"
                        await asyncio.sleep(0.01)
                    await asyncio.sleep(dice.uniform(0, 0.2))
                    disk.cut()
                    commander.kill()
                    alive = False
                    promised = [(set(holder.ended), dict(holder.lines), list(holder.granted)) for holder in holders]
                    await asyncio.to_thread(disk.again)
                    alive = True
                    await commander.start()
                    for holder, (over_, lines, granted) in zip(holders, promised, strict=True):
                        await holds(commander, session, holder.run_id, over_, lines, granted)
                over.set()
                commander.kill()
                alive = False
                await asyncio.gather(*working)
                for holder in holders:
                    assert all(after > one for one, after in pairwise(holder.granted)), "no epoch twice"
                assert sum(len(holder.granted) for holder in holders) > 15
        finally:
            if alive:
                commander.kill()


@pytest.mark.parametrize("flushes", [True, False], ids=["as it is", "would be caught without flushes"])
async def test_what_the_database_committed(disk: Ext4, flushes: bool) -> None:
    database = open_database(disk.place / "relay.db", RELAY)
    if not flushes:
        database.execute("PRAGMA synchronous=OFF")
    writer = Writer(database, "relay")
    disk.settle()
    for number in range(20):
        await writer.run(database_put(f"k{number:02d}"))
    disk.cut()
    with suppress(sqlite3.Error, OSError):
        await writer.close()
    disk.again()
    kept = [f"k{number:02d}" for number in range(20)]
    assert (keys(disk.place / "relay.db") == kept) is flushes


async def holds(
    commander: Process,
    session: aiohttp.ClientSession,
    run_id: str,
    over: set[int],
    lines: dict[int, int],
    granted: list[int],
) -> None:
    """All that was promised is there: every grant, every end, every line, each once and in order."""
    body = await commander.get(session, f"/api/runs/{run_id}")
    attempts = {attempt["epoch"]: attempt for attempt in body["attempts"]}
    assert body["run"]["epoch"] >= max(granted)
    assert set(attempts) >= set(granted)
    assert {epoch for epoch in over if attempts[epoch].get("outcome") == "preempted"} == over
    for epoch, count in lines.items():
        assert attempts[epoch].get("lines", 0) >= count
    page = await commander.get(session, f"/api/runs/{run_id}/log?epoch={max(lines)}&limit=5000")
    texts = [line["text"] for line in page["lines"]]
    assert texts == [f"line {number}" for number in range(1, len(texts) + 1)]
    assert len(texts) >= lines[max(lines)]
