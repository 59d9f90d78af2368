"""A run that is lost or preempted again and again without getting further is held, with what it cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from commander_kit import Agent, FakeClock, Kit, ended, published, running, started

LIMIT = 5


async def attempt(
    kit: Kit, clock: FakeClock, *, lost: bool = False, saves: int = 0, step: int = 0, outcome: str = "preempted"
) -> Agent:
    """One that begins at step 100 and is preempted, or never heard of again."""
    agent = await kit.agent(incarnation=f"incarnation-{clock.boot():.0f}")
    assert (await agent.acquire("run-1"))["type"] == "granted"
    await agent.state(started(100, "step_00000100"))
    if saves:
        await agent.state(published(saves))
    if lost:
        await agent.close()
        await kit.pass_time(clock, 400)
    else:
        clock.advance(360)
        await agent.renew()
        await agent.state(ended(outcome, step or 100))
        await agent.close()
    return agent


async def asked(kit: Kit) -> dict[str, object]:
    return await (await kit.agent(incarnation="the-next")).acquire("run-1")


@pytest.mark.parametrize("lost", [True, False])
async def test_the_sixth_try_of_what_gets_no_further_is_not_granted(kit: Kit, clock: FakeClock, lost: bool) -> None:
    for _ in range(LIMIT):
        await attempt(kit, clock, lost=lost)
    denied = await asked(kit)
    assert (denied["type"], denied["code"], denied["final"]) == ("denied", "ended", True)
    run = await kit.run("run-1")
    assert run["status"] == "failed"
    assert run["message"].startswith("held: 5 attempts in a row without a new checkpoint or a further step, 0.")
    (event,) = [event for event in await kit.events("run-1") if event["kind"] == "run.held"]
    assert event["data"]["attempts"] == "5"
    assert 0.4 <= float(event["data"]["hours"]) <= 0.6


@pytest.mark.parametrize("others", [[], ["preempted"], ["drained"]])
async def test_crashes_that_are_tried_again_count_too(kit: Kit, clock: FakeClock, others: list[str]) -> None:
    """Whatever an agent remembers of them."""
    for outcome in [*["crashed"] * (LIMIT - len(others)), *others]:
        await attempt(kit, clock, outcome=outcome)
        assert (await kit.run("run-1"))["status"] == "queued"
    assert (await asked(kit))["type"] == ("granted" if "drained" in others else "denied")


async def test_a_run_that_is_tried_again_says_which_attempt_it_is_and_why(kit: Kit) -> None:
    first = await kit.agent()
    await first.acquire("run-1")
    words = "the trainer exited with 1 at step 120: out of GPU memory; retry 1 of 3 after 8 s"
    await first.state(started(100), ended("crashed", 120, message=words, ending="cuda_oom", exit_code=1))
    run = await kit.run("run-1")
    assert (run["status"], run["message"]) == ("queued", words)
    assert (await first.acquire("run-1", request_id="again"))["type"] == "granted"
    assert (await kit.run("run-1"))["message"] == f"granted to pod; attempt 2, as the one before ended: {words}"
    await first.state(started(100))
    assert (await kit.run("run-1"))["message"].endswith(f"attempt 2, as the one before ended: {words}")
    before, now = await kit.attempts("run-1")
    assert (before["outcome"], before["ending"], now.get("ending")) == ("crashed", "cuda_oom", None)
    (event,) = [event for event in await kit.events("run-1") if event["kind"] == "run.crashed"]
    assert (event["data"]["ending"], event["message"]) == ("cuda_oom", words)
    await first.state(ended("preempted", 130))
    await (await kit.agent("next")).acquire("run-1")
    assert (await kit.run("run-1"))["message"] == "granted to next"


@pytest.mark.parametrize("ending", ["Cuda OOM", "x" * 65, "a\nb", "_", "1"])
async def test_an_ending_is_one_word(kit: Kit, ending: str) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    assert (await agent.state(ended("crashed", 1, ending=ending)))["type"] == "problem"
    assert (await kit.run("run-1"))["status"] == "leased"


async def test_queued_again_it_has_as_many_tries_anew(kit: Kit, clock: FakeClock) -> None:
    for _ in range(LIMIT):
        await attempt(kit, clock)
    await asked(kit)
    epoch = (await kit.run("run-1"))["epoch"]
    assert (await kit.requeue("run-1", epoch))[0] == 200
    for _ in range(LIMIT):
        await attempt(kit, clock)
    assert (await asked(kit))["type"] == "denied"


@pytest.mark.parametrize("progress", [{"saves": 150}, {"step": 101}])
@pytest.mark.parametrize("which", [0, 2, 4])
async def test_one_that_got_further_starts_the_count_anew(
    kit: Kit, clock: FakeClock, progress: dict[str, int], which: int
) -> None:
    for number in range(LIMIT):
        await attempt(kit, clock, **(progress if number == which else {}))
    assert (await asked(kit))["type"] == "granted"


async def test_a_holder_that_comes_back_before_anybody_asked_keeps_its_run(kit: Kit, clock: FakeClock) -> None:
    for _ in range(LIMIT - 1):
        await attempt(kit, clock, lost=True)
    last = await kit.agent()
    await last.acquire("run-1")
    await kit.pass_time(clock, 400)
    assert (await last.renew())["type"] == "renewed"
    assert (await kit.run("run-1"))["status"] in ("leased", "running")


async def test_the_limit_can_be_another_or_none(tmp_path: Path, clock: FakeClock) -> None:
    async with running(tmp_path / "none", clock, max_no_progress=0) as kit:
        for _ in range(LIMIT + 2):
            await attempt(kit, clock)
        assert (await asked(kit))["type"] == "granted"
    async with running(tmp_path / "one", clock, max_no_progress=1) as kit:
        await attempt(kit, clock)
        assert (await asked(kit))["type"] == "denied"
