"""A volume that is full when the next try at a run is prepared: that waits and is tried again, as the retry policy
says, and somebody who makes room helps."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_rig import Rig, eventually, mock
from disks import fill, mount, small, unmount

FILLS = (
    "cd $RELAY_RUN_ROOT; test -e once || { touch once; echo step 1/4 loss 1;"
    " cat /dev/zero >$RELAY_L1_ROOT/filler; echo 'OSError: [Errno 28] No space left on device' >&2; exit 1; }; "
)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with small(tmp_path / "volume", "4m"):
        rig = Rig(tmp_path)
        try:
            rig.start_commander()
            yield rig
        finally:
            rig.close()


def command(*flags: object) -> str:
    return FILLS + mock("--steps", 4, "--step-seconds", 0.01, *flags)


def test_room_that_is_made_in_a_pause_lets_it_go_on(rig: Rig) -> None:
    agent = rig.agent(command(), RETRIES="4", RETRY_BACKOFF="1")
    agent.heard("retry 2 of 4 in")
    words = f"the trainer was not started: the volume {rig.volume} is full: No space left on device"
    assert words in agent.says()
    message = eventually(lambda: words in (said := rig.run()["message"]) and said, "its word to the commander")
    assert "attempt 3, as the one before ended: " in message or "retry 2 of 4 after" in message
    (rig.volume / "filler").unlink()
    assert agent.wait() == 0, agent.says()
    run = rig.run()
    first, *waited, last = [(attempt["outcome"], attempt["ending"]) for attempt in run["attempts"]]
    assert (run["status"], first, last) == ("completed", ("crashed", "disk_full"), ("completed", "completed"))
    assert set(waited) == {("crashed", "disk_full")}


def test_where_nobody_makes_room_the_run_is_free_once_the_budget_is_used_up(rig: Rig) -> None:
    agent = rig.agent(command(), RETRIES="2", RETRY_BACKOFF="0.1")
    assert agent.wait() == 74, agent.says()
    run = rig.run()
    assert [attempt["outcome"] for attempt in run["attempts"]] == ["crashed", "crashed", "preempted"]
    assert run["status"] == "queued"
    assert "the trainer was not started: " in run["message"]
    assert "is full: No space left on device" in run["message"]
    assert run["message"].endswith("not tried again: 2 retries in a row brought it no further than step 1")
    assert "retry 2 of 2 in" in agent.says()


def test_a_trainer_that_runs_on_a_full_volume_is_taken_over(rig: Rig) -> None:
    """Its guardian would stop it, as no agent came."""
    go = rig.root / "go"
    waits = f"echo step 1/4 loss 1; while ! test -e {go}; do sleep 0.05; done; {mock('--steps', 4)}"
    first = rig.agent(waits, ORPHAN_TIMEOUT="60")
    eventually(lambda: rig.run()["step"] == 1, "training")
    first.process.kill()
    first.process.wait()
    filler = fill(rig.volume)
    second = rig.agent(waits, ORPHAN_TIMEOUT="60")
    second.heard("its trainer still runs")
    filler.unlink()
    go.touch()
    assert second.wait() == 0, second.says()
    assert [attempt["outcome"] for attempt in rig.run()["attempts"]] == ["completed"]
    filler = fill(rig.volume)
    assert rig.agent(waits).wait() == 2, "one that has nothing to take over is refused"
    filler.unlink()


def test_it_waits_under_the_lease_that_is_held_where_no_commander_answers(tmp_path: Path) -> None:
    """Where what lacks is room for one more folder."""
    place, go = tmp_path / "volume", tmp_path / "go"
    place.mkdir()
    mount("-t", "tmpfs", "-o", "size=4m,nr_inodes=200", "relay-test", place)
    rig = Rig(tmp_path)
    try:
        rig.start_commander()
        wait = f"echo step 1/4 loss 1; while ! test -e {go}; do sleep 0.05; done; "
        many = "mkdir $RELAY_L1_ROOT/filler; seq -f $RELAY_L1_ROOT/filler/%g 300 | xargs touch;"
        fills = command().replace("echo step 1/4 loss 1;", wait).replace("cat /dev/zero >$RELAY_L1_ROOT/filler;", many)
        agent = rig.agent(fills, RETRIES="4", RETRY_BACKOFF="1")
        eventually(lambda: rig.run()["step"] == 1, "training")
        rig.kill_commander()
        go.touch()
        agent.heard("no commander answers: under the lease that is held")
        agent.heard("retry 2 of 4 in")
        assert f"the trainer was not started: the volume {rig.volume} is full" in agent.says()
        shutil.rmtree(rig.volume / "filler")
        eventually(lambda: "run-1 completed" in agent.says(), "its end")
        rig.start_commander()
        assert agent.wait() == 0, agent.says()
        assert [attempt["outcome"] for attempt in rig.run()["attempts"]] == ["completed"]
    finally:
        rig.close()
        unmount(place)
