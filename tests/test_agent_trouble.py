"""Trainers that fail, flood, hang and lie, pods that are set up wrong: what becomes of each."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_rig import AGENT, LAUNCHERS, SECRET, Rig, eventually, mock, rigged

from relay_agent import guardian
from relay_agent.checkpoints.manifest import verify
from relay_agent.outcome.stop import Stop
from relay_agent.outcome.verdict import judge
from relay_agent.output.progress import Progress


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--crash-at", 4, "--exit-code", 7), 7, "exited with 7"),
        (("--crash-at", 4, "--exit-code", -9), 137, "SIGKILL"),
        (("--steps", 3, "--total", 400), 1, "exited 0 at step 3 of 400"),
    ],
)
def test_a_failure_says_what_happened(rig: Rig, flags: tuple[object, ...], code: int, words: str) -> None:
    agent = rig.agent(mock("--step-seconds", 0.01, *flags))
    assert agent.wait() == code
    run = rig.run()
    assert run["status"] == "failed"
    assert words in run["message"]
    assert rig.told()["status"] == "FAILED"


def test_a_trainer_that_hangs_on_sigterm_is_killed_after_the_grace(rig: Rig) -> None:
    command = mock("--steps", 500, "--step-seconds", 0.02, "--save-every", 5, "--ignore-sigterm")
    agent = rig.agent(command, RELAY_STOP_GRACE="1")
    eventually(lambda: rig.run()["newest_step"] >= 5, "a checkpoint")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait() == 137
    assert rig.run()["attempts"][0]["outcome"] == "preempted"
    assert rig.run()["status"] == "queued"


def test_a_second_signal_does_not_wait(rig: Rig) -> None:
    agent = rig.agent(mock("--steps", 500, "--step-seconds", 0.02, "--ignore-sigterm"), RELAY_STOP_GRACE="60")
    eventually(lambda: rig.run()["step"] >= 2, "two steps")
    agent.process.send_signal(signal.SIGINT)
    agent.heard("SIGINT: stopping")
    agent.process.send_signal(signal.SIGINT)
    assert agent.wait(10) == 137


HUGE = 1 << 40  # bytes, none of them written


def test_nobody_waits_for_a_hash_that_nobody_wants(rig: Rig) -> None:
    """The second signal ends the publishing; the checkpoint waits for the next attempt."""
    save = f"d=$RELAY_CKPT_STAGING_ROOT/step_7; mkdir $d; truncate -s {HUGE} $d/w; touch $d/COMPLETE"
    agent = rig.agent(f"echo step 6/99 loss 1; {save}; echo step 7/99 loss 1; exec sleep 100")
    eventually(lambda: rig.run()["step"] == 7, "it has saved")
    agent.process.send_signal(signal.SIGTERM)
    agent.heard("SIGTERM: stopping")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait(10) == 143, agent.says()
    assert rig.checkpoints() == []
    assert (rig.folder / "ckpt" / ".staging" / "e00000001" / "step_7" / "w").exists()
    assert "checkpoint.left" in [event["event"] for event in rig.events()]


def test_stopped_while_it_reads_what_to_resume_from_it_goes_at_once(rig: Rig) -> None:
    assert rig.agent(mock("--steps", 5)).wait() == 0
    folder = rig.folder / "ckpt" / "step_00000005"
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][0]["size"] = HUGE
    (folder / "manifest.json").write_text(json.dumps(manifest))
    os.truncate(folder / manifest["files"][0]["path"], HUGE)
    rig.call(f"/api/runs/{rig.run_id}/requeue", expected_epoch=1, why="more steps")
    agent = rig.agent(mock("--steps", 9), worker="pod-b")
    agent.heard("lease granted")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait(10) == 143, agent.says()
    assert folder.exists()
    assert rig.run()["attempts"][-1]["outcome"] == "preempted"


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


def test_ten_megabytes_of_garbage_are_lines_like_others(rig: Rig) -> None:
    agent = rig.agent(mock("--steps", 4, "--step-seconds", 0.02, "--print-bytes", 10_000_000))
    assert agent.wait(60) == 0, agent.says()
    lines = rig.lines()
    assert lines[-1].startswith("step 4/4")
    assert all(len(line) <= 4000 and line.isprintable() for line in lines)
    assert (rig.folder / "logs/e00000001.log").stat().st_size > 10_000_000
    assert rig.run()["status"] == "completed"


def test_bars_and_blank_lines_do_not_flood(rig: Rig) -> None:
    command = "for i in $(seq 1 20000); do printf '\\r%d/20000' $i; done; echo; echo '{\"step\": 5, \"loss\": NaN}'"
    assert rig.agent(command).wait() == 0
    assert len(rig.lines()) < 60
    assert rig.run()["loss"] == "nan"


def test_the_trainers_environment_is_the_pods(rig: Rig) -> None:
    venv = str(Path(sys.prefix))
    agent = rig.agent(
        f"env > {rig.root}/env; echo step 1/1 loss 1",
        PATH=f"{venv}/bin:{os.environ['PATH']}",
        VIRTUAL_ENV=venv,
        HF_TOKEN="hf_of_the_trainer",
        MY_DATA="/data",
    )
    assert agent.wait() == 0, agent.says()
    env = dict(line.split("=", 1) for line in (rig.root / "env").read_text().splitlines() if "=" in line)
    assert SECRET not in env.values()
    assert "VIRTUAL_ENV" not in env
    assert "RELAY_SHARED_SECRET" not in env
    assert f"{venv}/bin" not in env["PATH"].split(":")
    assert (env["HF_TOKEN"], env["MY_DATA"], env["PYTHONUNBUFFERED"]) == ("hf_of_the_trainer", "/data", "1")
    assert (env["RELAY_TRAIN_MODE"], env["RELAY_RESUME_FROM"], env["RELAY_EPOCH"]) == ("sft", "", "1")
    assert env["RELAY_RUN_ROOT"] == str(rig.folder)


def test_the_last_checkpoints_before_a_nan_outlive_all_that_follow(rig: Rig) -> None:
    agent = rig.agent(mock("--steps", 40, "--step-seconds", 0.05, "--save-every", 4, "--nan-at", 13))
    assert agent.wait() == 0, agent.says()
    assert rig.checkpoints() == [f"step_{step:08d}" for step in (8, 12, 32, 36, 40)]
    marked = [verify(rig.folder / "ckpt" / name).healthy for name in rig.checkpoints()]
    assert marked == [True, True, False, False, False]
    assert [event["event"] for event in rig.events()].count("loss.nonfinite") == 1
    assert "loss.nonfinite" in rig.kinds()


ANCESTORS = """
import os
pid, seen = os.getppid(), []
while pid:
    for name in ("environ", "cmdline"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                seen.append((pid, name, os.environb[b"BACKWARDS"][::-1] in file.read()))
        except PermissionError:
            seen.append((pid, name, False))
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")
    print(pid, fields[0], seen[-2:], flush=True)
    pid = int(fields[2].split()[1])
print("step 1/1 loss 1", flush=True)
raise SystemExit(9 if any(found for _, _, found in seen) else 0)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc to look into")
def test_a_trainer_finds_the_secret_in_no_process_above_it(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(ANCESTORS)
    # The trainer is told what to look for in another spelling of the name, backwards.
    agent = rig.agent(f"exec python3 {tmp_path}/look.py", BACKWARDS=SECRET[::-1])
    assert agent.wait() == 0, rig.lines()
    looked = "\n".join(rig.lines())
    assert "(relay-agent " in looked
    assert "(relay-guardian " in looked


@pytest.mark.skipif(not sys.platform.startswith("linux") or os.getuid() != 0, reason="takes another user")
def test_a_trainer_that_is_not_root_cannot_look_into_the_agent_at_all() -> None:
    """What the agent does to itself, as a user who may do nothing else; then another process of that user looks."""
    code = """
import ctypes, os
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # whoever is given another user's rights is not to be looked into, to begin with
from relay_agent.process import hide_secrets
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
open("/proc/self/mem").close()
hide_secrets()
me = os.getpid()
if os.fork() == 0:
    try:
        open(f"/proc/{me}/mem")
    except PermissionError:
        os._exit(7)
    os._exit(1)
raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=20).returncode == 7


def test_a_trainer_that_starts_over_is_noticed_and_nothing_is_pruned(rig: Rig) -> None:
    first = rig.agent(mock("--steps", 400, "--step-seconds", 0.02, "--save-every", 10))
    eventually(lambda: rig.run()["newest_step"] >= 20, "step 20")
    first.process.send_signal(signal.SIGTERM)
    first.wait()
    before = rig.checkpoints()
    command = "export RELAY_RESUME_FROM=; " + mock("--steps", 9, "--step-seconds", 0.02, "--save-every", 2)
    again = rig.agent(command, worker="pod-b")
    again.wait()
    assert "resume.ignored" in rig.kinds()
    assert "the resume did not take" in rig.run()["message"]
    assert set(before) <= set(rig.checkpoints())


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
    third = rig.agent(mock("--steps", 14, "--step-seconds", 0.01), worker="pod-c")
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


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_trainer_that_saves_and_exits_0_when_told_to_stop(rig: Rig, name: str, code: int) -> None:
    agent = rig.agent("trap 'exit 0' TERM; echo step 1/9 loss 1; while :; do sleep 0.05; done")
    eventually(lambda: rig.run()["step"] >= 1, "a step")
    agent.process.send_signal(signal.Signals[name])
    assert agent.wait() == code
    assert (rig.told()["status"], rig.told()["exit_code"]) == ("PREEMPTED", code)
    assert rig.run()["status"] == "queued"


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_a_signal_to_every_process_of_a_job_ends_neither_agent_nor_trainer(rig: Rig, number: int) -> None:
    """As a scheduler warns: the trainer is told, and what keeps it alive is not ended by it."""
    command = f"trap 'echo warned' {number}; echo up; until [ -e {rig.root}/go ]; do sleep 0.05; done; echo step 1/1"
    agent = rig.agent(command)
    log = rig.folder / "logs/e00000001.log"
    eventually(lambda: log.exists() and "up" in log.read_text(), "a trainer that listens")
    for pid in [agent.process.pid, *guardian.tree(rig.guard())]:
        with contextlib.suppress(ProcessLookupError):  # a sleep that is over
            if Path(f"/proc/{pid}/comm").read_text() != "sleep\n":
                os.kill(pid, number)
    (guard,) = (pid for pid, (parent, _) in guardian.processes().items() if parent == agent.process.pid)
    os.kill(guard, number)
    eventually(lambda: "warned" in log.read_text(), "the trainer's own handler")
    (rig.root / "go").touch()
    assert agent.wait() == 0, agent.says()


def test_drained_and_exited_0_is_0(rig: Rig) -> None:
    agent = rig.agent("trap 'exit 0' TERM; echo step 1/9 loss 1; while :; do sleep 0.05; done")
    eventually(lambda: rig.run()["step"] >= 1, "a step")
    rig.call(f"/api/runs/{rig.run_id}/drain", expected_epoch=1, why="maintenance")
    assert agent.wait() == 0


def test_an_exit_without_a_step_says_so(rig: Rig) -> None:
    assert rig.agent("echo hello").wait() == 0
    run = rig.run()
    assert "exited 0 without a step seen" in run["message"]
    assert (run["status"], run["attempts"][0]["ending"]) == ("completed", "no_step")


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


def test_a_hub_wish_is_recorded_and_nothing_is_synced(rig: Rig) -> None:
    assert rig.agent(mock("--steps", 2, "--step-seconds", 0.01), HF_REPO="me/model").wait() == 0
    (wish,) = [event for event in rig.events() if event["event"] == "hub.wish"]
    assert (wish["repo"], wish["dry_run"]) == ("me/model", "true")
    assert "hub.wish" in rig.kinds()


def test_the_shipped_trainers_learn_under_the_agent(rig: Rig) -> None:
    agents = [
        rig.agent(
            None, worker="a", RUN_ID=f"{rig.run_id}.sft", CHAR_LM_STEPS="30", CHAR_LM_SAVE_EVERY="10", MODE="sft"
        ),
        rig.agent(None, worker="b", RUN_ID=f"{rig.run_id}.rl", CHAR_LM_STEPS="6", CHAR_LM_SAVE_EVERY="3", MODE="rl"),
    ]
    for agent in agents:
        assert agent.wait(60) == 0, agent.says()
    sft, rl = rig.run(f"{rig.run_id}.sft"), rig.run(f"{rig.run_id}.rl")
    assert (sft["status"], sft["step"], rl["status"], rl["step"]) == ("completed", 30, "completed", 6)
    assert sft["loss"] < sft["first_loss"]
    assert rl["reward"] is not None


def test_the_agent_is_small_and_has_its_own_name(rig: Rig) -> None:
    agent = rig.agent(mock("--steps", 500, "--step-seconds", 0.005, "--save-every", 50))
    eventually(lambda: rig.run()["step"] >= 100, "100 steps")
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Name"] == "relay-agent"
    assert int(fields["VmRSS"].split()[0]) < 45 * 1024


def test_bad_surroundings_are_one_line_each(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cases = {
        "RELAY_L1_ROOT": [str(tmp_path / "nowhere"), str(tmp_path / "file"), "relative"],
        "MODE": ["dpo"],
        "RUN_ID": ["a/b", "..", "x" * 129],
        "COMMANDER_URL": ["ftp://x", "http://u:p@x:1"],
        "RELAY_SHARED_SECRET": [""],
        "SLIME_SFT_CMD": [],
    }
    for name, values in cases.items():
        for value in values:
            agent = rig.agent(mock(), **{name: value})
            assert agent.wait() == 2, (name, value, agent.says())
            (line,) = agent.says().splitlines()
            assert line.startswith("relay-agent: ")
            assert name in line or "volume" in line


def test_an_environment_that_no_trainer_can_be_started_with_is_named(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"HF_TOKEN: {'x' * 200_000}\n")
    agent = rig.agent(mock(), RELAY_RUN_CONFIG=str(tmp_path / "run.yaml"))
    assert agent.wait() == 2, agent.says()
    assert "HF_TOKEN is 200009 bytes long" in agent.says().splitlines()[-1]
    assert rig.run()["status"] == "queued", "another pod may be set up better"


def test_help_and_version_are_quick_and_load_nothing_heavy() -> None:
    code = (
        "import sys; from relay_agent.cli import start; start(args=[sys.argv[1]]);"
        "heavy = {'aiohttp', 'textual', 'huggingface_hub', 'yaml', 'asyncio'} & set(sys.modules);"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    for flag in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-c", code, flag], capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_the_entrypoint_becomes_the_agent(tmp_path: Path) -> None:
    """By exec and under its own name: signals reach it, and `pkill python` does not."""
    entrypoint = LAUNCHERS.parent / "agent" / "entrypoint"
    env = {"PATH": "/usr/bin:/bin", "RELAY_AGENT": str(AGENT)}
    done = subprocess.run([entrypoint, "--version"], env=env, capture_output=True, text=True, timeout=20)
    assert done.stdout.startswith("relay-agent ")
    env["RELAY_AGENT"] = str(tmp_path / "nowhere")
    done = subprocess.run([entrypoint, "--version"], env=env, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert "there is no relay-agent" in done.stderr


def seen(*lines: str, start: int = 0) -> Progress:
    progress = Progress(start)
    for n, line in enumerate(lines):
        progress.see(line, float(n))
    return progress


def steps(first: int, last: int, total: int) -> list[str]:
    return [f"step {n}/{total} loss 1" for n in range(first, last + 1)]


def test_an_evaluation_that_counts_by_itself_does_not_complete_a_run() -> None:
    evaluated = steps(1, 10, 10)
    early = seen(*steps(1, 1, 400), *evaluated, *steps(2, 2, 400), *evaluated, *steps(3, 3, 400), *evaluated)
    late = seen(*steps(1, 37, 400), *evaluated, *steps(38, 38, 400), *steps(1, 1000, 1000))
    assert (early.step, early.total) == (3, 400)
    assert (late.step, late.total) == (38, 400)
    warmed_up = seen(*steps(1, 3, 3), *steps(1, 20, 400))
    assert (warmed_up.step, warmed_up.total) == (20, 400)
    unsaid = seen(*steps(1, 2, 400), *evaluated)
    assert (unsaid.step, unsaid.total) == (2, 400)
    assert judge(0, Stop(), unsaid, None, "").outcome == "failed"
    larger = seen(*steps(1, 1, 400), *steps(1, 1000, 1000))
    assert (larger.step, larger.total) == (1, 400)
    first = seen("step 10/1000", *steps(1, 2, 400))
    assert (first.step, first.total) == (2, 400)
    named = seen(
        "[eval] step 10/10 loss 2.0", "Validation: step 9/10 loss 1.5", "{'eval_loss': 2.0, 'step': 7, 'total': 9}"
    )
    assert (named.step, named.total) == (0, None)
    longer = seen(*steps(1, 20, 40), *steps(21, 22, 80))
    assert (longer.step, longer.total) == (22, 80)


@pytest.mark.parametrize(
    ("lines", "start", "outcome"),
    [
        (steps(1, 9, 10), 0, "failed"),
        (steps(1, 10, 10), 0, "completed"),
        (steps(0, 9, 10), 0, "completed"),
        (steps(0, 8, 10), 0, "failed"),
        (steps(5, 9, 10), 5, "completed"),
        # A resume hides whether 9 of 10 is the last one of who counts from 0, or the last but one of who counts from 1.
        (steps(6, 9, 10), 5, "completed"),
        (steps(6, 8, 10), 5, "failed"),
        (steps(9, 9, 10), 8, "completed"),
        ([], 9, "completed"),
        ([], 0, "completed"),
        (["step 0/1 loss 1"], 0, "completed"),
        # Every tenth step is printed: no line was due between the last one and the end.
        ([f"step {n}/1005 loss 1" for n in range(10, 1001, 10)], 0, "completed"),
        ([f"step {n}/1000 loss 1" for n in range(10, 991, 10)], 0, "failed"),
        ([f"step {n}/1000 loss 1" for n in range(0, 991, 10)], 0, "completed"),
        ([f"step {n}/1000 loss 1" for n in (1, *range(100, 801, 100))], 0, "failed"),
        ([f"step {n}/1000 loss 1" for n in (1, 2, 3, 900)], 0, "failed"),
    ],
)
def test_the_last_step_of_who_counts_from_0_or_1(lines: list[str], start: int, outcome: str) -> None:
    assert judge(0, Stop(), seen(*lines, start=start), None, "").outcome == outcome


def megatron(step: int, loss: str = "lm loss: 6.12E+00 | ", norm: str = "2.134") -> str:
    return (
        f" [2026-03-01 10:00:00.123456] iteration {step:8}/     100 | consumed samples:         1280 | elapsed time per"
        f" iteration (ms): 812.4 | learning rate: 3.000000E-05 | global batch size:   128 | {loss}loss scale: 1.0 |"
        f" grad norm: {norm} | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def factory(step: int) -> str:
    return (
        f'{{"current_steps": {step}, "total_steps": 300, "loss": 1.2345, "lr": 4.9e-05, "epoch": 0.1,'
        ' "percentage": 3.33, "elapsed_time": "0:00:35", "throughput": 812.3, "total_tokens": 28416}'
    )


def slime(step: int) -> str:
    return (
        f"(MegatronTrainRayActor pid=5121) [2026-03-01 10:00:07] model.py:918 - step {step}: {{'train/loss': 0.01873,"
        f" 'train/grad_norm': 0.52, 'train/lr-pg_0': 1e-06, 'train/step': {step}}}"
    )


MEGATRON_VALIDATES = " validation loss at iteration 50 | lm loss value: 3.1E+00 | lm loss PPL: 2.2E+01 | "
SLIME_EVALUATES = (
    "(RolloutManager pid=4990) [2026-03-01 10:04:00] rollout_metrics.py:247 - eval 20: {'eval/aime': 0.3125}"
)
TITAN = (
    "[rank0]:[titan] 2026-03-01 10:00:00,435 - root - INFO - step: 89  loss:  2.81340  grad_norm:  0.2804  tps: 6,939"
)
TITAN_VALIDATES = (
    "[titan] 2026-03-01 10:00:00,435 - root - INFO - validate step: 90  loss:  2.9001  memory:  9.46GiB(64.99%)"
)
NANO = ("iter 250: loss 3.4512, time 132.10ms, mfu 12.34%", "step 500: train loss 2.9312, val loss 3.0127")


@pytest.mark.parametrize(
    ("lines", "start", "step", "total", "outcome"),
    [
        ([*map(megatron, range(10, 101, 10)), MEGATRON_VALIDATES], 0, 100, 100, "completed"),
        ([*map(megatron, range(10, 61, 10)), MEGATRON_VALIDATES], 0, 60, 100, "failed"),
        ([*map(megatron, range(60, 101, 10))], 50, 100, 100, "completed"),
        ([*map(factory, range(10, 301, 10)), "{'eval_loss': 2.01, 'epoch': 1.0}"], 0, 300, 300, "completed"),
        ([*map(factory, range(10, 291, 10))], 0, 290, 300, "failed"),
        ([*map(slime, range(42)), SLIME_EVALUATES], 0, 41, None, "completed"),
        ([TITAN, TITAN_VALIDATES], 0, 89, None, "completed"),
        ([NANO[0], "saving checkpoint to out"], 0, 250, None, "completed"),
    ],
)  # fmt: skip
def test_how_real_trainers_end(lines: list[str], start: int, step: int, total: int | None, outcome: str) -> None:
    progress = seen(*lines, start=start)
    assert (progress.step, progress.total) == (step, total)
    assert judge(0, Stop(), progress, None, "").outcome == outcome


def test_nobody_reads_what_it_says_and_it_trains_all_the_same(rig: Rig) -> None:
    """Its stderr is a pipe that is full: saying something must hold up neither the training nor the lease."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 4096)
    os.set_blocking(write, True)
    agent = rig.agent(mock("--steps", 20, "--step-seconds", 0.02, "--save-every", 10), stderr=write)
    os.close(write)
    assert agent.wait() == 0
    os.close(read)
    assert rig.run()["status"] == "completed"
