"""Real trainers that hang in whatever they do: the phase is told, with Python's stacks, and what is done about it."""

from __future__ import annotations

import os
from typing import Any

import pytest
from agent_rig import Rig, commander, eventually, mock, rig  # noqa: F401 - fixtures

SPY = """#!/bin/sh
[ "$1 $2 $3" = "dump --nonblocking --pid" ] || exit 9
echo "Process $4: python3 mock_trainer.py --secret"
echo "Python v3.12.1 (/usr/bin/python3.12)"
echo
echo "Thread $4 (idle): \\"MainThread\\""
echo "    wait_for_the_others (collective.py:7)"
echo "    main (train.py:12)"
"""
BUDGETS = {"STALL_LOAD": "30", "STALL_STEP": "30", "STALL_EVAL": "30", "STALL_SAVE": "30"}
LAST = {
    "training": ("it has made no step", "GET /health"),
    "evaluating": ("its evaluation has not moved", "1/32"),
    "saving": ("nothing that it saves has grown", "saving checkpoint to out"),
}


def with_py_spy(rig: Rig) -> str:  # noqa: F811
    """A PATH on which py-spy lies."""
    folder = rig.root / "bin"
    folder.mkdir()
    (folder / "py-spy").write_text(SPY)
    (folder / "py-spy").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def hangs(phase: str, *more: object) -> str:
    chatter = ("--chatter",) if phase == "training" else ()
    flags = ("--steps", 16, "--step-seconds", 0.01, "--save-every", 5, "--hang-at", 12, "--hang-in", phase)
    return mock(*flags, *chatter, *more)


def stalled(rig: Rig) -> dict[str, Any]:  # noqa: F811
    return next(event for event in rig.events() if event["event"] == "trainer.stalled")


def short(phase: str) -> dict[str, str]:
    name = {"training": "STEP", "evaluating": "EVAL", "saving": "SAVE"}[phase]
    first = {"STALL_LOAD": "1"} if phase == "training" else {}  # what the first steps may take, too
    return {**BUDGETS, **first, f"STALL_{name}": "1"}


@pytest.mark.parametrize("phase", ["evaluating", "saving"])
def test_by_the_policy_warn_it_is_said_and_it_trains_on(rig: Rig, phase: str) -> None:  # noqa: F811
    go, end = rig.root / "go", rig.root / "end"
    command = hangs(phase, "--hang-until", go, "--last-waits-for", end)
    agent = rig.agent(command, PATH=with_py_spy(rig), **short(phase))
    agent.heard(f"the trainer has stalled in {phase}")
    eventually(lambda: "trainer.stalled" in rig.kinds(), "the commander knows")
    go.touch()
    eventually(lambda: "trainer.moving" in rig.kinds(), "it moves again")
    end.touch()
    assert agent.wait() == 0, agent.says()
    event = stalled(rig)
    silence, last = LAST[phase]
    assert event["phase"] == phase
    assert f"stalled in {phase}: {silence} for " in event["message"]
    assert last in event["message"]
    assert "wait_for_the_others (collective.py:7) < main (train.py:12)" in event["stacks"]
    kept = (rig.folder / event["kept"]).read_text()
    assert "wait_for_the_others (collective.py:7)" in kept
    assert "--secret" not in kept
    moving = next(event for event in rig.events() if event["event"] == "trainer.moving")
    assert f"in {phase}" in moving["message"]
    run = rig.run()
    assert (run["status"], run["step"], len(run["attempts"])) == ("completed", 16, 1)
    assert rig.checkpoints()[-1] == "step_00000016"


def test_by_the_policy_restart_it_is_started_anew_though_crashes_are_final(rig: Rig) -> None:  # noqa: F811
    """It prints, and makes no step; loading is in `test_watchdog_run.py`."""
    phase = "training"
    agent = rig.agent(
        hangs(phase, "--only-epochs", 1), PATH=with_py_spy(rig), ON_STALL="restart", RETRIES="0", **short(phase)
    )
    assert agent.wait() == 0, agent.says()
    event = stalled(rig)
    assert (event["phase"], LAST[phase][1] in event["message"]) == (phase, True), event
    assert "wait_for_the_others" in event["stacks"]
    run = rig.run()
    first, second = run["attempts"]
    assert (first["outcome"], first["ending"], second["outcome"]) == ("crashed", "stalled", "completed")
    assert f"stalled in {phase}" in first["message"]
    assert first["message"].endswith("; retry 1 of 3 at once")
    assert second["started_step"] > 0, "from what it saved when it was told to stop"
    assert run["step"] == 16
