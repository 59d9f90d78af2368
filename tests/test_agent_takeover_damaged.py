"""Agent and guardian killed together, and what is damaged on the pod's disk: nothing is left, and the run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_rig import Rig, beside, eventually, mock
from takeover_kit import ORPHAN, kill, stop_all

from relay_agent import guardian
from relay_agent.guardian import cgroup
from relay_agent.pod.pod import Pod
from relay_agent.pod.takeover import backlog
from relaytui.wire.clock import SystemClock


@pytest.fixture
def rig(commander: Rig, tmp_path: Path) -> Iterator[Rig]:
    with beside(commander, tmp_path) as rig:
        yield rig
        stop_all(rig)


def test_guardian_and_agent_killed_together_leave_nothing_and_the_run_goes_on(rig: Rig) -> None:
    command = mock("--steps", 60, "--step-seconds", 0.05, "--save-every", 5, "--daemons")
    first = rig.agent(command, **ORPHAN)
    eventually(lambda: rig.run()["newest_step"] >= 5, "a checkpoint")
    guard = rig.guard()
    parents = {pid: parent for pid, (parent, _) in guardian.processes().items()}
    (keeper,) = [pid for pid, parent in parents.items() if parent == first.process.pid]
    first.process.send_signal(signal.SIGSTOP)
    os.kill(keeper, signal.SIGKILL)
    kill(first)
    second = rig.agent(command, **ORPHAN)
    second.heard("nobody knows how")
    assert not guardian.tree(guard)
    assert second.wait() == 0, second.says()
    attempts = rig.run()["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["preempted", "completed"]
    assert attempts[1]["started_step"] >= 5


STRANGER = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)", sys.argv[1]], {})
    os._exit(0)
for step in range(1, 10_000):
    print(f"step {step}/10000 loss 1.0", flush=True)
    time.sleep(0.05)
"""


def test_a_daemon_without_a_variable_is_found_by_its_group_when_agent_and_guardian_were_killed(
    rig: Rig, tmp_path: Path
) -> None:
    """Its session is its own, its parents are gone, its environment is empty: the attempt's note names the group."""
    probe = cgroup.make(f"probe-{os.getpid()}")
    cgroup.remove(probe)
    if not probe:
        pytest.skip("no control group can be made here")
    (tmp_path / "stranger.py").write_text(STRANGER)
    mark = f"mark-of-{rig.run_id}"
    first = rig.agent(f"exec {sys.executable} {tmp_path}/stranger.py {mark}", **ORPHAN)
    eventually(lambda: rig.run()["step"] >= 2, "a trainer")
    [group] = cgroup.find(rig.guard())
    eventually(lambda: len(cgroup.members(group)) == 2, "the trainer and its daemon")
    [keeper] = [pid for pid, (parent, _) in guardian.processes().items() if parent == first.process.pid]
    first.process.send_signal(signal.SIGSTOP)
    os.kill(keeper, signal.SIGKILL)
    kill(first)
    eventually(lambda: len(cgroup.members(group)) == 1, "the daemon alone")
    second = rig.agent(mock("--steps", 5), **ORPHAN)
    assert second.wait() == 0, second.says()
    assert not cgroup.members(group)
    assert not Path(group).exists()


@pytest.mark.parametrize("harm", ["note", "spool", "ended", "socket"])
def test_what_is_damaged_on_the_pods_disk_costs_no_training(rig: Rig, harm: str) -> None:
    """Bits flipped in what an agent left: the run goes on all the same, taken over or from its checkpoint."""
    steps = 120 if harm == "ended" else 60  # far more than a guardian without an agent lets it make
    command = mock("--steps", steps, "--step-seconds", 0.03, "--save-every", 10)
    first = rig.agent(command, ORPHAN_TIMEOUT="1")
    eventually(lambda: rig.run()["newest_step"] >= 10, "a checkpoint")
    kill(first)
    folder, guard = rig.pod_folder(), rig.guard()
    if harm == "ended":
        eventually((folder / guardian.ENDED).exists, "the guardian's word")
        (folder / guardian.ENDED).write_bytes(b"\xff\x00 nonsense")
    elif harm == "note":
        data = bytearray((folder / "attempt.json").read_bytes())
        data[len(data) // 2] ^= 0x40
        (folder / "attempt.json").write_bytes(data[:-20])
    elif harm == "socket":
        (folder / guardian.SOCKET).unlink()
        os.mkfifo(folder / guardian.SOCKET)
    else:
        for path in folder.glob("*.log"):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0x10
            path.write_bytes(data)
    second = rig.agent(command, ORPHAN_TIMEOUT="1")
    assert second.wait() == 0, second.says()
    assert rig.run()["status"] == "completed"
    assert rig.run()["attempts"][-1]["last_step"] == steps
    assert "Traceback" not in second.says()
    if harm in ("note", "spool"):
        assert "set aside" in second.says() or "what follows in it is lost" in second.says()
    eventually(lambda: not guardian.tree(guard), "the old trainer's tree gone")
    rig.checkpoints()


def test_of_what_cannot_be_read_only_this_pods_processes_are_stopped(tmp_path: Path) -> None:
    """Two pods of one machine may train the same run in the same epoch, each for a commander of its own."""
    here, there = (Pod(tmp_path / name, SystemClock()) for name in ("here", "there"))
    for pod in (here, there):
        (pod.make_folder("run-1", 1) / "attempt.json").write_text("{ damaged")
    asleep = [
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={guardian.MARKER: mark + "0"})
        for mark in (here.mark("run-1", 1), there.mark("run-1", 1), here.mark("run-10", 1), "run-1.1.")
    ]
    try:
        eventually(lambda: all(guardian.carries(each.pid, guardian.MARKER.encode()) for each in asleep), "four asleep")
        assert backlog(here, "run-1", None) == []
        eventually(lambda: asleep[0].poll() == -signal.SIGKILL, "what is ours stopped")
        assert [each.poll() for each in asleep[1:]] == [None, None, None]
    finally:
        for each in asleep:
            each.communicate()


def test_a_note_that_nobody_can_read_stops_its_trainer_before_another_starts(rig: Rig) -> None:
    command = mock("--steps", 100, "--step-seconds", 0.05, "--save-every", 100_000)
    first = rig.agent(command, **ORPHAN)
    eventually(lambda: rig.run()["step"] >= 5, "five steps")
    guard = rig.guard()
    kill(first)
    (rig.pod_folder() / "attempt.json").write_bytes(b"garbage")
    second = rig.agent(command, **ORPHAN)
    second.heard("its trainer still runs: stopping it, so that it can save")
    second.heard("waiting for run")
    assert not guardian.tree(guard)
    assert second.wait() == 0, second.says()
    attempts = rig.run()["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["lost", "completed"]
    assert attempts[1]["started_step"] >= 5, "from what it saved then"
