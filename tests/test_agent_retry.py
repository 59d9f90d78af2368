"""A trainer that fails is tried again by the same agent, as far as its ending and the budget let it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from agent_rig import Rig, eventually, mock, rigged

QUICK = {"RETRIES": "2", "RETRY_BACKOFF": "0.1"}


@pytest.fixture
def rig(tmp_path: Path) -> Any:
    with rigged(tmp_path) as rig:
        yield rig


def ends(rig: Rig) -> list[tuple[str, str]]:
    return [(attempt["outcome"], attempt.get("ending", "")) for attempt in rig.run()["attempts"]]


def test_a_crash_is_tried_again_from_the_newest_checkpoint(rig: Rig) -> None:
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    once = ("--crash-at", 12, "--crash-once", "$RELAY_RUN_ROOT/once", "--last-words", f'"{words}"')
    agent = rig.agent(mock("--steps", 20, "--step-seconds", 0.01, "--save-every", 5, *once), **QUICK)
    assert agent.wait() == 0, agent.says()
    run = rig.run()
    first, second = run["attempts"]
    assert ends(rig) == [("crashed", "cuda_oom"), ("completed", "completed")]
    assert (first["exit_code"], first["last_step"]) == (1, 11)
    assert f"out of GPU memory; its last words: {words}; retry 1 of 2" in first["message"]
    assert (second["epoch"], second["started_step"], second["started_from"]) == (2, 10, "step_00000010")
    started = next(event for event in rig.call(f"/api/events?run={rig.run_id}&limit=1000")["events"]
                   if event["kind"] == "run.started" and event["epoch"] == 2)  # fmt: skip
    assert "attempt 2, as the one before ended: the trainer exited with 1 at step 11" in started["message"]
    crashed = next(event for event in rig.events() if event["event"] == "attempt.ended")
    assert (crashed["outcome"], crashed["ending"]) == ("crashed", "cuda_oom")
    assert "attempt.retry" in rig.kinds()
    tries = json.loads((rig.folder / "tries.json").read_text())
    assert (tries["best"], tries["saved"], tries["since"]) == (20, 20, [])


def test_what_ends_so_again_is_not_tried_again(rig: Rig) -> None:
    agent = rig.agent("echo 'ModuleNotFoundError: No module named trl' >&2; exit 1", **QUICK)
    assert agent.wait() == 1
    assert ends(rig) == [("failed", "import_error")]
    assert rig.run()["status"] == "failed"
    assert rig.run()["message"].endswith("not tried again: it would end so again")


def test_the_budget_is_for_tries_that_get_no_further_and_outlives_the_agent_and_the_pod(rig: Rig) -> None:
    """Each agent dies while it waits for the next try, and the next one is on another pod."""
    command = mock("--steps", 20, "--step-seconds", 0.01, "--save-every", 5, "--crash-at", 7)
    slow = {"RETRIES": "2", "RETRY_BACKOFF": "60"}
    first = rig.agent(command, **slow)
    first.heard("relay-agent: retry 1 of 2 in")
    first.process.kill()
    second = rig.agent(command, worker="pod-b", **slow)
    second.heard("relay-agent: retry 2 of 2 in")
    second.process.send_signal(signal.SIGTERM)
    assert second.wait() == 143
    assert rig.run()["status"] == "queued"
    third = rig.agent(command, worker="pod-c", **slow)
    assert third.wait() == 1, third.says()
    run = rig.run()
    assert run["status"] == "failed"
    assert "not tried again: 2 in a row brought it no further than step 6" in run["message"]
    outcomes = [attempt["outcome"] for attempt in run["attempts"]]
    assert outcomes == ["crashed", "lost", "crashed", "preempted", "failed"]
    # Whoever queues it again means it: as many tries anew.
    rig.call(f"/api/runs/{rig.run_id}/requeue", expected_epoch=run["epoch"], why="mended")
    fourth = rig.agent(command, worker="pod-d", **QUICK)
    assert fourth.wait() == 1
    assert [outcome for outcome, _ in ends(rig)][5:] == ["crashed", "crashed", "failed"]


@pytest.mark.parametrize(("order", "status"), [("drain", "queued"), ("cancel", "cancelled")])
def test_orders_are_obeyed_at_once_while_it_waits(rig: Rig, order: str, status: str) -> None:
    agent = rig.agent(mock("--crash-at", 3, "--step-seconds", 0.01), RETRIES="3", RETRY_BACKOFF="600")
    agent.heard("retry 1 of 3 in")
    eventually(lambda: rig.run()["status"] == "leased", "the lease of the next try")
    assert "attempt 2, as the one before ended" in rig.run()["message"]
    rig.call(f"/api/runs/{rig.run_id}/{order}", expected_epoch=rig.run()["epoch"], why="enough")
    assert agent.wait(10) == 143, agent.says()
    assert rig.run()["status"] == status
    assert len(rig.run()["attempts"]) == 2


def test_a_trainer_that_failed_while_no_agent_was_there_is_tried_again(rig: Rig) -> None:
    wait = "cd $RELAY_RUN_ROOT; touch up; while ! test -e go; do sleep 0.05; done; echo step 1/4 loss 1; exit 5"
    command = f"test -e $RELAY_RUN_ROOT/up || {{ {wait}; }}; {mock('--steps', 4, '--step-seconds', 0.01)}"
    first = rig.agent(command, ORPHAN_TIMEOUT="60", **QUICK)
    eventually(lambda: (rig.folder / "up").exists(), "its trainer")
    first.process.kill()
    first.process.wait()
    (rig.folder / "go").touch()
    eventually(lambda: (rig.pod_folder() / "ended").exists(), "its guardian's word")
    second = rig.agent(command, ORPHAN_TIMEOUT="60", **QUICK)
    assert second.wait() == 0, second.says()
    assert ends(rig) == [("crashed", "crash"), ("completed", "completed")]
