"""A trainer that fails while the commander is away does not wait for it: it is started again under the lease it has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_rig import Rig, eventually, mock, rigged
from checkpoint_kit import new_run

from relay_agent.attempt.once_more import make_way
from relay_agent.attempt.rejoin import known_to
from relay_agent.spool.lane import Mark
from relay_agent.volume.volume import Claim, RunFolder, claim

QUICK = {"RETRIES": "2", "RETRY_BACKOFF": "0.1"}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rigged(tmp_path) as rig:
        yield rig


def waits_and_fails(go: Path, *more: object) -> str:
    """Five steps, then it waits until it may go on, and fails in step 12 the first time."""
    once = ("--crash-at", 12, "--crash-once", "$RELAY_RUN_ROOT/once", "--exit-code", 7)
    first = mock("--steps", 5, "--step-seconds", 0.01, "--save-every", 5).removeprefix("exec ")
    wait = f"test -e {go} || {{ {first}; while ! test -e {go}; do sleep 0.05; done; }}"
    return f"{wait}; {mock('--steps', 20, '--step-seconds', 0.02, '--save-every', 5, *once, *more)}"


def test_it_is_tried_again_at_once_and_all_of_it_is_told_later(rig: Rig) -> None:
    go, end = rig.root / "go", rig.root / "end"
    agent = rig.agent(waits_and_fails(go, "--last-waits-for", end), **QUICK)
    eventually(lambda: rig.run()["newest_step"] == 5, "the first checkpoint is known")
    rig.kill_commander()
    go.touch()
    agent.heard("no commander answers: under the lease that is held")
    agent.heard("retry 1 of 2")
    eventually(lambda: "step_00000015" in rig.checkpoints(), "it trains on, and publishes, without a commander")
    end.touch()
    eventually(lambda: "run-1 completed" in agent.says(), "its end")
    rig.start_commander()
    assert agent.wait() == 0, agent.says()
    run = rig.run()
    assert (run["status"], run["step"], run["newest_step"]) == ("completed", 20, 20)
    (attempt,) = run["attempts"]
    assert (attempt["epoch"], attempt["started_from"], attempt["started_step"]) == (1, "step_00000010", 10)
    kinds = rig.kinds()
    assert (kinds.count("run.started"), kinds.count("trainer.exited"), kinds.count("attempt.retry")) == (2, 2, 1)
    lines = rig.lines()
    assert [line for line in lines if line.startswith("step 20/20")]
    assert lines.count("resumed at step 10") == 1
    assert lines.index(next(line for line in lines if line.startswith("step 11/"))) < lines.index("resumed at step 10")
    logs = {path.name for path in (rig.folder / "logs").iterdir()}
    assert {"e00000001.1.log", "e00000001.log", "e00000001.exit"} <= logs
    assert "resumed at step 10" in (rig.folder / "logs" / "e00000001.log").read_text()
    assert (rig.folder / "out" / "e00000001.1").is_dir()
    assert [path.name for path in (rig.folder / "claims").iterdir()] == ["00000001.json"]
    assert json.loads((rig.folder / "tries.json").read_text())["since"] == []


def test_it_begins_nothing_beside_one_that_has_claimed_the_run_meanwhile(rig: Rig) -> None:
    """Its lease runs out while it waits for its next try, and somebody has the run who can reach the commander."""
    go = rig.root / "go"
    agent = rig.agent(waits_and_fails(go), RETRIES="2", RETRY_BACKOFF="3")
    eventually(lambda: rig.run()["newest_step"] == 5, "the first checkpoint is known")
    rig.kill_commander()
    go.touch()
    agent.heard("no commander answers: under the lease that is held")
    claim(RunFolder(rig.folder), Claim(2, "pod-b", "incarnation", None, "config", 0.0))
    eventually(lambda: "run-1 superseded" in agent.says(), "its end")
    assert agent.says().count("trainer started: ") == 1, agent.says()


def test_an_agent_that_comes_after_takes_the_second_try_over(rig: Rig) -> None:
    go, end = rig.root / "go", rig.root / "end"
    command = waits_and_fails(go, "--last-waits-for", end)
    first = rig.agent(command, ORPHAN_TIMEOUT="60", **QUICK)
    eventually(lambda: rig.run()["newest_step"] == 5, "the first checkpoint is known")
    rig.kill_commander()
    go.touch()
    eventually(lambda: "step_00000015" in rig.checkpoints(), "the second try")
    first.process.kill()
    first.process.wait()
    rig.start_commander()
    second = rig.agent(command, ORPHAN_TIMEOUT="60", **QUICK)
    second.heard("its trainer still runs")
    end.touch()
    assert second.wait() == 0, second.says()
    run = rig.run()
    assert (run["status"], run["step"], len(run["attempts"])) == ("completed", 20, 1)
    lines = rig.lines()
    assert [sum(line.startswith(f"step {step}/20") for line in lines) for step in (11, 12, 15, 20)] == [2, 1, 1, 1]


def test_what_the_try_before_left_gets_a_number(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    pod = tmp_path / "pod"
    pod.mkdir()
    for number in (1, 2):
        run.log(1).write_text(f"log {number}")
        run.log(1).with_suffix(".exit").write_text("0")
        (run.output(1) / f"out {number}").touch()
        for noted in (".seen.json", ".heard.json"):
            (run.staging(1) / noted).write_text("{}")
        (pod / "ended").write_text("0 0 0 itself")
        make_way(run, 1, pod)
        assert run.log(1).with_name(f"e00000001.{number}.log").read_text() == f"log {number}"
        assert (run.output(1).with_name(f"e00000001.{number}") / f"out {number}").exists()
        assert list(run.output(1).iterdir()) == []
        assert not run.log(1).exists()
        assert not run.log(1).with_suffix(".exit").exists(), "how the next one ends nobody knows yet"
        assert not list(run.staging(1).glob(".*.json")), "its saves may have the same names"
        assert not (pod / "ended").exists()


def test_a_log_is_read_on_from_where_its_own_lines_were_known() -> None:
    """Another trainer of the same attempt has printed before this one, and what was read of it may be known alone."""
    assert known_to(None, 1) == Mark(0, 1)
    assert known_to(Mark(700, 9), 1) == Mark(700, 9)
    assert known_to(None, 13) == Mark(0, 13)
    assert known_to(Mark(700, 9), 13) == Mark(0, 13)
    assert known_to(Mark(700, 13), 13) == Mark(0, 13), "where the log before this one ended"
    assert known_to(Mark(50, 14), 13) == Mark(50, 14)
