"""Real processes that are killed, frozen, cut off and starved, one kind of trouble a test; judged by what the trainers
wrote and printed, not by what Relay says of itself. RELAY_FAULTS=long makes each go on for minutes."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import aiohttp
import orjson
import pytest
from agent_rig import LAUNCHERS, PATIENCE, Rig, eventually, mock, rigged
from commander_kit import Agent, log, started
from disks import fill, small
from test_commander_durability import Process

from relay_agent import guardian
from relay_agent.checkpoints.line import survey
from relay_agent.volume.volume import RunFolder

LONG = os.environ.get("RELAY_FAULTS") == "long"
CHAR_LM = f"python3 {LAUNCHERS}/char_lm.py --mode sft"


def steps(lines: list[str]) -> list[int]:
    return [int(match[1]) for line in lines if (match := re.match(r"step (\d+)/", line))]


def printed(rig: Rig, run_id: str = "") -> list[int]:
    """Steps that the trainers of a run wrote into its logs, epoch after epoch: nobody's word but their own."""
    logs = sorted((rig.volume / "runs" / (run_id or rig.run_id) / "logs").glob("e*.log"))
    return steps([line for path in logs for line in path.read_text().splitlines()])


# -- the commander killed under load -------------------------------------------------------------------------------


class Talker:
    """An agent's side of its reports, without a trainer: says everything anew that was not acknowledged."""

    def __init__(self, number: int) -> None:
        self.name = f"pod-{number}"
        self.run_id = f"run-{number}"
        self.acked = 0
        self.epoch = 0
        self.token = ""

    async def talk(self, commander: Process, session: aiohttp.ClientSession) -> None:
        """Until it is hung up."""
        ws = await session.ws_connect(commander.url + "/ws/agent", headers=commander.headers())
        agent = Agent(ws, self.name, self.name)
        await agent.say(type="hello", protocol=1, worker=self.name, incarnation=self.name)
        await agent.hear("welcome")
        if not self.epoch:
            granted = await agent.acquire(self.run_id)
            self.epoch, self.token = granted["epoch"], granted["token"]
        agent.run_id, agent.epoch, agent.token = self.run_id, self.epoch, self.token
        assert (await agent.renew())["type"] == "renewed", "whoever holds a run goes on holding it"
        if not self.acked:
            assert (await agent.state(started(), first_seq=1))["type"] == "ack"
        while True:
            first = self.acked + 1
            await agent.send("telemetry", *(log(n, f"line {n}") for n in range(first, first + 20)), first_seq=first)
            while self.acked < first + 19:
                message = await ws.receive()
                if message.type is not aiohttp.WSMsgType.TEXT:
                    return
                body = orjson.loads(message.data)
                assert body["type"] == "ack", body
                self.acked = max(self.acked, body["seq"])

    async def keep_talking(self, commander: Process, session: aiohttp.ClientSession, over: asyncio.Event) -> None:
        while not over.is_set():
            with suppress(aiohttp.ClientError, ConnectionError, AssertionError):
                await self.talk(commander, session)
            await asyncio.sleep(0.02)


async def test_the_commander_killed_under_the_reports_of_twenty_agents(tmp_path: Path) -> None:
    commander = Process(tmp_path / "state")
    await commander.start()
    talkers = [Talker(number) for number in range(20)]
    over = asyncio.Event()
    kills, seconds = (60, 2.0) if LONG else (3, 0.7)
    try:
        async with aiohttp.ClientSession() as session:
            talking = [asyncio.create_task(talker.keep_talking(commander, session, over)) for talker in talkers]
            began = time.monotonic()
            for _ in range(kills):
                before = sum(talker.acked for talker in talkers)
                end = time.monotonic() + PATIENCE
                while sum(talker.acked for talker in talkers) < before + 1_000:
                    assert time.monotonic() < end, "it takes reports"
                    await asyncio.sleep(0.01)
                await asyncio.sleep(seconds * 0.1)
                commander.kill()
                await commander.start()
            took = time.monotonic() - began
            acked = {talker.run_id: talker.acked for talker in talkers}
            over.set()
            commander.kill()
            await asyncio.gather(*talking)
            await commander.start()
            acked = {talker.run_id: talker.acked for talker in talkers}
            for talker in talkers:
                body = await commander.get(session, f"/api/runs/{talker.run_id}/log?limit=5000")
                numbers = [int(line["text"].split()[1]) for line in body["lines"]]
                assert all(after == before + 1 for before, after in pairwise(numbers)), "each once, in order"
                assert numbers[-1] >= talker.acked, "what was acknowledged is there"
                run = (await commander.get(session, f"/api/runs/{talker.run_id}"))["run"]
                assert (run["epoch"], run["status"]) == (1, "running")
    finally:
        with suppress(ProcessLookupError, AssertionError):
            commander.kill()
    total = sum(acked.values())
    print(f"{kills} kills, {total} reports acknowledged in {took:.1f} s")
    assert total > 500 * took, "too slow to have been under load"


# -- frozen past its lease -----------------------------------------------------------------------------------------


def test_an_agent_frozen_past_its_lease_adds_nothing_to_its_successors_line(tmp_path: Path) -> None:
    """And the successor ends with the very bytes of a run that nobody disturbed."""
    command = f"{CHAR_LM} --steps 40 --save-every 5 --step-seconds 0.06"
    alone = tmp_path / "alone"
    alone.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    undisturbed = subprocess.Popen(
        f"exec {CHAR_LM} --steps 40 --save-every 5", shell=True, stdout=subprocess.DEVNULL,
        env=env | {"RELAY_OUTPUT_DIR": str(alone), "RELAY_CKPT_STAGING_ROOT": str(alone / "staging")},
    )  # fmt: skip
    with rigged(tmp_path, lease_seconds=2.0) as rig:
        old = rig.agent(command)
        eventually(lambda: rig.run()["newest_step"] >= 10, "a second checkpoint")
        old.process.send_signal(signal.SIGSTOP)
        new = rig.agent(command, worker="pod-b")
        new.heard("trainer started")
        epoch = rig.run()["epoch"]
        run = RunFolder(rig.folder)
        base = survey(run).claimed_base(epoch)
        assert base is not None
        theirs = {sealed.name for sealed in survey(run).line if sealed.manifest.epoch < epoch}
        old.process.send_signal(signal.SIGCONT)
        assert old.wait() == 75, old.says()
        assert new.wait() == 0, new.says()
        line = survey(run).line
        assert [sealed.manifest.epoch for sealed in line] == sorted((s.manifest.epoch for s in line), reverse=True)
        assert {sealed.name for sealed in line if sealed.manifest.epoch < epoch} <= theirs
        assert rig.run()["status"] == "completed"
        final = run.output(epoch) / "final.bin"
        assert undisturbed.wait(PATIENCE) == 0
        assert final.read_bytes() == (alone / "final.bin").read_bytes()


# -- the commander away again and again ----------------------------------------------------------------------------


def test_the_commander_restarted_every_second(tmp_path: Path) -> None:
    restarts = 100 if LONG else 5
    total = restarts * 24
    with rigged(tmp_path, lease_seconds=6.0) as rig:
        over = tmp_path / "over"
        command = mock("--steps", total, "--step-seconds", 0.05, "--save-every", 40, "--last-waits-for", over)
        runs = [f"run-{number}" for number in range(4)]
        agents = [rig.agent(command, worker=f"pod-{run}", RUN_ID=run) for run in runs]
        eventually(lambda: all(rig.run(run)["step"] >= 1 for run in runs), "four trainers")
        for _ in range(restarts):
            before = [rig.run(run)["step"] for run in runs]
            rig.kill_commander()
            rig.start_commander()
            eventually(
                lambda before=before: all(
                    rig.run(run)["step"] > min(step, total - 2) for run, step in zip(runs, before, strict=True)
                ),
                "all four step on",
            )
        over.touch()
        for agent in agents:
            assert agent.wait(PATIENCE + restarts) == 0, agent.says()
        for run in runs:
            row = rig.run(run)
            assert (row["status"], row["epoch"], len(row["attempts"])) == ("completed", 1, 1)
            assert printed(rig, run) == list(range(1, total + 1)), "the trainer never stopped"
            lines = rig.call(f"/api/runs/{run}/log?limit=5000")["lines"]
            assert steps([line["text"] for line in lines]) == list(range(1, total + 1)), "every line, once, in order"
            assert row["published"] == total // 40


# -- no processor --------------------------------------------------------------------------------------------------

TAKES_ALL = """
import os, time
children = []
for _ in range(4 * os.cpu_count()):
    if not (child := os.fork()):
        while True:
            pass
    children.append(child)
for step in range(1, 101):
    print(f"step {step}/100 loss 1.0", flush=True)
    time.sleep(0.045)
for child in children:
    os.kill(child, 9)
"""


def test_a_trainer_that_takes_every_processor_costs_no_lease(tmp_path: Path) -> None:
    """Its agent has to renew beside it, several times over."""
    (tmp_path / "trainer.py").write_text(TAKES_ALL)
    with rigged(tmp_path, lease_seconds=3.0) as rig:
        agent = rig.agent(f"exec {sys.executable} {tmp_path}/trainer.py")
        assert agent.wait(60) == 0, agent.says()
        run = rig.run()
        assert (run["status"], run["epoch"], len(run["attempts"])) == ("completed", 1, 1)
        assert "run.lost" not in rig.kinds()
        assert steps(rig.lines()) == list(range(1, 101)), "every line, once, in order"


# -- no space ------------------------------------------------------------------------------------------------------


SAVES_WHAT_IT_CAN = """
import itertools, os, pathlib, shutil, sys, time
staging, enough = pathlib.Path(os.environ["RELAY_CKPT_STAGING_ROOT"]), pathlib.Path(sys.argv[1])
for step in itertools.count(1):
    time.sleep(0.05)
    last = step % 10 == 0 and enough.exists()
    print(f"step {step} loss 1.0", flush=True)
    if step % 10 == 0:
        folder = staging / f"step_{step}"
        try:
            folder.mkdir()
            (folder / "data.bin").write_bytes(os.urandom(300_000))
            (folder / "COMPLETE").touch()
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
    if last:
        break
"""


def test_a_full_volume_costs_no_checkpoint_that_was_there_and_no_step(tmp_path: Path) -> None:
    with small(tmp_path / "volume", "4m"), rigged_on(tmp_path) as rig:
        (tmp_path / "trainer.py").write_text(SAVES_WHAT_IT_CAN)
        agent = rig.agent(f"exec python3 {tmp_path}/trainer.py {tmp_path}/enough")
        eventually(lambda: rig.run()["published"] >= 2, "two checkpoints")
        for _ in range(5 if LONG else 1):
            filler = fill(rig.volume)
            there = rig.checkpoints()
            step = rig.run()["step"]
            eventually(lambda step=step: rig.run()["step"] >= step + 25, "training on a full volume")
            assert rig.checkpoints() == there, "whole, all of them"
            filler.unlink()
            eventually(lambda there=there: rig.checkpoints() != there, "a new checkpoint once there is space")
        (tmp_path / "enough").touch()
        assert agent.wait() == 0, agent.says()
        assert rig.checkpoints()[-1] == f"step_{rig.run()['step']:08d}"
        assert rig.run()["status"] == "completed"


def test_a_commander_whose_disk_is_full_acknowledges_nothing_it_has_not(tmp_path: Path) -> None:
    with small(tmp_path / "disk", "3m") as disk, rigged_on(tmp_path, state=disk / "state") as rig:
        rig.volume.mkdir()
        agent = rig.agent(mock("--steps", 160, "--step-seconds", 0.05, "--save-every", 40))
        eventually(lambda: rig.run()["step"] >= 5, "five steps")
        filler = fill(disk)
        log = rig.folder / "logs/e00000001.log"
        eventually(lambda: len(printed(rig)) > 60, "training while nothing is taken")
        if LONG:
            rig.kill_commander()
        filler.unlink()
        if LONG:
            rig.start_commander()
        assert agent.wait(60) == 0, agent.says()
        assert log.exists()
        assert printed(rig) == list(range(1, 161))
        assert steps(rig.lines()) == list(range(1, 161)), "every line, once, in order"
        run = rig.run()
        assert (run["status"], run["published"], len(run["attempts"])) == ("completed", 4, 1)


@contextmanager
def rigged_on(root: Path, state: Path | None = None, **more: object) -> Iterator[Rig]:
    """As `rigged`, where folders lie elsewhere."""
    rig = Rig(root, state_folder=state, **more)  # type: ignore[arg-type]
    try:
        rig.start_commander()
        yield rig
    finally:
        rig.close()


# -- the network ---------------------------------------------------------------------------------------------------


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def network(name: str) -> Iterator[str]:
    """Another network, joined to this one by a cable `name`; the address of this end. Skips where none can be made."""
    if shutil.which("ip") is None:
        pytest.skip("no ip(8) here")
    here, there = "10.213.77.1", "10.213.77.2"
    try:
        ip("netns", "add", name)
    except OSError as error:
        pytest.skip(f"no network namespace can be made here: {error}")
    try:
        try:
            ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        except OSError as error:
            pytest.skip(f"no cable can be laid here: {error}")
        ip("addr", "add", f"{here}/30", "dev", name)
        ip("link", "set", name, "up")
        ip("-n", name, "addr", "add", f"{there}/30", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield here
    finally:
        ip("netns", "del", name)


def test_a_network_that_is_cut_and_healed(tmp_path: Path) -> None:
    """Packets just vanish, as they do: nobody hangs up. First for a moment, then for longer than the lease."""
    cuts = (1.0, 5.0) * (10 if LONG else 1)
    total = 160 * len(cuts) // 2 + 40
    cable = f"rl{os.getpid() % 100_000}"
    with network(cable) as host:
        serving = {"RELAY_HOST": host, "RELAY_TLS_PROXY": "1"}
        within = ("ip", "netns", "exec", cable)
        (tmp_path / "volume").mkdir()
        with rigged_on(tmp_path, host=host, serving=serving, within=within, lease_seconds=3.0) as rig:
            agent = rig.agent(mock("--steps", total, "--step-seconds", 0.05, "--save-every", total // 8))
            eventually(lambda: rig.run()["step"] >= 5, "five steps")
            for seconds in cuts:
                ip("-n", cable, "link", "set", "eth0", "down")
                time.sleep(seconds)
                ip("-n", cable, "link", "set", "eth0", "up")
                step = rig.run()["step"]
                eventually(lambda step=step: rig.run()["step"] > step or agent.process.poll() is not None, "its return")
            assert agent.wait(PATIENCE + total / 10) == 0, agent.says()
            assert printed(rig) == list(range(1, total + 1)), "the trainer never stopped"
            assert steps(rig.lines()) == list(range(1, total + 1)), "every line, once, in order"
            run = rig.run()
            assert (run["status"], run["published"], len(run["attempts"])) == ("completed", 8, 1)


# -- what is left --------------------------------------------------------------------------------------------------

DAEMONS = """
import os, sys, time
for number in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for name in list(os.environ):
                if number == 2:
                    del os.environ[name]
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)", sys.argv[1]])
        os._exit(0)
for step in range(1, 10_000):
    print(f"step {step}/10000 loss 1.0", flush=True)
    time.sleep(0.05)
"""


def holding(mark: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("order", ["drain", "cancel"])
def test_an_order_to_stop_leaves_no_process(rig: Rig, tmp_path: Path, order: str) -> None:
    """Sessions of their own, parents that are gone, an environment wiped of every mark."""
    (tmp_path / "daemons.py").write_text(DAEMONS)
    mark = f"mark-of-{rig.run_id}"
    agent = rig.agent(f"exec {sys.executable} {tmp_path}/daemons.py {mark}")
    eventually(lambda: rig.run()["step"] >= 2 and len(holding(mark)) >= 4, "a trainer and its daemons")
    guard = rig.guard()
    rig.call(f"/api/runs/{rig.run_id}/{order}", expected_epoch=1, why="a test")
    assert agent.wait() == 143, agent.says()
    assert holding(mark) == []
    assert not guardian.tree(guard)
