"""The agent dies and training goes on: a new agent takes the trainer over, or sees to what became of it."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_rig import SECRET, Rig, beside, eventually, mock
from takeover_kit import ORPHAN, forget_everything, kill, orphaning, steps, stop_all, trainer_pid

from relay_agent import guardian
from relay_agent.link.contact import Contact
from relay_agent.link.link import GIVES_WAY, Link
from relay_agent.pod.pod import Pod
from relay_agent.pod.takeover import RULES, Act, Standing, Trainer, look
from relaytui.wire.clock import SystemClock
from relaytui.wire.messages import PROTOCOL, Hello


@pytest.fixture
def rig(commander: Rig, tmp_path: Path) -> Iterator[Rig]:
    with beside(commander, tmp_path) as rig:
        yield rig
        stop_all(rig)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Rig]:
    """With a commander of its own: to be killed, or nobody else's is in its history."""
    with orphaning(tmp_path) as rig:
        yield rig


def test_a_killed_agent_is_followed_by_another_and_no_step_is_lost(rig: Rig) -> None:
    command = mock("--steps", 120, "--step-seconds", 0.05, "--save-every", 10)
    first = rig.agent(command, **ORPHAN)
    eventually(lambda: rig.run()["newest_step"] >= 20, "a second checkpoint")
    pid = trainer_pid(rig)
    kill(first)
    log = rig.folder / "logs/e00000001.log"
    printed = log.stat().st_size
    eventually(lambda: log.stat().st_size > printed + 200, "training without an agent")
    second = rig.agent(command, **ORPHAN)
    second.heard("goes on with a new agent: its trainer still runs")
    assert pid in guardian.processes()
    assert second.wait() == 0, second.says()
    assert "published before this agent began: " in second.says()
    assert "relay-agent: published step_00000010" not in second.says(), "it was the agent before that did"
    (attempt,) = rig.run()["attempts"]
    assert (attempt["epoch"], attempt["outcome"], attempt["last_step"]) == (1, "completed", 120)
    assert steps(rig) == [f"{n}/120" for n in range(1, 121)], "every line, once, in order"
    assert rig.run()["published"] == 12
    assert len(rig.checkpoints()) == 3
    assert "agent.took_over" in rig.kinds()
    assert not rig.pod_folder().exists(), "delivered and forgotten"


def test_it_may_be_killed_again_and_again_while_the_commander_is_away(alone: Rig) -> None:
    rig = alone
    command = mock("--steps", 100, "--step-seconds", 0.05, "--save-every", 20)
    agent = rig.agent(command, **ORPHAN)
    log = rig.folder / "logs/e00000001.log"
    eventually(lambda: rig.run()["step"] >= 5, "five steps")
    rig.kill_commander()
    for lines in (20, 35, 50):
        eventually(lambda lines=lines: log.read_bytes().count(b"\n") >= lines, f"{lines} lines")
        kill(agent)
        agent = rig.agent(command, **ORPHAN)
        agent.heard("goes on with a new agent")
    rig.start_commander()
    assert agent.wait() == 0, agent.says()
    (attempt,) = rig.run()["attempts"]
    assert (attempt["outcome"], attempt["last_step"]) == ("completed", 100)
    assert steps(rig) == [f"{n}/100" for n in range(1, 101)], "every line, once, in order"
    assert rig.run()["published"] == 5


def test_a_trainer_that_ends_without_an_agent_is_told_of_by_the_next_one(rig: Rig) -> None:
    command = mock("--steps", 40, "--step-seconds", 0.03, "--save-every", 20)
    first = rig.agent(command, **ORPHAN)
    eventually(lambda: rig.run()["step"] >= 3, "three steps")
    kill(first)
    ended = rig.pod_folder() / guardian.ENDED
    eventually(ended.exists, "the guardian's word")
    second = rig.agent(command, **ORPHAN)
    assert second.wait() == 0, second.says()
    second.heard("its trainer has exited meanwhile")
    (attempt,) = rig.run()["attempts"]
    assert (attempt["outcome"], attempt["exit_code"], attempt["last_step"]) == ("completed", 0, 40)
    assert steps(rig) == [f"{n}/40" for n in range(1, 41)]
    assert rig.checkpoints() == ["step_00000020", "step_00000040"]


def test_a_trainer_that_fails_without_an_agent_has_failed(rig: Rig) -> None:
    first = rig.agent(mock("--steps", 40, "--step-seconds", 0.03, "--crash-at", 30, "--exit-code", 7), **ORPHAN)
    eventually(lambda: rig.run()["step"] >= 3, "three steps")
    kill(first)
    eventually((rig.pod_folder() / guardian.ENDED).exists, "the guardian's word")
    second = rig.agent(mock("--steps", 40, "--step-seconds", 0.03, "--crash-at", 30, "--exit-code", 7), **ORPHAN)
    assert second.wait() == 7, second.says()
    (attempt,) = rig.run()["attempts"]
    assert (attempt["outcome"], attempt["exit_code"]) == ("failed", 7)


def test_without_an_agent_for_long_it_saves_and_stops_and_the_next_agent_goes_on_from_there(rig: Rig) -> None:
    command = mock("--steps", 100, "--step-seconds", 0.03, "--save-every", 100_000)
    first = rig.agent(command, ORPHAN_TIMEOUT="0.5")
    eventually(lambda: rig.run()["step"] >= 5, "five steps")
    kill(first)
    ended = rig.pod_folder() / guardian.ENDED
    eventually(ended.exists, "stopped for want of an agent")
    assert ended.read_text().split()[3] == "orphan"
    second = rig.agent(command, ORPHAN_TIMEOUT="0.5")
    assert second.wait() == 0, second.says()
    attempts = rig.run()["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["preempted", "completed"]
    saved = attempts[1]["started_step"]
    assert saved >= 5
    assert attempts[1]["started_from"] == f"step_{saved:08d}"
    assert steps(rig) == [f"{n}/100" for n in (*range(1, saved + 1), *range(saved + 1, 101))]


def test_who_takes_over_a_trainer_that_was_asked_to_stop_goes_on_from_what_it_saves(rig: Rig, tmp_path: Path) -> None:
    """By an agent that its guardian could not hear, and that died before there was anything to publish."""
    ends, script = tmp_path / "ends", tmp_path / "train.sh"
    script.write_text(f"""
    if mkdir {tmp_path}/begun; then
        trap 'while ! test -e {ends}; do sleep 0.02; done; exit 0' TERM
        echo step 1/40; sleep 60 & wait
    fi
    for s in $(seq 40); do echo step $s/40; done
    """)
    command = f"exec bash {script}"
    first = rig.agent(command, **ORPHAN)
    eventually(lambda: rig.run()["step"] >= 1, "a step")
    kill(first)
    (rig.pod_folder() / guardian.BESIDE).touch()
    os.killpg(trainer_pid(rig), signal.SIGTERM)
    second = rig.agent(command, **ORPHAN)
    second.heard("goes on with a new agent: its trainer still runs")
    ends.touch()
    assert second.wait() == 0, second.says()
    attempts = rig.run()["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["preempted", "completed"]
    assert "its trainer was stopped meanwhile" in attempts[0]["message"]


def test_a_changed_command_saves_the_old_trainer_and_goes_on_from_there(rig: Rig) -> None:
    first = rig.agent(mock("--steps", 5000, "--step-seconds", 0.05, "--save-every", 100_000), **ORPHAN)
    eventually(lambda: rig.run()["step"] >= 5, "five steps")
    kill(first)
    second = rig.agent(mock("--steps", 60, "--step-seconds", 0.02, "--save-every", 100_000), **ORPHAN)
    second.heard("command, mode or volume was changed")
    assert second.wait() == 0, second.says()
    attempts = rig.run()["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["drained", "completed"]
    assert attempts[1]["started_step"] >= 5


def test_superseded_while_no_agent_was_there_it_is_stopped(rig: Rig) -> None:
    command = mock("--steps", 5000, "--step-seconds", 0.2, "--save-every", 10)
    first = rig.agent(command, **ORPHAN)
    eventually(lambda: rig.run()["newest_step"] >= 10, "a checkpoint")
    guard = rig.guard()
    kill(first)
    rig.call(f"/api/runs/{rig.run_id}/force-acquire", expected_epoch=1, why="a test", pod_gone=True)
    other = rig.agent(mock("--steps", 100, "--step-seconds", 0.02, "--save-every", 10), worker="pod-b")
    assert other.wait() == 0, other.says()
    assert guardian.tree(guard), "the old trainer runs on, and nobody publishes what it saves"
    second = rig.agent(command, **ORPHAN)
    assert second.wait() == 75, second.says()
    # Of a guardian that was taken over its end is heard, and not collected: it is the very last to go.
    eventually(lambda: not guardian.tree(guard), "the end of the old trainer and of its guardian")
    assert [attempt["outcome"] for attempt in rig.run()["attempts"]] == ["superseded", "completed"]
    assert max(rig.checkpoints()) == "step_00000100"


def test_an_agent_that_lives_keeps_its_trainer(rig: Rig) -> None:
    command = mock("--steps", 5000, "--step-seconds", 0.05)
    first = rig.agent(command, **ORPHAN)
    eventually(lambda: rig.run()["step"] >= 3, "three steps")
    second = rig.agent(command, **ORPHAN)
    second.heard("waiting for run")
    assert first.process.poll() is None
    assert len(rig.run()["attempts"]) == 1


def test_a_copied_folder_takes_nothing_over(rig: Rig) -> None:
    command = mock("--steps", 5000, "--step-seconds", 0.05, "--save-every", 10)
    first = rig.agent(command, **ORPHAN)
    eventually(lambda: rig.run()["step"] >= 3, "three steps")
    kill(first)
    shutil.copytree(rig.root / "pod-a", rig.root / "pod-c", ignore=shutil.ignore_patterns("*.sock"))
    assert look(Pod(rig.root / "pod-c", SystemClock()), rig.run_id) is None
    found = look(Pod(rig.root / "pod-a", SystemClock()), rig.run_id)
    assert found is not None
    assert found.trainer is Trainer.RUNNING
    assert found.line is not None
    found.line.close()


def test_a_drain_ordered_while_no_agent_was_there_reaches_the_next_one(rig: Rig) -> None:
    command = mock("--steps", 5000, "--step-seconds", 0.05, "--save-every", 100_000)
    first = rig.agent(command, **ORPHAN)
    eventually(lambda: rig.run()["step"] >= 5, "five steps")
    kill(first)
    rig.call(f"/api/runs/{rig.run_id}/drain", expected_epoch=1, why="a test")
    second = rig.agent(command, **ORPHAN)
    assert second.wait() == 143, second.says()
    (attempt,) = rig.run()["attempts"]
    assert attempt["outcome"] == "drained"
    assert rig.run()["newest_step"] >= 5


def test_a_lost_commander_knows_the_lease_again(alone: Rig) -> None:
    """Its database is gone: the holder is entered with the same epoch, and everything it has is told again."""
    rig = alone
    agent = rig.agent(mock("--steps", 80, "--step-seconds", 0.05, "--save-every", 10))
    eventually(lambda: rig.run()["newest_step"] >= 10, "a checkpoint")
    rig.kill_commander()
    for path in rig.state.iterdir():
        if path.name != "key":
            path.unlink()
    rig.start_commander()
    agent.heard("the commander knows this lease again")
    assert agent.wait() == 0, agent.says()
    (attempt,) = rig.run()["attempts"]
    assert (attempt["epoch"], attempt["outcome"], attempt["last_step"]) == (1, "completed", 80)
    assert "lease.registered" in rig.kinds()
    assert steps(rig) == [f"{n}/80" for n in range(1, 81)], "nothing was acknowledged that is not here"


def test_the_rules_name_every_case() -> None:
    assert set(RULES) == {
        (trainer, standing, same) for trainer in Trainer for standing in Standing for same in (True, False)
    }
    for (trainer, standing, _), act in RULES.items():
        assert (act is Act.QUARANTINE) == (standing is Standing.HIGHER), "one that was replaced goes on under no rule"
        assert act not in (Act.KEEP, Act.REGISTER, Act.DRAIN) or trainer is Trainer.RUNNING


def test_neither_agent_nor_books_are_there_any_more_and_training_goes_on(alone: Rig) -> None:
    rig = alone
    command = mock("--steps", 120, "--step-seconds", 0.05, "--save-every", 20)
    first = rig.agent(command, **ORPHAN)
    eventually(lambda: rig.run()["newest_step"] >= 20, "a checkpoint")
    kill(first)
    forget_everything(rig)
    second = rig.agent(command, **ORPHAN)
    second.heard("the commander knows this lease again")
    assert second.wait() == 0, second.says()
    (attempt,) = rig.run()["attempts"]
    assert (attempt["epoch"], attempt["outcome"], attempt["last_step"]) == (1, "completed", 120)
    numbers = [int(step.partition("/")[0]) for step in steps(rig)]
    assert numbers == list(range(numbers[0], 121)), "from where the spool reaches back, every line"


def test_an_end_that_nobody_saw_is_told_to_a_commander_that_lost_its_books(alone: Rig) -> None:
    rig = alone
    command = mock("--steps", 40, "--step-seconds", 0.03, "--save-every", 20)
    first = rig.agent(command, **ORPHAN)
    eventually(lambda: rig.run()["step"] >= 3, "three steps")
    kill(first)
    eventually((rig.pod_folder() / guardian.ENDED).exists, "the guardian's word")
    forget_everything(rig)
    second = rig.agent(command, **ORPHAN)
    assert second.wait() == 0, second.says()
    (attempt,) = rig.run()["attempts"]
    assert (attempt["epoch"], attempt["outcome"]) == (1, "completed")
    assert rig.run()["newest_step"] == 40


def test_what_ended_unseen_after_another_took_over_is_history(rig: Rig) -> None:
    command = mock("--steps", 60, "--step-seconds", 0.03, "--save-every", 30)
    first = rig.agent(command, **ORPHAN)
    eventually(lambda: rig.run()["step"] >= 3, "three steps")
    kill(first)
    rig.call(f"/api/runs/{rig.run_id}/force-acquire", expected_epoch=1, why="a test", pod_gone=True)
    other = rig.agent(mock("--steps", 100, "--step-seconds", 0.02, "--save-every", 10), worker="pod-b")
    assert other.wait() == 0, other.says()
    eventually((rig.pod_folder() / guardian.ENDED).exists, "the guardian's word")
    before = rig.checkpoints()
    second = rig.agent(command, **ORPHAN)
    assert second.wait() == 75, second.says()
    assert [attempt["outcome"] for attempt in rig.run()["attempts"]] == ["superseded", "completed"]
    assert (rig.checkpoints(), rig.run()["newest_step"]) == (before, 100)


def test_two_agents_at_once_after_ones_death_leave_the_trainer_alone(rig: Rig) -> None:
    command = mock("--steps", 150, "--step-seconds", 0.05, "--save-every", 50)
    first = rig.agent(command, **ORPHAN)
    eventually(lambda: rig.run()["step"] >= 5, "five steps")
    kill(first)
    both = [rig.agent(command, **ORPHAN) for _ in range(2)]
    eventually(lambda: any("goes on with a new agent" in agent.says() for agent in both), "one takes over")
    codes = sorted(agent.wait() for agent in both)
    assert codes == [0, 75], "one trains it to its end, the other waits and hears that it has ended"
    (attempt,) = rig.run()["attempts"]
    assert (attempt["outcome"], attempt["last_step"]) == ("completed", 150)
    assert steps(rig) == [f"{n}/150" for n in range(1, 151)]


def test_two_agents_of_one_name_are_told_and_hurt_each_other_in_nothing(alone: Rig) -> None:
    """A name is a label: each trains its own run, and on both pods and in the history stands that there are two."""
    rig = alone
    first = rig.agent(mock("--steps", 100, "--step-seconds", 0.05))
    eventually(lambda: rig.run()["step"] >= 2, "two steps")
    second = rig.agent(mock("--steps", 3), worker="pod-a", RUN_ID="run-2", RELAY_AGENT_STATE=str(rig.root / "pod-b"))
    for agent in (first, second):
        agent.heard("another agent called pod-a is connected too (on ")
        agent.heard("give each its own WORKER_ID")
    assert second.wait() == 0, second.says()
    kinds = [event["kind"] for event in rig.call("/api/events?limit=1000")["events"]]
    assert kinds.count("worker.namesake") == 1
    assert kinds.count("worker.connected") == 2, "neither threw the other out"
    assert first.says().count("is connected too") == 1
    assert first.wait() == 0, first.says()


async def test_two_agents_of_one_incarnation_do_not_throw_each_other_out_again_and_again(
    rig: Rig,
) -> None:
    """As where a folder was copied with all that binds it: the later one has the session, the earlier says so."""
    pauses: list[float] = []

    class Still(random.Random):
        def uniform(self, a: float, b: float) -> float:
            pauses.append(a)
            return super().uniform(a, b)

    said: list[str] = []
    links = [
        Link(
            Contact(rig.url, SECRET), Hello(PROTOCOL, "pod-a", "i" * 32), SystemClock(), said.append,
            on_order=lambda order: None, on_refused=lambda refused: None, rng=Still(),
        )
        for _ in range(2)
    ]  # fmt: skip
    first = asyncio.create_task(links[0].run())
    await asyncio.wait_for(links[0].up(), 30)
    second = asyncio.create_task(links[1].run())
    await asyncio.wait_for(links[1].up(), 30)
    try:
        async with asyncio.timeout(30):
            while not (said and pauses):
                await asyncio.sleep(0.01)
        assert said == ["another process has connected as this very agent, and has its session now: end one of them"]
        assert pauses == [GIVES_WAY / 2]
        assert (links[0].connected, links[1].connected) == (False, True)
    finally:
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)


def test_what_was_begun_on_another_volume_ends_there(rig: Rig) -> None:
    command = mock("--steps", 5000, "--step-seconds", 0.05, "--save-every", 100_000)
    first = rig.agent(command, **ORPHAN)
    eventually(lambda: rig.run()["step"] >= 5, "five steps")
    kill(first)
    other = rig.root / "other-volume"
    other.mkdir()
    second = rig.agent(command, RELAY_L1_ROOT=str(other), **ORPHAN)
    second.heard("command, mode or volume was changed")
    assert second.wait() == 2, second.says()
    assert "is not on this volume" in second.says()
    assert rig.run()["newest_step"] >= 5
    assert rig.checkpoints() == [rig.run()["newest_checkpoint"]]
    assert rig.run()["status"] == "queued"
