"""An attempt that resumed and made no step: whether there was something to do is known by what came before it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from agent_rig import Rig, eventually, mock
from commander_kit import FakeClock

from relay_agent.outcome.retry import Policy, Retries
from relay_agent.outcome.stop import Stop
from relay_agent.outcome.verdict import Verdict
from relay_agent.volume.volume import open_run
from relaytui.wire.status import Outcome

TRAINS = mock("--steps", 1000, "--step-seconds", 0.05, "--save-every", 10, "--total", "unknown", "--ignore-sigterm")


def ended(rig: Rig) -> tuple[str, str]:
    attempt = rig.run()["attempts"][-1]
    return attempt["outcome"], attempt.get("ending", "")


def test_where_a_pod_was_lost_after_its_last_checkpoint_a_command_that_does_nothing_has_failed(rig: Rig) -> None:
    """It was completed: the steps that were lost with the pod would never have been made again."""
    first = rig.agent(TRAINS, RELAY_STOP_GRACE="0.3")
    first.heard("step_00000010")
    eventually(lambda: rig.run()["step"] >= 13, "steps after the checkpoint")
    first.process.kill()
    first.process.wait()
    nothing = rig.agent("echo the wrong script", worker="pod-b")
    assert nothing.wait() == 1, nothing.says()
    assert ended(rig) == ("failed", "zero_steps")
    assert "where it resumed, and the run had come to step " in rig.run()["message"]
    rig.call(f"/api/runs/{rig.run_id}/requeue", expected_epoch=rig.run()["epoch"], why="once more")
    another = rig.agent("echo another wrong script", worker="pod-c")
    assert another.wait() == 1, another.says()
    assert ended(rig) == ("failed", "zero_steps"), "it is known to whoever comes next, too"


@pytest.mark.parametrize(("last", "outcome"), [(20, "completed"), (15, "failed")])
def test_where_the_command_had_told_how_far_it_goes_that_is_what_counts(rig: Rig, last: int, outcome: str) -> None:
    """Its pod was lost before it could say that it had ended: trained to its end, it failed for ever; short of that, it
    was completed."""
    command = (
        f'test -z "$RELAY_RESUME_FROM" || exit 0; mkdir $RELAY_CKPT_STAGING_ROOT/step_{last}; '
        f"cd $RELAY_CKPT_STAGING_ROOT/step_{last}; echo w > w; touch COMPLETE; echo step {last}/20 loss 1; "
        "trap '' TERM; while :; do sleep 0.1; done"
    )
    first = rig.agent(command, RELAY_STOP_GRACE="0.3")
    first.heard(f"published step_000000{last}")
    eventually(lambda: rig.run()["step"] == last, "its last line")
    first.process.kill()
    first.process.wait()
    second = rig.agent(command, worker="pod-b")
    assert second.wait() == (0 if outcome == "completed" else 1), second.says()
    assert ended(rig) == (outcome, "zero_steps")
    where = "reached step 20 of 20" if outcome == "completed" else "at step 15 of 20, where it resumed: it ran nothing"
    assert where in rig.run()["message"]


async def test_how_far_a_run_had_come_is_known_whatever_its_command_is(tmp_path: Path) -> None:
    def retries(digest: str) -> Retries:
        policy = Policy(3, 1.0, 8.0)
        return Retries(policy, open_run(tmp_path, "run"), tmp_path, digest, FakeClock(), random.Random(1))

    told: Any = None
    first, second = retries("one command"), retries("another")
    await first.load()
    await first.settle(Verdict(Outcome.PREEMPTED, 143, 7, "enough", 143, printed=7, published=5), Stop(), 1, told)
    await second.load()
    assert (second.reached, second.prints) == (7, False)
    await second.settle(Verdict(Outcome.PREEMPTED, 143, 5, "enough", 143), Stop(), 2, told)
    await first.load()
    assert first.reached == 7, "it is forgotten by none"
    second.came_to(12)
    await second.settle(Verdict(Outcome.FAILED, 1, 5, "it ran nothing", 0, "zero_steps"), Stop(), 3, told)
    third = retries("a third")
    await third.load()
    assert third.reached == 12
