"""ON_LEASE_LOSS=stop, by agent and guardian: the trainer is dead in time, or goes on where an agent takes it over."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from agent_rig import eventually, mock
from takeover_kit import ORPHAN, kill, orphaning, steps

from relay_agent import guardian


def test_stop_policy_the_trainer_is_dead_before_the_lease_ends_with_a_frozen_agent(tmp_path: Path) -> None:
    with orphaning(tmp_path, lease_seconds=6.0) as rig:
        command = mock("--steps", 5000, "--step-seconds", 0.05, "--save-every", 100_000)
        agent = rig.agent(command, ON_LEASE_LOSS="stop", RELAY_STOP_GRACE="1", **ORPHAN)
        eventually(lambda: rig.run()["step"] >= 3, "three steps")
        guard = rig.guard()
        agent.process.send_signal(signal.SIGSTOP)
        frozen = time.monotonic()
        eventually(lambda: not guardian.tree(guard), "the trainer's tree gone", 8)
        assert time.monotonic() - frozen < 6.0
        agent.process.send_signal(signal.SIGCONT)
        agent.wait()


def test_stop_policy_a_new_agent_takes_the_trainer_over_and_stops_nothing(tmp_path: Path) -> None:
    with orphaning(tmp_path, lease_seconds=6.0) as rig:
        command = mock("--steps", 100, "--step-seconds", 0.05, "--save-every", 20)
        first = rig.agent(command, ON_LEASE_LOSS="stop", RELAY_STOP_GRACE="1", **ORPHAN)
        eventually(lambda: rig.run()["step"] >= 3, "three steps")
        kill(first)
        second = rig.agent(command, ON_LEASE_LOSS="stop", RELAY_STOP_GRACE="1", **ORPHAN)
        assert second.wait() == 0, second.says()
        (attempt,) = rig.run()["attempts"]
        assert (attempt["epoch"], attempt["outcome"], attempt["last_step"]) == (1, "completed", 100)
        assert "agent.lease.cut_off" not in rig.kinds()
        assert steps(rig) == [f"{n}/100" for n in range(1, 101)]


def test_stop_policy_cut_off_it_saves_and_gives_the_run_back(tmp_path: Path) -> None:
    with orphaning(tmp_path, lease_seconds=4.0) as rig:
        command = mock("--steps", 5000, "--step-seconds", 0.05, "--save-every", 100_000)
        agent = rig.agent(command, ON_LEASE_LOSS="stop", RELAY_STOP_GRACE="1", **ORPHAN)
        eventually(lambda: rig.run()["step"] >= 3, "three steps")
        rig.kill_commander()
        agent.heard("as ON_LEASE_LOSS says")
        agent.heard("preempted at step")
        rig.start_commander()
        assert agent.wait() in (75, 143), agent.says()
        (attempt,) = rig.run()["attempts"]
        assert attempt["outcome"] == "preempted"
        assert rig.run()["newest_step"] >= 3


def test_an_operator_who_no_longer_wants_it_stopped_is_heard_by_the_guardian(tmp_path: Path) -> None:
    with orphaning(tmp_path, lease_seconds=8.0) as rig:  # a busy machine takes seconds to start an agent
        command = mock("--steps", 160, "--step-seconds", 0.05, "--save-every", 50)
        first = rig.agent(command, ON_LEASE_LOSS="stop", RELAY_STOP_GRACE="1", **ORPHAN)
        eventually(lambda: rig.run()["step"] >= 5, "five steps")
        kill(first)
        second = rig.agent(command, RELAY_STOP_GRACE="1", **ORPHAN)
        assert second.wait() == 0, second.says()
        (attempt,) = rig.run()["attempts"]
        assert (attempt["outcome"], attempt["last_step"]) == ("completed", 160)
        assert "agent.lease.cut_off" not in rig.kinds()


def test_taken_over_under_the_rule_to_stop_it_trains_on(tmp_path: Path) -> None:
    with orphaning(tmp_path, lease_seconds=8.0) as rig:  # a busy machine takes seconds to start an agent
        command = mock("--steps", 160, "--step-seconds", 0.05, "--save-every", 50)
        stop = {"ON_LEASE_LOSS": "stop", "RELAY_STOP_GRACE": "1", **ORPHAN}
        first = rig.agent(command, **stop)
        eventually(lambda: rig.run()["step"] >= 5, "five steps")
        kill(first)
        second = rig.agent(command, **stop)
        assert second.wait() == 0, second.says()
        (attempt,) = rig.run()["attempts"]
        assert (attempt["outcome"], attempt["last_step"]) == ("completed", 160)
        assert "agent.lease.cut_off" not in rig.kinds()
