"""A pod is lost with its volume: another one, with an empty disk, goes on from the Hub to the same bytes."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import programs
import pytest
from agent_rig import LAUNCHERS, Rig, eventually, mock

from relay_agent import guardian
from relay_agent.checkpoints.manifest import read
from tests.hub import Fault, RemoteHub, hub_process

STEPS = 16
BUSY = 120.0
"""Seconds that a busy machine may take for what takes two."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteHub]:
    with hub_process(tmp_path_factory.mktemp("hub") / "files", by=programs.Popen) as hub:
        yield hub


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights of a run that nobody disturbs."""
    root = tmp_path_factory.mktemp("whole")
    env = {"PATH": os.environ["PATH"], "RELAY_OUTPUT_DIR": str(root), "RELAY_CKPT_STAGING_ROOT": str(root / "ckpt")}
    command = [sys.executable, str(LAUNCHERS / "char_lm.py"), "--steps", str(STEPS), "--save-every", "7"]
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, timeout=60)
    return (root / "final.bin").read_bytes()


def environ_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return ""


def size_of(part: Path) -> int:
    """0 where it is whole and has its place by now."""
    with suppress(FileNotFoundError):
        return part.stat().st_size
    return 0


def trainer(*flags: str) -> str:
    words = " ".join(flags)
    return f"exec python3 {LAUNCHERS}/char_lm.py --mode sft --steps {STEPS} --save-every 7 {words}"


def test_it_goes_on_from_the_hub_and_ends_with_the_same_weights(
    hub: RemoteHub, rig: Rig, uninterrupted: bytes
) -> None:  # fmt: skip
    there = {"HF_REPO": "relay/{run_id}", "HF_TOKEN": hub.token, "HF_ENDPOINT": hub.url}
    repo = f"relay/{rig.run_id}"
    first = rig.agent(trainer("--step-seconds 2 --save-every 1"), "pod-a", **there, HF_DRY_RUN="false")
    eventually(lambda: rig.run()["newest_step"] >= 1, "a checkpoint that the commander knows", BUSY)
    rig.call(f"/api/runs/{rig.run_id}/sync", expected_epoch=1, why="before the pod goes")
    (tag,) = eventually(lambda: repo in hub.repos() and list(hub.tags(repo)), "a tag on the Hub", BUSY)
    guard = rig.guard()
    first.process.kill()
    first.wait()
    eventually(lambda: not [pid for pid in guardian.processes() if guard in environ_of(pid)], "its trainer's end", BUSY)
    shutil.rmtree(rig.volume)
    rig.volume.mkdir()
    synced = int(tag.removeprefix("step-"))
    there["ON_MISSING_CHECKPOINT"] = "older"  # it may have saved again meanwhile

    # Another pod takes longer than its lease to bring it back, and is taken away over it.
    rate = 3000
    hub.fault(Fault.slow("resolve", rate, match="adam.bin"))
    second = rig.agent(trainer(), "pod-b", **there)
    parts, came = rig.folder / "ckpt" / ".incoming", rate * (rig.lease_seconds + 1)
    eventually(
        lambda: max(map(size_of, parts.glob("*/parts/*")), default=0) > came or second.process.poll() is not None,
        "bytes that come",
        BUSY,
    )
    second.process.send_signal(signal.SIGTERM)
    assert second.wait(BUSY) == 143, second.says()
    run = rig.run()
    assert (run["attempts"][-1]["outcome"], run["epoch"]) == ("preempted", 2), "its lease was renewed"

    before = len(hub.requests())
    hub.fault(Fault.says("refs", 503), Fault("resolve", at="done", after=5000, cut=True, match="weights.bin"))
    third = rig.agent(trainer(), "pod-c", **there)
    assert third.wait(BUSY) == 0, third.says()
    row = rig.run()
    assert (row["status"], row["step"]) == ("completed", STEPS)
    assert f"resuming from step_{synced:08d} at step {synced}" in third.says()
    assert (rig.folder / "out" / f"e{row['epoch']:08d}" / "final.bin").read_bytes() == uninterrupted
    size = (rig.folder / "ckpt" / f"step_{synced:08d}" / "adam.bin").stat().st_size
    sent = sum(each.sent for each in hub.requests(before) if each.path.endswith("adam.bin"))
    assert 0 <= sent <= size - came, "what had come was not sent again"
    assert not list(parts.iterdir())
    event = next(each for each in rig.events() if each["event"] == "restore.hub")
    assert (event["repo"], event["tag"]) == (repo, tag)
    assert "restore.hub" in rig.kinds()
    assert hub.verify(repo) == []


def test_a_fork_begins_with_the_others_checkpoint_and_then_goes_on_from_its_own(rig: Rig) -> None:
    assert rig.agent(mock("--steps", 10, "--step-seconds", 0)).wait(BUSY) == 0
    fork = dataclasses.replace(rig, run_id=f"{rig.run_id}-fork")
    anew = mock("--steps", 3, "--save-every", 2, "--step-seconds", 0).replace("exec ", "exec env RELAY_RESUME_FROM= ")
    first = fork.agent(anew, FORK_FROM=f"{rig.run_id}@5")
    assert first.wait(BUSY) == 0, first.says()
    assert "resuming from step_00000005 at step 5" in first.says()
    manifest = read(fork.folder / "ckpt" / "step_00000005").manifest
    assert manifest.forked_from is not None
    assert (manifest.run_id, manifest.forked_from.run_id) == (fork.run_id, rig.run_id)
    kinds = fork.kinds()
    assert ("fork.counts_anew" in kinds, "resume.ignored" in kinds) == (True, False), "that is no alarm in a fork"
    fork.call(f"/api/runs/{fork.run_id}/requeue", expected_epoch=1, why="more steps")
    second = fork.agent(mock("--steps", 8, "--step-seconds", 0), FORK_FROM=f"{rig.run_id}@5")
    assert second.wait(BUSY) == 0, second.says()
    assert "resuming from step_00000003 at step 3" in second.says()
    assert fork.kinds().count("run.forked") == 1
    assert rig.checkpoints() == ["step_00000005", "step_00000010"]
    assert fork.run()["newest_checkpoint"] == "step_00000008"
