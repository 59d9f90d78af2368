"""Which steps are in no checkpoint, where a pod vanished: the commander knows the last step told and the newest one."""

from __future__ import annotations

from pathlib import Path

import pytest
from commander_kit import Agent, FakeClock, Kit, published, running, started, step, until

from relaytui.wire.text import in_none


@pytest.mark.parametrize(
    ("reached", "newest", "said"),
    [
        (41, 30, "its newest checkpoint is of step 30; steps 31-41 are in none"),
        (32, 30, "its newest checkpoint is of step 30; steps 31-32 are in none"),
        (31, 30, ""),  # lines and checkpoints may count from different ends
        (30, 30, ""),
        (12, 30, ""),
        (41, None, "steps 1-41 are in no checkpoint"),
        (1, None, "step 1 is in no checkpoint"),
        (0, None, ""),
    ],
)
def test_the_sentence(reached: int, newest: int | None, said: str) -> None:
    assert in_none(reached, newest) == said


STEPS = "its newest checkpoint is of step 30; steps 31-41 are in none, unless it saved them"


async def at_41(kit: Kit, agent: Agent, *, saved: bool = True) -> None:
    await agent.acquire("run-1")
    await agent.state(started(), *([published(30)] if saved else []))
    await agent.tell(step(41, 3_000))
    board = kit.commander.core.board
    await until(lambda: board.run_row(board.runs["run-1"]).step == 41)


@pytest.mark.parametrize("saved", [True, False])
async def test_a_lease_that_ran_out_names_them(kit: Kit, clock: FakeClock, saved: bool) -> None:
    """`px1 was silent for 20 s` left it to the reader to find out what that had cost."""
    await at_41(kit, await kit.agent("px1"), saved=saved)
    await kit.pass_time(clock, 302)
    steps = STEPS if saved else "steps 1-41 are in no checkpoint, unless it saved them"
    words = f"px1 was silent for 300 s; {steps}"
    assert (await kit.run("run-1"))["message"] == f"lost: {words}"
    assert (await kit.attempts("run-1"))[0]["message"] == words
    assert next(one for one in await kit.events("run-1") if one["kind"] == "run.lost")["message"] == words


async def test_so_does_one_after_a_restart_of_the_commander(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        await at_41(kit, await kit.agent("px1"))
    async with running(tmp_path / "state", clock) as kit:
        await kit.pass_time(clock, 400)
        assert (await kit.run("run-1"))["message"] == f"lost: px1 was silent for 300 s; {STEPS}"


async def test_a_force_of_a_pod_that_is_gone_names_them(kit: Kit) -> None:
    await at_41(kit, await kit.agent("px1"))
    _, body = await kit.force("run-1", 1, pod_gone=True)
    assert body["run"]["message"].endswith(f": px1's pod is gone; {STEPS}")
    assert (await kit.attempts("run-1"))[0]["message"].endswith(f" said that its pod is gone; {STEPS}")


async def test_a_force_that_waits_for_a_silent_holder_names_them_at_its_end(kit: Kit, clock: FakeClock) -> None:
    await at_41(kit, await kit.agent("px1"))
    await kit.force("run-1", 1)
    await kit.pass_time(clock, 302)
    words = f"the forced lease ran out without a word of its holder; {STEPS}"
    assert (await kit.attempts("run-1"))[0]["message"] == words


async def test_the_steps_of_another_attempt_are_not_its(kit: Kit, clock: FakeClock) -> None:
    await at_41(kit, await kit.agent("px1"))
    await kit.pass_time(clock, 302)
    await (await kit.agent("px2")).acquire("run-1")
    await kit.pass_time(clock, 302)
    assert (await kit.attempts("run-1"))[1]["message"] == "px2 was silent for 300 s"
