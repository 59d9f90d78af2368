"""A guardian that ends otherwise than by its own word: what its trainer printed last may be missing, which is said."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from agent_rig import Rig
from commander_kit import FakeClock
from guardian_kit import eventually, start

from relay_agent.checkpoints.manifest import verify
from relay_agent.outcome.stop import Stop, Why
from relay_agent.outcome.verdict import Ended, judge
from relay_agent.output.follow import Follower
from relay_agent.output.progress import Progress
from relay_agent.trainer.supervise import Ending, Supervised


def test_what_was_saved_after_the_last_line_that_was_heard_is_not_called_healthy() -> None:
    follower = Follower(Progress(), FakeClock(), lambda report: None, lambda mark: None, lambda: None)
    for step in range(1, 10):
        follower.feed(f"step {step}/40 loss: 0.5\n".encode())
    assert follower.well(10)
    follower.hear_no_more()
    assert [follower.well(step) for step in (8, 9, 10)] == [True, False, False]


@pytest.mark.parametrize("how", ["killed", "after its trainer", "by its own word"])
async def test_it_is_known_at_once_and_told(tmp_path: Path, how: str) -> None:
    trainer, _ = await start(tmp_path, f"while ! test -e {tmp_path}/end; do sleep 0.02; done; sleep 60 & exit 3", 0.2)
    assert trainer._child is not None
    told = list[bool]()
    trainer.on_unheard = lambda: told.append(trainer.exited.done())
    if how != "killed":
        (tmp_path / "end").touch()
    if how == "after its trainer":
        await trainer.exited
    if how != "by its own word":
        trainer._child.send_signal(signal.SIGKILL)
    async with asyncio.timeout(15):
        await trainer.gone
    assert told == [False] * (how == "killed")
    assert bool(trainer.unheard) == (how == "killed")


async def test_one_that_does_not_answer_is_another_thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = await start(tmp_path, "sleep 60", 0.2)
    assert trainer._child is not None
    trainer._hurried = 0.1
    monkeypatch.setattr("relay_agent.trainer.supervise.thaw", lambda pid: None)
    trainer._child.send_signal(signal.SIGSTOP)
    trainer.kill()
    async with asyncio.timeout(15):
        await trainer.gone
    assert trainer.unheard.startswith("its guardian did not answer any more: what it printed last may be missing")


async def test_nor_is_who_was_killed_with_the_agent(tmp_path: Path) -> None:
    for why, words in (("itself", ""), ("killed", "its guardian was killed: the last 0.5 s of what it printed may be")):
        told = list[str]()
        trainer = Supervised(tmp_path / "log", lambda data: None, lambda lines, size: None)
        trainer.on_unheard = lambda told=told: told.append("")  # type: ignore[misc]
        trainer.recall(Ending(137, -1, 0, why), "guard-of-nobody")
        await trainer.gone
        assert trainer.unheard.startswith(words)
        assert len(told) == bool(trainer.unheard) == (why == "killed")


async def test_a_frozen_one_is_thawed_to_tell_what_was_printed(tmp_path: Path) -> None:
    script = f"while ! test -e {tmp_path}/go; do sleep 0.01; done; echo two; touch {tmp_path}/saved; sleep 60"
    trainer, heard = await start(tmp_path, script, 0.2)
    assert trainer._child is not None
    trainer._child.send_signal(signal.SIGSTOP)
    (tmp_path / "go").touch()
    eventually((tmp_path / "saved").exists)
    await trainer.catch_up()
    assert heard.data == b"two\n"
    trainer.kill()
    await trainer.gone


def test_what_else_is_known_of_the_end_is_said_first() -> None:
    unheard = "its guardian was killed: some of it may be missing"
    progress = Progress()
    progress.see("step 40/90 loss 1", 1.0)
    known = judge(Ended(137, Stop(), progress, 40, lines=["bye"], oom=True, unheard=unheard)).message
    assert known == (
        "the trainer exited with 137, killed by SIGKILL at step 40: killed for want of host memory;"
        f" its last words: bye; {unheard}"
    )
    assert judge(Ended(137, Stop(), progress, 40, lines=["bye"], unheard=unheard)).message == (
        f"the trainer exited with 137 at step 40, as {unheard}; its last words: bye"
    )
    stop = Stop()
    stop.ask(Why.DRAIN, "drained by root")
    assert judge(Ended(0, stop, progress, 40, unheard=unheard)).message.endswith(f"; {unheard}")


def test_the_ending_says_so_and_what_came_of_it_is_not_called_healthy(rig: Rig) -> None:
    script = "for s in 1 2 3 4; do echo step $s/40 loss: 0.5; sleep 0.15; done; d=$RELAY_CKPT_STAGING_ROOT/step_5;"
    script += (
        " mkdir $d.t; echo 1 >$d.t/w; : >$d.t/COMPLETE; echo step 5/40 loss: nan; mv $d.t $d; kill -9 $PPID; sleep 60"
    )
    agent = rig.agent(f"exec bash -c '{script}'")
    assert agent.wait() == 137, agent.says()
    message = rig.run()["message"]
    lost = "the last 0.5 s of what it printed may be missing, and what is published since is not called healthy"
    assert message.startswith(
        f"the trainer exited with 137 at step 5, as its guardian was killed: {lost}; its last words"
    )
    assert "killed by somebody else" not in message, "it is known by whom"
    assert message.count("killed") == 1
    manifest = verify(rig.folder / "ckpt" / "step_00000005")
    assert not manifest.healthy
