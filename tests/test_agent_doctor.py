"""`relay-agent doctor`: what it says about a pod that is well, and about one that is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import programs
import pytest
from agent_rig import AGENT, SECRET, Rig, eventually

from relay_agent.artifacts.examine import examined
from relay_agent.config import load
from relay_agent.doctor import room
from relay_agent.link.contact import StoreRoom
from relay_agent.trainer.command import Launch, exec_trouble


def doctor(rig: Rig, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("RELAY_", "SLIME_"))},
        "COMMANDER_URL": rig.url,
        "RELAY_SHARED_SECRET": SECRET,
        "RELAY_L1_ROOT": str(rig.volume),
        "RELAY_AGENT_STATE": str(rig.root / "agent"),
        **variables,
    }
    return programs.run([AGENT, "doctor", *flags], env=env, capture_output=True, text=True, timeout=30)


def failed(rig: Rig, **variables: str) -> tuple[int, dict[str, Any]]:
    """Exit code, and the first check that failed."""
    done = doctor(rig, "--json", **variables)
    report = json.loads(done.stdout)
    assert report["exit_code"] == done.returncode
    assert not report["ok"]
    return done.returncode, next(check for check in report["checks"] if check["level"] == "fail")


def test_a_pod_that_is_well(commander: Rig) -> None:
    done = doctor(commander)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    words = [line.split() for line in lines]
    assert {line[0] for line in words} <= {"ok", "WARN"}
    assert {"configuration", "launcher", "volume", "commander", "token", "clock"} <= {line[1] for line in words}
    assert SECRET not in done.stdout
    assert list(commander.volume.iterdir()) == [], "it leaves nothing behind"
    assert json.loads(doctor(commander, "--json").stdout)["ok"]


def test_each_thing_that_is_wrong_is_named(commander: Rig, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("MOED: rl")
    code, check = failed(commander, RELAY_RUN_CONFIG=str(tmp_path / "run.yaml"))
    assert (code, check["what"]) == (2, "configuration")
    assert "MODE" in check["todo"]

    code, check = failed(commander, RELAY_L1_ROOT=str(tmp_path / "nowhere"))
    assert (code, check["what"]) == (2, "volume")
    assert "does not exist" in check["why"]

    code, check = failed(commander, RELAY_SHARED_SECRET="not-the-one-it-was-started-with")
    assert (code, check["what"]) == (77, "token")
    assert "RELAY_SHARED_SECRET" in check["why"]

    code, check = failed(commander, RELAY_SHARED_SECRET="")
    assert (code, check["what"]) == (2, "token")

    code, check = failed(commander, COMMANDER_URL="http://127.0.0.1:9")
    assert (code, check["what"]) == (69, "commander")
    assert "127.0.0.1:9" in check["why"]


def test_it_says_where_checkpoints_are_looked_for(commander: Rig, tmp_path: Path) -> None:
    def line(**variables: str) -> str:
        return next(line for line in doctor(commander, **variables).stdout.splitlines() if "  checkpoints " in line)

    (tmp_path / "train.py").touch()
    command = f"cd {tmp_path} && exec python3 train.py"
    own = f"{commander.volume}/runs/relay-run/out/e<epoch>"
    assert line(TRAIN_CMD=f'{command} "$@"').startswith(f"ok    checkpoints — looked for in $RELAY_OUTPUT_DIR ({own})")
    assert line(CHECKPOINT_DIR="x", TRAIN_CMD=command).startswith(
        f"ok    checkpoints — looked for in CHECKPOINT_DIR ({own}/x)"
    )
    assert line(TRAIN_CMD=command).startswith("WARN  checkpoints — TRAIN_CMD names none of ")
    assert "$RELAY_CKPT_STAGING_ROOT alone" in line(CHECKPOINTS="none", TRAIN_CMD="true")


def test_without_an_address_it_goes_on_with_what_it_can_look_at(commander: Rig, tmp_path: Path) -> None:
    done = doctor(commander, "--json", COMMANDER_URL="", RELAY_L1_ROOT=str(tmp_path / "nowhere"))
    checks = {check["what"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 2
    assert "COMMANDER_URL is not set" in checks["configuration"]["why"]
    assert checks["volume"]["level"] == "fail"
    assert {"launcher", "pod state"} <= set(checks)
    assert "commander" not in checks


def test_a_locale_without_utf8_is_no_obstacle(commander: Rig) -> None:
    done = doctor(commander, LC_ALL="POSIX", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii:strict")
    assert done.returncode == 0, done.stderr
    assert not done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/nowhere/bash\n", "/nowhere/bash"),
        ("#!/usr/bin/env no-such-shell\n", "no-such-shell"),
        ("#!/bin/bash\r\n", "Windows line ends"),
        ("echo hi\n", "says what runs it"),
        ("", "says what runs it"),
        ("#!\n", "names nothing"),
        ("#!/bin/sh -e\n", ""),
        ("#!/usr/bin/env bash\n", ""),
        ("#!/usr/bin/env -S bash -e\n", ""),
    ],
)
def test_a_launcher_that_nothing_runs_is_seen(tmp_path: Path, text: str, words: str) -> None:
    launcher = tmp_path / "launch_sft.sh"
    launcher.write_text(text, newline="")
    launcher.chmod(0o755)
    trouble = exec_trouble(Launch((str(launcher),), launcher.name), os.environ)
    assert words in trouble
    assert bool(trouble) == bool(words)


def test_a_launcher_that_nothing_runs_fails(commander: Rig, tmp_path: Path) -> None:
    assert exec_trouble(Launch(("bash", "-c", "true"), "SLIME_SFT_CMD"), {"PATH": str(tmp_path)})
    code, check = failed(commander, SLIME_SFT_CMD="true", PATH=str(tmp_path))
    assert (code, check["what"]) == (2, "launcher")
    assert "no bash on PATH" in check["why"]


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("http://127.0.0.1:9", 69, "http://127.0.0.1:9: connection refused"),
        ("http://localhost:9", 69, "connection refused"),
        ("http://no-such-host.invalid:9", 69, "name not found"),
        ("http://a..b", 2, "should name a host"),
    ],
)
def test_why_no_commander_answers_is_said_in_plain_words(commander: Rig, url: str, code: int, words: str) -> None:
    got, check = failed(commander, COMMANDER_URL=url)
    assert got == code
    assert words in check["why"]
    assert "ssl" not in check["why"]


def test_paths_that_cannot_be_are_one_line_each(commander: Rig) -> None:
    long = "/" + "a" * 3000
    done = doctor(commander, RELAY_AGENT_STATE=long)
    assert done.returncode == 0
    assert "pod state" in done.stdout.partition("WARN")[2]
    code, check = failed(commander, RELAY_L1_ROOT=long)
    assert (code, check["what"]) == (2, "volume")
    assert "too long" in check["why"]


def test_a_wrong_secret_is_not_called_no_commander(commander: Rig) -> None:
    agent = commander.agent("true", RELAY_SHARED_SECRET="not-the-one-it-was-started-with")
    assert agent.wait(20) == 77
    assert "no commander" not in agent.says()
    assert len(agent.says().splitlines()) == 1


def test_https_to_a_commander_that_speaks_http_is_named(commander: Rig) -> None:
    code, check = failed(commander, COMMANDER_URL=commander.url.replace("http:", "https:"))
    assert (code, check["what"]) == (69, "commander")
    assert check["why"].endswith(": this speaks http, not https")
    assert check["todo"] == f"write {commander.url}"


@pytest.mark.parametrize(
    ("command", "level", "missing"),
    [
        ("exec python-that-is-nowhere train.py", "fail", "there is no python-that-is-nowhere on the PATH"),
        ("exec sh train.sh", "fail", "there is no train.sh in "),
        ("cd /nowhere && ./train", "fail", "there is no folder /nowhere"),
        ("./not-there", "fail", "there is no ./not-there in "),
        ("nothing-here;true", "warn", "there is no nothing-here on the PATH"),
        ("if true; then x; fi", "ok", ""),
        ("$PROGRAM train.py", "ok", ""),
        ("echo 'no end", "ok", ""),
    ],
)
def test_the_command_is_not_tried_and_where_it_would_run_is_said(
    commander: Rig, command: str, level: str, missing: str
) -> None:
    """One that cannot start for certain is an error with a code of its own; a look cannot always tell."""
    done = doctor(commander, "--json", SLIME_SFT_CMD=command)
    report = json.loads(done.stdout)
    (launcher,) = (check for check in report["checks"] if check["what"] == "launcher")
    assert launcher["level"] == level
    assert f"SLIME_SFT_CMD will be run by bash in {Path.cwd()}; it was not tried here" in launcher["why"]
    assert missing in launcher["why"]
    assert bool(launcher.get("todo")) is bool(missing)
    assert done.returncode == report["exit_code"] == (2 if level == "fail" else 0)


@pytest.mark.parametrize(("secret", "warned"), [("fifteen-letters", True), ("sixteen-letters-", False)])
def test_a_secret_that_can_be_guessed_is_said(commander: Rig, secret: str, warned: bool) -> None:
    lines = doctor(commander, RELAY_SHARED_SECRET=secret).stdout.splitlines()
    assert any(line.startswith("WARN  secret — RELAY_SHARED_SECRET has 15 characters") for line in lines) is warned
    assert not any(secret in line for line in lines)


def test_what_is_taken_for_granted_is_a_warning(commander: Rig) -> None:
    done = doctor(commander, RELAY_LEASE_SECONDS="60")
    assert done.returncode == 0
    for words in (
        "WARN  settings — RUN_ID is not set: this pod trains the run relay-run",
        "WARN  settings — RELAY_LEASE_SECONDS is the commander's, and is not read on a pod",
        "WARN  launcher — ",
    ):
        assert any(line.startswith(words) for line in done.stdout.splitlines()), words
    assert "(char_lm)" in done.stdout
    assert "(char_lm)" not in doctor(commander, TRAIN_CMD="true").stdout


@pytest.mark.parametrize(
    ("free", "total", "level", "words"),
    [
        (0.0, 2.1e6, "WARN", "takes writes, and has 0.0 MB free of 2.1 MB"),
        (2e6, 2.1e6, "WARN", "takes writes, and has 2.0 MB free of 2.1 MB"),
        (731e6, 20e9, "WARN", "takes writes, and has 731 MB free of 20.0 GB"),
        (1.5e9, 20e9, "ok", "takes writes, 1.5 GB free"),
        (0.0, 0.0, "ok", "takes writes; how much is free on it it does not tell"),
    ],
)
def test_a_volume_with_next_to_no_room_is_no_good_one(free: float, total: float, level: str, words: str) -> None:
    check = room(Path("/mnt/relay"), free, total)
    assert (check.level, check.why) == (level, f"/mnt/relay {words}")
    assert bool(check.todo) is (level == "WARN")


def test_a_command_that_another_one_comes_before_is_said_to_be_ignored(commander: Rig) -> None:
    lines = doctor(commander, SLIME_SFT_CMD="true", TRAIN_CMD="true").stdout.splitlines()
    (launcher,) = (line for line in lines if line.startswith("ok    launcher — "))
    assert "SLIME_SFT_CMD will be run by bash" in launcher
    assert launcher.endswith("; TRAIN_CMD is ignored, as SLIME_SFT_CMD comes before it")
    for other in (doctor(commander, TRAIN_CMD="true"), doctor(commander, SLIME_SFT_CMD="true")):
        assert "ignored" not in other.stdout


def test_a_misspelt_variable_is_said_and_no_failure(commander: Rig) -> None:
    done = doctor(commander, ARTIFCTS="every", RELAY_TRAINER="x", HF_HOME="/tmp/x")
    lines = [line for line in done.stdout.splitlines() if "no setting of Relay's" in line]
    assert [done.returncode, len(lines)] == [0, 2]
    assert lines[0].startswith("WARN  settings — the environment: ARTIFCTS is no setting")
    assert lines[0].endswith("did you mean ARTIFACTS?")
    assert "RELAY_TRAINER" in lines[1]


SPY = """#!/bin/sh
[ "$1 $2 $3" = "dump --nonblocking --pid" ] && [ -d "/proc/$4" ] || exit 9
%s
"""


@pytest.mark.parametrize(
    ("spy", "level", "words"),
    [
        (None, "warn", "no py-spy"),
        ('echo "Process $4: x"; echo "Python v3.12"; echo; echo "Thread $4 (idle): \\"MainThread\\""', "ok", "py-spy"),
        (
            'echo "Permission Denied: Try running again with elevated permissions" >&2; exit 1',
            "warn",
            "Permission Denied",
        ),
        ("exit 0", "warn", "it says nothing"),
    ],
)
def test_whether_stacks_can_be_had_is_tried(
    commander: Rig, tmp_path: Path, spy: str | None, level: str, words: str
) -> None:
    search = str(tmp_path)
    for name in ("bash", "sh", "python3"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    if spy is not None:
        (tmp_path / "py-spy").write_text(SPY % spy)
        (tmp_path / "py-spy").chmod(0o755)
    report = json.loads(doctor(commander, "--json", PATH=search).stdout)
    (check,) = (check for check in report["checks"] if check["what"] == "stacks")
    assert check["level"] == level
    assert words in check["why"]
    assert bool(check.get("todo")) is (level == "warn")
    assert report["ok"], "a pod trains well without"


def test_a_volume_whose_name_a_shell_would_split_is_said(commander: Rig, tmp_path: Path) -> None:
    root = tmp_path / "my volume"
    root.mkdir()

    def told(command: str) -> list[str]:
        report = json.loads(doctor(commander, "--json", RELAY_L1_ROOT=str(root), TRAIN_CMD=command).stdout)
        return [check["todo"] for check in report["checks"] if check["what"] == "resume"]

    assert told("exec true $RELAY_RESUME_ARGS") == ['write "$@" instead of $RELAY_RESUME_ARGS']
    assert told('exec true "$@"') == []


def test_whether_the_commander_takes_artifacts(commander: Rig) -> None:
    def said(**variables: str) -> list[dict[str, Any]]:
        checks = json.loads(doctor(commander, "--json", **variables).stdout)["checks"]
        return [check for check in checks if check["what"] == "artifacts"]

    assert said() == []
    (check,) = said(ARTIFACTS="final", ARTIFACTS_FILES="*.json")
    assert check["level"] == "ok"
    assert check["why"].startswith("the last checkpoint and files *.json will go to the artifact store; it takes them")
    assert "of 100.0 GB are left there, one run may have 50.0" in check["why"]


@pytest.mark.parametrize(
    ("room", "words"),
    [
        (None, "this commander is of a version without the artifact store"),
        (StoreRoom(10, 12, 10), "nothing more goes in: 0.0 of 0.0 GB are left there"),
        (StoreRoom(10**10, 0, 0), "nothing more goes in: 10.0 of 10.0 GB are left there, one run may have 0.0"),
    ],
)
def test_a_commander_that_takes_none_is_named(room: StoreRoom | None, words: str) -> None:
    word = examined(load({"ARTIFACTS": "every"}, needs_url=False), room)
    assert word is not None
    assert (word.level, words in word.why) == ("fail", True)


def test_what_the_commander_would_say_to_the_lease_is_foreseen(commander: Rig, tmp_path: Path) -> None:
    """All was said to be well of a run that another pod held, or that had ended."""

    def line(**variables: str) -> str:
        done = doctor(commander, **{"WORKER_ID": "pod-b", "RUN_ID": "seen", "TRAIN_CMD": "true", **variables})
        assert done.returncode == 0, done.stdout
        return next((line for line in done.stdout.splitlines() if "  run " in line), "")

    assert line() == "", "it would be new"
    rig = Rig(tmp_path, run_id="seen", port=commander.port, state_folder=commander.state)
    rig.volume.mkdir()
    agent = rig.agent("echo step 1/2 loss 1; while ! test -e go; do sleep 0.02; done; exit 3")
    try:
        eventually(lambda: rig.run()["status"] == "running", "a trainer")
        held = "WARN  run — run seen is held by pod-a: this agent would wait — `relay-tui drain seen` "
        assert line().startswith(held)
        assert line(WORKER_ID="pod-a") == "ok    run — seen is held by this pod"
        assert "run seen is a sft run, not rl" in line(MODE="rl")
        (tmp_path / "go").touch()
        agent.wait()
    finally:
        rig.close()
    failed = "WARN  run — run seen is failed: this agent would be refused — `relay-tui requeue seen` queues it again; "
    assert line().startswith(failed)
    rig.call("/api/runs/seen/requeue", expected_epoch=1)
    assert line() == "ok    run — seen is queued, and nobody holds it"
