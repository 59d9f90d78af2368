"""Orders reach a running agent at once and outlive it: cancel, drain and save, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import programs
import pytest
from agent_rig import LAUNCHERS, TUI, Agent, Rig, eventually, mock, rigged

from relay_agent import guardian
from relay_agent.attempt.rejoin import Rejoining
from relay_agent.outcome.stop import Stop, Why
from relay_agent.outcome.verdict import Verdict
from relay_agent.pod.takeover import Act
from relaytui.wire.status import Outcome

ORPHAN = {"ORPHAN_TIMEOUT": "60"}
NEVER = 100_000
"""Steps between checkpoints, for a trainer that saves only when it is asked."""


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[Rig]:
    """With a commander of its own and leases that outlive an agent's absence."""
    with rigged(tmp_path, lease_seconds=60.0) as rig:
        yield rig


def order(rig: Rig, kind: str, **more: object) -> None:
    rig.call(f"/api/runs/{rig.run_id}/{kind}", expected_epoch=1, why="a test", **more)


BY_FILE = "$RELAY_SAVE_FILE made; a trainer that does not look for it saves as usual"


def answers(rig: Rig) -> list[str]:
    events = rig.call(f"/api/events?run={rig.run_id}&limit=1000")["events"]
    return [event["message"] for event in events if event["kind"] == "order.acknowledged"]


def kill(agent: Agent) -> None:
    agent.process.kill()
    agent.wait()


# -- cancel ------------------------------------------------------------------------------------------------------


def test_cancel_saves_publishes_and_ends_the_run(rig: Rig) -> None:
    agent = rig.agent(mock("--steps", 5000, "--step-seconds", 0.05, "--save-every", NEVER))
    eventually(lambda: rig.run()["step"] >= 2, "two steps")
    order(rig, "cancel")
    assert agent.wait() == 143, agent.says()
    run = rig.run()
    assert (run["status"], run["attempts"][0]["outcome"]) == ("cancelled", "cancelled")
    assert run["message"].endswith(f"a test; its newest checkpoint is of step {run['newest_step']}")
    assert rig.checkpoints() == [run["newest_checkpoint"]]
    assert run["newest_step"] >= 2
    assert (rig.told()["status"], rig.told()["exit_code"]) == ("CANCELLED", 143)
    assert rig.agent(mock(), worker="pod-b").wait() == 75, "nobody takes it up again"


def test_cancelled_and_exited_0_is_0(rig: Rig) -> None:
    agent = rig.agent("trap 'exit 0' TERM; echo step 1/9 loss 1; while :; do sleep 0.05; done")
    eventually(lambda: rig.run()["step"] >= 1, "a step")
    order(rig, "cancel")
    assert agent.wait() == 0
    assert rig.run()["status"] == "cancelled"


def test_a_trainer_that_reaches_its_last_step_all_the_same_has_completed_the_run(rig: Rig) -> None:
    """It goes on after SIGTERM, to its end, once the order is there."""
    go = rig.root / "go"
    save = "d=$RELAY_CKPT_STAGING_ROOT/step_9; mkdir $d; echo x >$d/w; : >$d/COMPLETE"
    waits = f"until [ -e {go} ]; do sleep 0.05; done"
    agent = rig.agent(f"trap 'echo told' TERM; echo step 1/9 loss 1; {waits}; echo step 9/9 loss 1; {save}")
    eventually(lambda: rig.run()["step"] >= 1, "a step")
    order(rig, "cancel")
    log = rig.folder / "logs/e00000001.log"
    eventually(lambda: "told" in log.read_text(), "SIGTERM, which would end whatever the shell starts next")
    go.touch()
    assert agent.wait() == 0
    run = rig.run()
    assert (run["status"], run["attempts"][0]["outcome"], run["newest_step"]) == ("completed", "completed", 9)
    assert "reached step 9 of 9, saved it and exited 0 by itself" in run["message"]
    assert rig.agent(mock(), worker="pod-b").wait() == 75, "nobody trains it again"


def test_nothing_of_a_cancelled_trainer_is_left(rig: Rig) -> None:
    """Sessions of their own, daemons that ignore SIGTERM, a trainer that must be killed."""
    command = mock("--hang-at", 3, "--ignore-sigterm", "--children", 3, "--daemons")
    agent = rig.agent(command, RELAY_STOP_GRACE="0.5")
    guard = rig.guard()
    eventually(lambda: rig.run()["step"] >= 2 and len(guardian.tree(guard)) >= 5, "a trainer with its daemons")
    order(rig, "cancel")
    asked = time.monotonic()
    eventually(lambda: not guardian.tree(guard), "the whole tree gone", 10)
    assert time.monotonic() - asked < 0.5 + 5, "its grace, and little more"
    assert agent.wait() == 137
    assert rig.run()["status"] == "cancelled"


def test_a_cancel_counts_after_a_drain(rig: Rig) -> None:
    trap = "trap 'until test -e $RELAY_RUN_ROOT/go; do sleep 0.02; done; exit 143' TERM"
    agent = rig.agent(f"{trap}; echo step 1/9 loss 1; while :; do sleep 0.05; done")
    eventually(lambda: rig.run()["step"] >= 1, "a step")
    order(rig, "drain")
    agent.heard("asked to drain")
    order(rig, "cancel")
    agent.heard("the run is cancelled")
    (rig.folder / "go").touch()
    assert agent.wait() == 143
    run = rig.run()
    assert (run["status"], run["attempts"][0]["outcome"]) == ("cancelled", "cancelled")


# -- save --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        mock("--steps", 5000, "--step-seconds", 0.02, "--save-every", NEVER),
        f"CHAR_LM_STEPS=5000 CHAR_LM_SAVE_EVERY={NEVER} CHAR_LM_STEP_SECONDS=0.05 exec python3 {LAUNCHERS}/char_lm.py",
    ],
    ids=["mock", "char_lm"],
)
def test_a_checkpoint_appears_and_training_goes_on(rig: Rig, command: str) -> None:
    agent = rig.agent(command)
    eventually(lambda: rig.run()["step"] >= 3, "three steps")
    assert rig.checkpoints() == []
    order(rig, "save")
    saved = eventually(lambda: rig.run()["newest_step"], "a checkpoint", 10)
    eventually(lambda: rig.run()["step"] > saved + 3, "steps after it")
    assert rig.run()["status"] == "running"
    assert answers(rig) == [BY_FILE]
    assert len(rig.checkpoints()) == 1, "one wish, one checkpoint"
    assert not (rig.folder / "ckpt/.staging/e00000001/.save-now").exists(), "the trainer took it away"
    order(rig, "save")
    eventually(lambda: rig.run()["newest_step"] > saved, "one more")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait() == 143


def test_a_trainer_is_asked_by_its_own_signal_and_nothing_else_of_it_gets_it(rig: Rig) -> None:
    save = "d=$RELAY_CKPT_STAGING_ROOT/step_7; mkdir $d; echo x > $d/x; touch $d/COMPLETE"
    script = f"sleep 1000 & trap '{save}' USR1; echo step 1/9 loss 1; while :; do sleep 0.05; done"
    agent = rig.agent(script, SAVE_SIGNAL="USR1")
    eventually(lambda: rig.run()["step"] >= 1, "a step")
    before = guardian.tree(rig.guard())
    order(rig, "save")
    eventually(lambda: rig.run()["newest_step"] == 7, "a checkpoint")
    assert answers(rig) == [f"SIGUSR1 sent to 1 process of the trainer, {BY_FILE}"]
    still = {pid for pid in before if pid in guardian.processes()}
    assert len(still) >= len(before) - 1, "what does not know the signal would have died of it"
    agent.process.kill()


def test_a_signal_that_nobody_handles_kills_nothing(rig: Rig) -> None:
    agent = rig.agent(mock("--steps", 5000, "--step-seconds", 0.02, "--save-every", NEVER), SAVE_SIGNAL="USR2")
    eventually(lambda: rig.run()["step"] >= 1, "a step")
    order(rig, "save")
    eventually(lambda: rig.run()["newest_step"], "a checkpoint, as it was asked by file as well")
    assert answers(rig) == [f"nothing of the trainer handles SIGUSR2, {BY_FILE}"]
    agent.process.kill()


def test_what_cannot_be_asked_is_said(rig: Rig) -> None:
    agent = rig.agent("echo step 1/9 loss 1; while :; do sleep 0.05; done")
    eventually(lambda: rig.run()["step"] >= 1, "a step")
    staging = rig.folder / "ckpt/.staging/e00000001"
    staging.rename(staging.with_name("away"))
    order(rig, "save")
    eventually(lambda: "order.refused" in rig.kinds(), "its answer")
    assert "could not be made" in agent.says()
    order(rig, "sync")
    eventually(lambda: rig.kinds().count("order.refused") == 2, "its answer, as there is no Hub")
    assert rig.run()["status"] == "running"
    agent.process.kill()


def test_no_wish_of_an_earlier_attempt_is_there_at_the_start(rig: Rig) -> None:
    first = rig.agent("echo step 1/9 loss 1; while :; do sleep 0.05; done")
    eventually(lambda: rig.run()["step"] >= 1, "a step")
    order(rig, "save")
    eventually(lambda: answers(rig), "its answer")
    assert (rig.folder / "ckpt/.staging/e00000001/.save-now").exists(), "this trainer does not know of it"
    first.process.send_signal(signal.SIGTERM)
    first.wait()
    second = rig.agent("test -e $RELAY_SAVE_FILE && echo there; echo $RELAY_SAVE_FILE; echo step 9/9 loss 1")
    assert second.wait() == 0, second.says()
    assert str(rig.folder / "ckpt/.staging/e00000002/.save-now") in rig.lines()
    assert "there" not in rig.lines()
    assert rig.checkpoints() == [], "and it was taken for no checkpoint"


# -- at once, and whoever is there -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["drain", "cancel", "save"])
def test_an_order_reaches_a_running_agent_within_a_second(lone: Rig, kind: str) -> None:
    """As the operator sees it: from the call to the answer in the history. Its lease is renewed every six seconds here,
    so that it is no renewal which carries it."""
    mark = {"drain": "order.drain", "cancel": "order.cancel", "save": "order.save"}[kind]
    agent = lone.agent("trap 'sleep 5; exit 143' TERM; echo step 1/9 loss 1; while :; do sleep 0.05; done")
    eventually(lambda: lone.run()["step"] >= 1, "a step")
    asked = time.monotonic()
    order(lone, kind)
    eventually(lambda: mark in [event["event"] for event in lone.events()], f"{mark} on the volume", 5)
    assert time.monotonic() - asked < 2.0, "a second, and one for two busy cores"
    agent.process.kill()


@pytest.mark.parametrize("kind", ["cancel", "save"])
def test_an_order_given_while_no_agent_was_there_reaches_the_next_one(lone: Rig, kind: str) -> None:
    command = mock("--steps", 5000, "--step-seconds", 0.05, "--save-every", NEVER)
    kill_after_steps(lone, lone.agent(command, **ORPHAN))
    order(lone, kind)
    second = lone.agent(command, **ORPHAN)
    if kind == "cancel":
        assert second.wait() == 143, second.says()
        assert lone.run()["status"] == "cancelled"
    else:
        saved = eventually(lambda: lone.run()["newest_step"], "a checkpoint")
        eventually(lambda: lone.run()["step"] > saved, "a step after it")
        second.process.send_signal(signal.SIGTERM)
        assert second.wait() == 143
    assert len(lone.run()["attempts"]) == 1, "it was taken over"
    assert lone.run()["newest_step"] >= 5


def kill_after_steps(rig: Rig, agent: Agent, steps: int = 5) -> None:
    eventually(lambda: rig.run()["step"] >= steps, f"{steps} steps")
    kill(agent)


@pytest.mark.parametrize("kind", ["drain", "cancel"])
def test_an_agent_that_dies_after_its_answer_does_not_take_the_order_with_it(lone: Rig, kind: str) -> None:
    """Its trainer is still saving: the next agent knows why that ends, and it is no failure."""
    trap = "trap 'until test -e $RELAY_RUN_ROOT/go; do sleep 0.02; done; exit 143' TERM"
    command = f"{trap}; echo step 1/9 loss 1; while :; do sleep 0.05; done"
    first = lone.agent(command, **ORPHAN)
    eventually(lambda: lone.run()["step"] >= 1, "a step")
    order(lone, kind)
    first.heard("stopping the trainer")
    eventually(lambda: lone.run()["status"] == "draining", "its answer")
    kill(first)
    second = lone.agent(command, **ORPHAN)
    second.heard("stopping the trainer")
    (lone.folder / "go").touch()
    assert second.wait() == 143, second.says()
    run = lone.run()
    assert len(run["attempts"]) == 1
    assert run["status"] == {"drain": "queued", "cancel": "cancelled"}[kind]


def test_an_order_given_while_the_commander_cannot_be_heard_arrives_after_its_restart(lone: Rig) -> None:
    agent = lone.agent(mock("--steps", 5000, "--step-seconds", 0.05, "--save-every", NEVER))
    eventually(lambda: lone.run()["step"] >= 2, "two steps")
    agent.process.send_signal(signal.SIGSTOP)
    order(lone, "cancel")
    lone.kill_commander()
    lone.start_commander()
    agent.process.send_signal(signal.SIGCONT)
    assert agent.wait() == 143, agent.says()
    assert lone.run()["status"] == "cancelled"


def test_from_the_shell(rig: Rig) -> None:
    def tui(*words: str) -> subprocess.CompletedProcess[str]:
        command = [TUI, *words, "--state", rig.state]
        return programs.run(command, capture_output=True, text=True, timeout=30, check=False)

    agent = rig.agent(mock("--steps", 5000, "--step-seconds", 0.02, "--save-every", NEVER))
    eventually(lambda: rig.run()["step"] >= 1, "a step")
    asked = tui("save", rig.run_id)
    assert (asked.returncode, asked.stdout) == (0, ""), asked.stderr
    assert asked.stderr.startswith("pod-a answers: $RELAY_SAVE_FILE made; a trainer that does not look for it"), (
        asked.stderr
    )
    eventually(lambda: rig.run()["newest_step"], "a checkpoint")
    stale = tui("save", rig.run_id, "--expected-epoch", "0")
    assert stale.returncode == 75
    ordered = tui("cancel", rig.run_id, "--yes", "--expected-epoch", "1", "--json")
    assert json.loads(ordered.stdout)["run"]["status"] in ("draining", "cancelled")
    assert json.loads(ordered.stdout)["order_id"] > 0
    assert agent.wait() == 143
    assert rig.run()["status"] == "cancelled"


# -- which reason counts -----------------------------------------------------------------------------------------


def test_the_weightiest_reason_counts() -> None:
    outcomes = {
        Why.AGAIN: Outcome.CRASHED,
        Why.CHANGED: Outcome.DRAINED,
        Why.SIGNAL: Outcome.PREEMPTED,
        Why.CUT_OFF: Outcome.PREEMPTED,
        Why.DRAIN: Outcome.DRAINED,
        Why.CANCEL: Outcome.CANCELLED,
        Why.LOST: Outcome.SUPERSEDED,
    }
    assert list(outcomes) == sorted(Why)
    stop = Stop()
    for why, outcome in outcomes.items():
        stop.ask(why, str(why))
        assert Verdict.before_start(stop, 0).outcome is outcome
    for why in outcomes:
        stop.ask(why, "again")
    assert stop.why is Why.LOST


@pytest.mark.parametrize("why", [None, *Why])
@pytest.mark.parametrize("act", list(Act))
def test_who_was_told_to_stop_does_not_acquire_the_run_anew(act: Act, why: Why | None) -> None:
    """A trainer that was stopped for a new command goes on with that, unless somebody said otherwise meanwhile."""
    rejoining = Rejoining.__new__(Rejoining)
    rejoining.act, rejoining._stop = act, Stop()
    if why is not None:
        rejoining._stop.ask(why, "why")
    assert rejoining.again == (act in (Act.AGAIN, Act.DRAIN) and why in (None, Why.CHANGED))


def test_only_a_handler_counts_as_one() -> None:
    before = signal.signal(signal.SIGUSR2, lambda number, frame: None)
    try:
        assert guardian.handles(os.getpid(), signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        assert not guardian.handles(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not guardian.handles(2**22 + 1, signal.SIGUSR2)
