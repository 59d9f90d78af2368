"""The last line of an agent says how its attempt ended: at which step, where it made any, and who took the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agent_rig import Rig, eventually, mock, rigged

from relay_agent.attempt.attempt import last_line
from relay_agent.outcome.stop import Stop, Why
from relay_agent.outcome.verdict import Verdict, never_started
from relaytui.wire.errors import RelayError
from relaytui.wire.status import Outcome

FAILED = Verdict(Outcome.FAILED, 1, 0, "exited with 1", trainer_code=1)


def test_no_step_is_said_of_an_attempt_that_never_had_a_trainer() -> None:
    refused = never_started(RelayError("bad", "no bash"), Stop())
    assert last_line("long", refused) == "run long preempted: the trainer was not started"
    stop = Stop()
    stop.ask(Why.DRAIN, "drained by root")
    assert last_line("long", Verdict.before_start(stop, 0)) == (
        "run long drained: drained by root, before the trainer started"
    )


@pytest.mark.parametrize("step", [0, 220])
def test_where_one_ran_its_step_is_said(step: int) -> None:
    assert last_line("long", replace(FAILED, step=step)) == f"run long failed at step {step}: exited with 1"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rigged(tmp_path, lease_seconds=30.0) as rig:
        yield rig


def test_who_took_the_run_is_said_as_that(rig: Rig) -> None:
    agent = rig.agent(mock("--steps", 2000, "--step-seconds", 0.05))
    eventually(lambda: rig.run()["step"] >= 2, "two steps")
    rig.call(f"/api/runs/{rig.run_id}/force-acquire", expected_epoch=1, why="test it")
    agent.wait()
    assert f"run {rig.run_id} superseded at step " in agent.says()
    assert ": taken over by operator: test it" in agent.says()
