"""A bucket mounted by the real s3fs as the volume: no hard links, renames that go file by file, everything sent when a
file is closed. The manifest alone makes a checkpoint one there."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from agent_rig import Rig, eventually, mock
from checkpoint_kit import names, new_run, put, stage, take, whole_names
from object_store import BUCKET, Mount, Store, mounted, store

from relay_agent import guardian
from relay_agent.checkpoints.prune import prune
from relay_agent.checkpoints.publish import publish
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.staging import Staged
from relay_agent.volume.volume import highest_claim, open_run, probe

LONG = os.environ.get("RELAY_FAULTS") == "long"


@pytest.fixture
def bucket() -> Iterator[Store]:
    with store() as serving:
        yield serving


def test_the_volume_is_known_for_what_it_is(bucket: Store, tmp_path: Path) -> None:
    with mounted(tmp_path / "volume", bucket.url) as mount:
        found = {each.name: each.ok for each in probe(mount.place)}
        assert all(each.ok for each in probe(mount.place) if each.needed)
        assert not found["rename a folder in one step"]
        assert not found["hard link"]
        run = new_run(mount.place)
        assert not run.atomic
        for step in range(1, 5):
            put(run, 1, step)
        prune(run, 2)
    with mounted(tmp_path / "elsewhere", bucket.url) as mount:
        run = open_run(mount.place, run.run_id)
        assert whole_names(run) == names(run) == ["step_00000003", "step_00000004"]
        assert highest_claim(run) == 1
        resume = choose(run)
        assert resume is not None
        assert resume.step == 4


def test_gone_at_every_write_of_a_publish(bucket: Store, tmp_path: Path) -> None:
    """Pod and mount vanish with what was not sent; the next pod finds the old state or the new, and works."""
    with mounted(tmp_path / "volume", bucket.url) as mount:
        run = new_run(mount.place)
        for step in (1, 2):
            put(run, 1, step)
        stage(run, 1, 3)
    before = dict(bucket.objects)
    at, told, seen = 0, False, set()
    while not told:
        bucket.objects = dict(before)
        bucket.writes, bucket.fails_at = 0, at
        with mounted(tmp_path / f"pod-{at}", bucket.url) as mount:
            bucket.on_failure = mount.process.kill
            pod = type(run)(mount.place / "runs" / run.run_id, atomic=False)
            with suppress(OSError):
                publish(pod, Staged(3, pod.staging(1) / "step_3"), 1, lambda: True)
                told = not bucket.failed
            mount.kill()
        bucket.fails_at = -1
        with mounted(tmp_path / f"next-{at}", bucket.url) as mount:
            found = open_run(mount.place, run.run_id)
            there = names(found)
            assert whole_names(found) == there
            assert there[:2] == ["step_00000001", "step_00000002"]
            resume = choose(found)
            assert resume is not None
            assert not resume.bad
            assert resume.step == 3 if told else resume.step in (2, 3)
            seen.add(resume.step)
            take(found, 2, resume.name)
            put(found, 2, 4)
            resume = choose(found)
            assert resume is not None
            assert (resume.step, resume.epoch) == (4, 2)
        at += 1
    assert at > 10
    assert seen == {2, 3}


# -- a run ---------------------------------------------------------------------------------------------------------


@contextmanager
def some_store(folder: Path) -> Iterator[str]:
    """Where it listens: ours, or the one of moto that RELAY_TEST_MOTO names (`moto_server`)."""
    program = os.environ.get("RELAY_TEST_MOTO")
    if program is None:
        with store() as serving:
            yield serving.url
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / "moto.log").open("wb") as log:
        process = subprocess.Popen([program, "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        made = urllib.request.Request(f"{url}/{BUCKET}", method="PUT")

        def up() -> bool:
            with suppress(OSError), urllib.request.urlopen(made, timeout=5):
                return True
            return False

        eventually(up, "moto's S3")
        yield url
    finally:
        process.kill()
        process.wait()


def test_a_run_goes_on_from_pod_to_pod(tmp_path: Path) -> None:
    """Each pod dies whole, its mount with it."""
    rig = Rig(tmp_path, lease_seconds=1.0)
    command = mock("--steps", 5000, "--step-seconds", 0.02, "--save-every", 20)
    with some_store(tmp_path) as url:
        try:
            rig.start_commander()
            known = 0
            for number in range(5 if LONG else 1):
                with mounted(rig.volume, url) as mount:
                    agent = rig.agent(command, worker=f"pod-{number}")
                    agent.heard("made by their manifest alone")
                    eventually(lambda known=known: rig.run()["newest_step"] >= known + 40, "two more checkpoints")
                    gone(rig, mount, f"pod-{number}")
                    known = rig.run()["newest_step"]
                rig.volume.rmdir()
            with mounted(rig.volume, url):
                # Of what a pod published in its last moment the commander may not have heard, and what it had saved by
                # then and not published its successor publishes.
                saved = [*rig.checkpoints(), *(path.name for path in rig.folder.glob("ckpt/.staging/*/step_*"))]
                total = max(int(name.removeprefix("step_")) for name in saved) + 30
                last = rig.agent(mock("--steps", total, "--step-seconds", 0.02, "--save-every", 20), worker="last")
                assert last.wait() == 0, last.says()
                run = rig.run()
                assert run["status"] == "completed"
                assert run["attempts"][-1]["started_step"] >= known
                assert [attempt["epoch"] for attempt in run["attempts"]] == list(range(1, 7 if LONG else 3))
                assert rig.checkpoints()[-1] == f"step_{total:08d}"
        finally:
            rig.close()


def gone(rig: Rig, mount: Mount, worker: str) -> None:
    agent = rig.agents[-1]
    agent.process.send_signal(signal.SIGSTOP)
    guard = rig.guard(worker, rig.run()["epoch"])
    [keeper] = [pid for pid, (parent, _) in guardian.processes().items() if parent == agent.process.pid]
    os.kill(keeper, signal.SIGKILL)
    guardian.signal_all(guardian.tree(guard), signal.SIGKILL)
    agent.process.kill()
    agent.process.wait()
    shutil.rmtree(rig.root / worker)
    mount.kill()
