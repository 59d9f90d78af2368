"""Checkpoints that are missing, damaged or refused, and a volume that goes or is full: what becomes of a run."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_rig import Rig, eventually, mock, rigged


@pytest.mark.parametrize("kind", ["torn", "truncated", "empty", "symlink", "fifo"])
def test_a_bad_checkpoint_is_never_published(rig: Rig, kind: str) -> None:
    flags = ("--steps", 14, "--step-seconds", 0.05, "--save-every", 5, "--bad-checkpoint", kind, "--bad-at", 10)
    agent = rig.agent(mock(*flags), RELAY_SETTLE_SECONDS="30")
    agent.wait()
    names = rig.checkpoints()
    if kind == "truncated":
        assert "step_00000005" in names, "cut short but marked whole: only the trainer could know"
    else:
        assert names == ["step_00000005"] or names == ["step_00000005", "step_00000014"]
        assert "checkpoint.torn" in [event["event"] for event in rig.events()]
        assert "checkpoint.torn" in rig.kinds()


def test_a_run_whose_only_checkpoint_is_refused_is_not_completed(rig: Rig) -> None:
    flags = ("--steps", 10, "--step-seconds", 0.01, "--save-every", 10, "--bad-checkpoint", "fifo", "--bad-at", 10)
    agent = rig.agent(mock(*flags))
    assert agent.wait() == 1, agent.says()
    assert rig.checkpoints() == []
    run = rig.run()
    assert run["status"] == "failed"
    assert "reached step 10 of 10, but 1 checkpoint could not be published: 'data.bin' is a FIFO" in run["message"]
    assert rig.told()["status"] == "FAILED"


def test_the_newest_checkpoint_is_missed_aloud(rig: Rig) -> None:
    """The commander knows a checkpoint that this volume lacks: an older one or zero is not quietly good enough."""
    first = rig.agent(mock("--steps", 400, "--step-seconds", 0.02, "--save-every", 5))
    eventually(lambda: rig.run()["newest_step"] >= 10, "step 10")
    first.process.send_signal(signal.SIGTERM)
    first.wait()
    (rig.root / "other").mkdir()
    older = rig.agent(mock("--steps", 5), worker="pod-c", RELAY_L1_ROOT=str(rig.root / "other"))
    assert older.wait() == 2
    assert rig.run()["newest_checkpoint"] in older.says()
    assert "checkpoint.missing" in rig.kinds()
    assert rig.run()["status"] == "queued", "the pod that has the volume may still come"
    assert "is not on this volume" in rig.run()["message"]


def test_a_commander_that_knows_less_than_the_volume_stops_no_run(tmp_path: Path) -> None:
    """Its books are older ones: what it takes for the newest was pruned since, and the line goes on beyond it."""
    with rigged(tmp_path) as rig:
        first = rig.agent(mock("--steps", 400, "--step-seconds", 0.02, "--save-every", 5))
        eventually(lambda: rig.run()["newest_step"] >= 5, "step 5")
        known = rig.run()["newest_checkpoint"]
        rig.kill_commander()
        shutil.copytree(rig.state, rig.root / "older-state")
        rig.start_commander()
        eventually(lambda: known not in rig.checkpoints(), "it was pruned")
        first.process.send_signal(signal.SIGTERM)
        first.wait()
        rig.kill_commander()
        shutil.rmtree(rig.state)
        shutil.copytree(rig.root / "older-state", rig.state)
        rig.start_commander()
        newest = max(rig.checkpoints())
        second = rig.agent(mock("--steps", 3, "--step-seconds", 0.01), worker="pod-b")
        assert second.wait() == 0, second.says()
        assert rig.run()["attempts"][-1]["started_from"] == newest


def test_what_is_wrong_with_a_pod_ends_no_run(rig: Rig) -> None:
    """No trainer ran: the run waits for a pod that can run it, and says why this one could not."""
    lame = rig.agent("echo hi", worker="pod-a", PATH="/nonexistent")
    assert lame.wait() == 2
    run = rig.run()
    assert (run["status"], run["attempts"][-1]["outcome"]) == ("queued", "preempted")
    assert run["message"].startswith("the trainer was not started: "), "and not: preempted"
    assert "cannot be started" in run["message"]
    assert (rig.told()["status"], rig.told()["exit_code"]) == ("PREEMPTED", 2)
    assert rig.agent(mock("--steps", 2, "--step-seconds", 0.01), worker="pod-b").wait() == 0


def test_a_run_may_be_told_to_restart_where_its_checkpoint_is_missing(rig: Rig) -> None:
    first = rig.agent(mock("--steps", 400, "--step-seconds", 0.02, "--save-every", 5))
    eventually(lambda: rig.run()["newest_step"] >= 10, "step 10")
    first.process.send_signal(signal.SIGTERM)
    first.wait()
    (rig.root / "other").mkdir()
    other = {"RELAY_L1_ROOT": str(rig.root / "other"), "ON_MISSING_CHECKPOINT": "restart"}
    again = rig.agent(mock("--steps", 5, "--step-seconds", 0.01), worker="pod-c", **other)
    assert again.wait() == 0, again.says()
    assert rig.run()["attempts"][-1].get("started_step", 0) == 0


def test_a_damaged_newest_checkpoint_is_set_aside_and_the_one_before_it_used(rig: Rig) -> None:
    first = rig.agent(mock("--steps", 400, "--step-seconds", 0.02, "--save-every", 5))
    eventually(lambda: rig.run()["newest_step"] >= 15, "step 15")
    first.process.send_signal(signal.SIGTERM)
    first.wait()
    newest = rig.run()["newest_checkpoint"]
    files = (path for path in (rig.folder / "ckpt" / newest).iterdir() if path.name != "manifest.json")
    damaged = max(files, key=lambda path: path.stat().st_size)
    damaged.write_bytes(bytes(damaged.stat().st_size))
    second = rig.agent(mock("--steps", 60, "--step-seconds", 0.01, "--save-every", 5), worker="pod-b")
    assert second.wait() == 0, second.says()
    started = rig.run()["attempts"][-1]
    assert 0 < started["started_step"] < int(newest.removeprefix("step_"))
    assert newest not in started["started_from"]
    assert "checkpoint.bad" in rig.kinds()
    assert "checkpoint.missing" not in rig.kinds()


def spoil(checkpoint: Path) -> None:
    """Every byte of its data becomes zero."""
    for path in checkpoint.iterdir():
        if path.name != "manifest.json":
            path.write_bytes(bytes(path.stat().st_size))


def test_what_an_earlier_attempt_set_aside_is_damaged_not_missing(rig: Rig) -> None:
    """The one that set it aside ended before it published: who comes next goes on from the older one too."""
    slow = mock("--steps", 400, "--step-seconds", 0.05, "--save-every", 5)
    first = rig.agent(slow)
    eventually(lambda: rig.run()["newest_step"] >= 10, "step 10")
    first.process.send_signal(signal.SIGTERM)
    first.wait()
    newest = rig.run()["newest_checkpoint"]
    spoil(rig.folder / "ckpt" / newest)
    second = rig.agent("sleep 60", worker="pod-b")
    second.heard("trainer started")
    second.process.send_signal(signal.SIGTERM)
    second.wait()
    older = rig.run()["attempts"][-1]["started_from"]
    third = rig.agent(mock("--steps", rig.run()["newest_step"] + 4, "--step-seconds", 0.01), worker="pod-c")
    assert third.wait() == 0, third.says()
    assert rig.run()["attempts"][-1]["started_from"] == older != newest
    assert f"{newest} is damaged" in third.says()
    assert f"ckpt/.bad/{newest}" in third.says()
    assert "checkpoint.missing" not in rig.kinds()


def test_nothing_whole_left_is_no_cold_start(rig: Rig) -> None:
    first = rig.agent(mock("--steps", 400, "--step-seconds", 0.05, "--save-every", 5))
    eventually(lambda: rig.run()["newest_step"] >= 10, "step 10")
    first.process.send_signal(signal.SIGTERM)
    first.wait()
    for name in rig.checkpoints():
        spoil(rig.folder / "ckpt" / name)
    for worker in ("pod-b", "pod-c"):  # the second finds them in ckpt/.bad
        refused = rig.agent(mock("--steps", 9), worker=worker, ON_MISSING_CHECKPOINT="older")
        assert refused.wait() == 2
        assert "damaged" in refused.says()
        assert "ckpt/.bad/" in refused.says()
        assert rig.run()["status"] == "queued"
    told = rig.agent(mock("--steps", 3, "--step-seconds", 0.01), worker="pod-d", ON_MISSING_CHECKPOINT="restart")
    assert told.wait() == 0, told.says()
    assert "starting from the beginning, as ON_MISSING_CHECKPOINT says" in told.says()


SAVE = """save() { mkdir -p $RELAY_CKPT_STAGING_ROOT/step_$1; echo $1 > $RELAY_CKPT_STAGING_ROOT/step_$1/w
  touch $RELAY_CKPT_STAGING_ROOT/step_$1/COMPLETE; }
until_there() { while ! test -e $1; do sleep 0.05; done; }
until_gone() { while test -e $1; do sleep 0.05; done; }
echo step 1/3 loss 1; save 1; until_there $RELAY_RUN_ROOT/ckpt/step_00000001
"""


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("rm -r $RELAY_RUN_ROOT/claims; save 2", "claims"),
        ("mv $RELAY_CKPT_STAGING_ROOT $RELAY_RUN_ROOT/x; ln -s ../../x $RELAY_CKPT_STAGING_ROOT; save 2", "folder"),
        ("mv $RELAY_RUN_ROOT $RELAY_RUN_ROOT.away", "is gone"),
    ],
)
def test_a_volume_that_goes_is_said_and_the_run_is_not_complete(rig: Rig, deed: str, words: str) -> None:
    agent = rig.agent(f"{SAVE} {deed}; sleep 1.5; echo step 3/3 loss 1")
    assert agent.wait() == 1, agent.says()
    assert "volume.lost" in rig.kinds()
    assert agent.says().count("what is saved now is not published") == 1
    run = rig.run()
    assert run["status"] == "failed"
    assert "could not be published" in run["message"]
    assert words in run["message"]


def test_a_volume_that_comes_back_gets_what_was_saved(rig: Rig) -> None:
    deed = "mv $RELAY_RUN_ROOT/claims $RELAY_RUN_ROOT/x; save 2; until_there $RELAY_RUN_ROOT/lost"
    back = "mv $RELAY_RUN_ROOT/x $RELAY_RUN_ROOT/claims; echo step 3/3 loss 1; save 3"
    agent = rig.agent(f"{SAVE} {deed}; {back}")
    eventually(lambda: "volume.lost" in rig.kinds(), "the loss told")
    (rig.folder / "lost").touch()
    assert agent.wait() == 0, agent.says()
    assert rig.checkpoints() == ["step_00000001", "step_00000002", "step_00000003"]


def test_what_the_trainer_took_away_is_not_missed(rig: Rig) -> None:
    agent = rig.agent(f"{SAVE} save 2; rm -r $RELAY_CKPT_STAGING_ROOT/step_2; echo step 3/3 loss 1")
    assert agent.wait() == 0, agent.says()
    assert "volume.lost" not in rig.kinds()


@pytest.fixture
def small(rig: Rig) -> Iterator[Rig]:
    """A volume of two megabytes."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "relay", str(rig.volume)], capture_output=True)
    if done.returncode:
        pytest.skip(f"needs the right to mount: {done.stderr.decode(errors='replace').strip()}")
    try:
        yield rig
    finally:
        rig.close()
        subprocess.run(["umount", "--lazy", str(rig.volume)], check=True)


FILL = """mkdir $RELAY_CKPT_STAGING_ROOT/step_3; echo 3 > $RELAY_CKPT_STAGING_ROOT/step_3/w
dd if=/dev/zero of=$RELAY_RUN_ROOT/../filler bs=4k 2>/dev/null; touch $RELAY_CKPT_STAGING_ROOT/step_3/COMPLETE
echo step 3/3 loss 1"""


def test_the_last_checkpoint_of_a_full_volume_waits_for_room(small: Rig) -> None:
    agent = small.agent(f"{SAVE} {FILL}")
    agent.heard("the volume is full: step_3 waits up to 120 s to be published; make room on it")
    assert small.run()["status"] == "running"
    (small.volume / "runs/filler").unlink()
    assert agent.wait() == 0, agent.says()
    assert small.run()["status"] == "completed"
    assert small.checkpoints() == ["step_00000001", "step_00000003"]


def test_a_run_that_found_no_room_for_its_last_checkpoint_is_taken_up_again(small: Rig) -> None:
    """Neither completed nor lost: it is over once the checkpoint is on the volume, and nothing is trained twice."""
    trainer = f'[ -z "$RELAY_RESUME_FROM" ] || exit 0; {SAVE} {FILL}'
    agent = small.agent(trainer)
    agent.heard("the volume is full: step_3 waits")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait() == 143, agent.says()
    run = small.run()
    assert (run["status"], run["attempts"][0]["outcome"]) == ("queued", "preempted")
    refused = small.agent(trainer, worker="pod-b")
    assert refused.wait() == 2, refused.says()
    assert "with space left on it" in refused.says()
    (small.volume / "runs/filler").unlink()
    last = small.agent(trainer, worker="pod-c")
    assert last.wait() == 0, last.says()
    assert "step_3 of epoch 1 had not been published by its own agent: it is step_00000003 now" in last.says()
    assert (small.run()["status"], small.run()["newest_step"]) == ("completed", 3)
    assert small.checkpoints() == ["step_00000001", "step_00000003"]


def test_what_was_saved_last_is_not_trained_again_for_want_of_room_unless_somebody_says_so(small: Rig) -> None:
    big = """dd if=/dev/zero of=$RELAY_OUTPUT_DIR/w bs=100k count=8 2>/dev/null; mkdir $RELAY_CKPT_STAGING_ROOT/step_3
    ln $RELAY_OUTPUT_DIR/w $RELAY_CKPT_STAGING_ROOT/step_3/w
    dd if=/dev/zero of=$RELAY_RUN_ROOT/../filler bs=100k count=8 2>/dev/null
    touch $RELAY_CKPT_STAGING_ROOT/step_3/COMPLETE; echo step 3/3 loss 1"""  # it takes a copy of the linked file
    agent = small.agent(f'[ -z "$RELAY_RESUME_FROM" ] || exit 0; {SAVE} {big}')
    agent.heard("the volume is full: step_3 waits")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait() == 143, agent.says()
    refused = small.agent("exit 0", worker="pod-b")
    assert refused.wait() == 74, refused.says()
    assert "does not go on without what was saved last: step_3 of epoch 1 is not published" in refused.says()
    assert small.run()["status"] == "queued"
    told = small.agent("echo from $RELAY_RESUME_FROM; echo step 3/3", worker="pod-c", ON_MISSING_CHECKPOINT="older")
    assert told.wait() == 0, told.says()
    assert any(line.endswith("ckpt/step_00000001") for line in small.lines())


def test_half_a_first_checkpoint_leaves_a_cold_start(rig: Rig) -> None:
    half = "mkdir $RELAY_CKPT_STAGING_ROOT/step_1; echo x > $RELAY_CKPT_STAGING_ROOT/step_1/w; kill -9 $$"
    trap = f"trap '{half}' TERM; echo step 1/9 loss 1; while :; do sleep 0.05; done"
    first = rig.agent(trap, RELAY_SETTLE_SECONDS="60")
    eventually(lambda: rig.run()["step"] >= 1, "a step")
    first.process.send_signal(signal.SIGTERM)
    first.wait()
    assert [path.name for path in (rig.folder / "ckpt/.bad").iterdir()] == ["e00000001.step_1"]
    again = rig.agent(mock("--steps", 3, "--step-seconds", 0.01), worker="pod-b")
    assert again.wait() == 0, again.says()
