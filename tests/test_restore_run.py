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

import pytest
from agent_rig import LAUNCHERS, Rig, eventually, mock

from relay_agent import guardian
from relay_agent.checkpoints.manifest import read
from tests.hub import Fault, RemoteHub, hub_process

STEPS = 40


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteHub]:
    with hub_process(tmp_path_factory.mktemp("hub") / "files") as hub:
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


def trainer(*flags: str) -> str:
    words = " ".join(flags)
    return f"exec python3 {LAUNCHERS}/char_lm.py --mode sft --steps {STEPS} --save-every 7 {words}"


def syncing(hub: RemoteHub) -> dict[str, str]:
    return {"HF_REPO": "relay/{run_id}", "HF_TOKEN": hub.token, "HF_ENDPOINT": hub.url, "HF_DRY_RUN": "false"}


def test_it_goes_on_from_the_hub_and_ends_with_the_same_weights(
    hub: RemoteHub,
    rig: Rig,
    uninterrupted: bytes,
) -> None:
    repo = f"relay/{rig.run_id}"
    first = rig.agent(trainer("--step-seconds 0.3"), "pod-a", **syncing(hub))
    eventually(lambda: rig.run()["newest_step"] >= 7, "a checkpoint that the commander knows")
    rig.call(f"/api/runs/{rig.run_id}/sync", expected_epoch=1, why="before the pod goes")
    tags = eventually(lambda: repo in hub.repos() and hub.tags(repo), "a tag on the Hub")
    guard = rig.guard()
    first.process.kill()
    first.wait()
    eventually(lambda: not [pid for pid in guardian.processes() if guard in environ_of(pid)], "its trainer's end")
    shutil.rmtree(rig.volume)
    rig.volume.mkdir()
    synced, newest = int(next(iter(tags)).removeprefix("step-")), rig.run()["newest_step"]
    assert synced <= newest

    hub.fault(Fault.says("refs", 503), Fault("resolve", at="done", after=5000, cut=True, match="weights.bin"))
    second = rig.agent(trainer(), "pod-b", **syncing(hub), ON_MISSING_CHECKPOINT="older")
    assert second.wait() == 0, second.says()
    row = rig.run()
    assert (row["status"], row["step"]) == ("completed", STEPS)
    assert f"resuming from step_{synced:08d} at step {synced}" in second.says()
    assert (rig.folder / "out" / f"e{row['epoch']:08d}" / "final.bin").read_bytes() == uninterrupted
    event = next(each for each in rig.events() if each["event"] == "restore.hub")
    assert (event["repo"], event["tag"]) == (repo, f"step-{synced}")
    assert "restore.hub" in rig.kinds()
    assert hub.verify(repo) == []
    assert f"step-{STEPS}" in hub.tags(repo), "the one that finished it has synced its end"


def test_stopped_while_it_downloads_it_leaves_at_once_and_the_next_goes_on(hub: RemoteHub, rig: Rig) -> None:
    size = 2_000_000
    assert rig.agent(mock("--steps", 3, "--step-seconds", 0, "--size", size), **syncing(hub)).wait() == 0
    rig.call(f"/api/runs/{rig.run_id}/requeue", expected_epoch=1, why="more steps")
    shutil.rmtree(rig.volume)
    rig.volume.mkdir()

    hub.fault(Fault.slow("resolve", 100_000, match="data.bin"))
    stopped = rig.agent(mock("--steps", 6, "--step-seconds", 0, "--size", size), "pod-b", **syncing(hub))
    parts = rig.folder / "ckpt" / ".incoming"
    came = 100_000 * (rig.lease_seconds + 1)
    eventually(
        lambda: sum(path.stat().st_size for path in parts.glob("*/parts/*")) > came or stopped.process.poll(), "bytes"
    )
    stopped.process.send_signal(signal.SIGTERM)
    assert stopped.wait(10) == 143, stopped.says()
    assert (rig.run()["attempts"][-1]["outcome"], rig.run()["epoch"]) == ("preempted", 2), "its lease was renewed"

    before = len(hub.requests())
    second = rig.agent(mock("--steps", 6, "--step-seconds", 0, "--size", size), "pod-c", **syncing(hub))
    assert second.wait() == 0, second.says()
    sent = sum(each.sent for each in hub.requests(before) if each.path.endswith("data.bin"))
    assert 0 < sent <= size - came, "what had come was not sent again"
    assert "from step_00000003 at step 3" in second.says()
    assert not list(parts.iterdir())


def test_a_fork_begins_with_the_others_checkpoint_and_then_goes_on_from_its_own(rig: Rig) -> None:
    assert rig.agent(mock("--steps", 10, "--step-seconds", 0)).wait() == 0
    fork = dataclasses.replace(rig, run_id=f"{rig.run_id}-fork")
    for epoch, steps in ((1, 12), (2, 14)):
        agent = fork.agent(mock("--steps", steps, "--step-seconds", 0), FORK_FROM=f"{rig.run_id}@5")
        assert agent.wait() == 0, agent.says()
        if epoch == 1:
            assert "resuming from step_00000005 at step 5" in agent.says()
            first = read(fork.folder / "ckpt" / "step_00000005").manifest
            assert first.forked_from is not None
            assert (first.run_id, first.forked_from.run_id) == (fork.run_id, rig.run_id)
            fork.call(f"/api/runs/{fork.run_id}/requeue", expected_epoch=1, why="more steps")
    assert "resuming from step_00000012 at step 12" in agent.says()
    assert fork.kinds().count("run.forked") == 1
    assert rig.checkpoints() == ["step_00000005", "step_00000010"]
    assert fork.run()["newest_checkpoint"] == "step_00000014"


def test_the_trainer_of_a_fork_may_count_its_own_steps(rig: Rig) -> None:
    assert rig.agent(mock("--steps", 10, "--step-seconds", 0)).wait() == 0
    fork = dataclasses.replace(rig, run_id=f"{rig.run_id}-fork")
    anew = mock("--steps", 8, "--step-seconds", 0).replace("exec ", "exec env RELAY_RESUME_FROM= ")
    agent = fork.agent(anew, FORK_FROM=rig.run_id)
    assert agent.wait() == 0, agent.says()
    kinds = fork.kinds()
    assert ("fork.counts_anew" in kinds, "resume.ignored" in kinds) == (True, False)
    assert fork.run()["status"] == "completed"
    assert fork.run()["newest_checkpoint"] == "step_00000008"
