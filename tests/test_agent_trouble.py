"""Trainers that fail, flood, hang and lie, pods that are set up wrong: what becomes of each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agent_rig import AGENT, LAUNCHERS, SECRET, Rig, eventually, mock

from relay_agent import guardian
from relay_agent.checkpoints.manifest import verify


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


@pytest.mark.parametrize(
    ("command", "words"),
    [("exec pyhton3 train.py", "there is no pyhton3 on the PATH"), ("python3 nosuch.py", "there is no nosuch.py in ")],
)
def test_a_command_that_cannot_start_for_certain_costs_no_lease(rig: Rig, command: str, words: str) -> None:
    """One slip of a key made the run fail for every pod."""
    agent = rig.agent(command)
    assert agent.wait() == 2
    agent.heard(f"SLIME_SFT_CMD cannot train: {words}")
    assert "put it there before the agent starts" in agent.says()
    assert rig.run()["attempts"] == [], "no epoch was spent, and nobody has to requeue it"
    assert rig.agent(f"{command} || true").wait() != 2, "what may train all the same is started"


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
    agent = rig.agent(f"exec python3 {tmp_path}/look.py", by=subprocess.Popen, BACKWARDS=SECRET[::-1])
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
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # a sleep that is over
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


def test_a_command_that_goes_into_the_background_is_no_run_that_is_completed(rig: Rig) -> None:
    """What it leaves is stopped: nobody would know when that has come to its end."""
    steps = "i=0; while :; do i=$((i + 1)); echo step $i loss 1; sleep 0.1; done"
    agent = rig.agent(f"sh -c '{steps}' & echo started")
    assert agent.wait() == 1
    (attempt,) = rig.run()["attempts"]
    assert (rig.run()["status"], attempt["ending"]) == ("failed", "background")
    assert "a command that trains in the background (`&`, nohup, a daemon) has to wait for it" in attempt["message"]


def test_what_only_prints_late_what_the_trainer_had_said_has_not_trained_on(rig: Rig) -> None:
    """`tail -f` of its log, that a launch script leaves: the run failed, told to wait for what it had waited for."""
    late = "sleep 1; echo step 5 loss 1; exec sleep 60"
    agent = rig.agent(f"echo step 4 loss 1; sh -c '{late}' & exit 0")
    assert agent.wait() == 0, agent.says()
    run = rig.run()
    assert (run["status"], run["step"]) == ("completed", 5)


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
    steps = mock("--steps", 500, "--step-seconds", 0.005, "--save-every", 50)
    agent = rig.agent(steps, by=subprocess.Popen)
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
    assert agent.says().count("HF_TOKEN is 200009 bytes long") == 1
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
