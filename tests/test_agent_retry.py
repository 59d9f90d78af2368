"""A trainer that fails is tried again by the same agent, as far as its ending and the budget let it."""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_rig import Rig, eventually, mock, rigged
from commander_kit import FakeClock

from relay_agent.guardian import cgroup
from relay_agent.outcome.retry import Choice, Failure, Policy, Retries, Tries, after, choose
from relay_agent.outcome.stop import Stop, Why
from relay_agent.outcome.verdict import Verdict
from relay_agent.volume.volume import open_run
from relaytui.wire.status import Outcome

QUICK = {"RETRIES": "2", "RETRY_BACKOFF": "0.1"}


@pytest.fixture
def rig(tmp_path: Path) -> Any:
    with rigged(tmp_path) as rig:
        yield rig


# -- the rule ------------------------------------------------------------------------------------------------------


POLICY = Policy(3, 10.0, 60.0)


def failed(*endings: str, best: int = 100) -> Tries:
    return Tries(best=best, since=tuple(Failure(n, ending, best, 0.0) for n, ending in enumerate(endings, 1)))


@pytest.mark.parametrize(
    ("policy", "endings", "number", "why"),
    [
        (POLICY, ["crash"], 1, ""),
        (POLICY, ["crash"] * 3, 3, ""),
        (POLICY, ["crash"] * 4, 0, "3 retries in a row brought it no further than step 100"),
        (
            POLICY,
            ["killed", "crash", "bus_error", "crash"],
            0,
            "3 retries in a row brought it no further than step 100",
        ),
        (POLICY, ["device_assert"] * 2, 2, ""),
        (POLICY, ["device_assert"] * 3, 0, "it ended so 3 times without getting further"),
        (POLICY, ["cuda_oom", "crash", "cuda_oom"], 3, ""),
        (POLICY, ["import_error"], 0, "it would end so again"),
        (POLICY._replace(on=frozenset({"import_error"})), ["import_error"], 1, ""),
        (POLICY._replace(on=frozenset({"cuda_oom"})), ["cuda_oom"] * 3, 3, ""),
        (POLICY._replace(never=frozenset({"crash"})), ["crash"], 0, "NO_RETRY_ON names crash"),
        (POLICY._replace(retries=0), ["crash"], 0, ""),
        (POLICY, ["an_ending_of_a_later_version"], 1, ""),
        # What the watchdog starts anew it was told to: no crash, and not the budget of crashes.
        (POLICY._replace(retries=0), ["stalled"], 1, ""),
        (POLICY._replace(retries=0), ["stalled"] * 3, 3, ""),
        (POLICY._replace(retries=0), ["stalled"] * 4, 0, "3 retries in a row brought it no further than step 100"),
        (POLICY._replace(retries=1), ["stalled"] * 2, 0, "1 retry in a row brought it no further than step 100"),
        (POLICY._replace(retries=0, never=frozenset({"stalled"})), ["stalled"], 0, "NO_RETRY_ON names stalled"),
        (POLICY._replace(retries=0), ["stalled", "crash"], 0, ""),
        # How often it goes back is counted by whoever decides it: ROLLBACKS.
        (POLICY._replace(retries=0), ["diverged"], 1, ""),
        (POLICY._replace(retries=1), ["diverged"] * 5, 5, ""),
        (POLICY._replace(retries=1), ["diverged", "diverged", "crash"], 1, ""),
        (
            POLICY._replace(retries=1),
            ["diverged", "crash", "crash"],
            0,
            "1 retry in a row brought it no further than step 100",
        ),
        (POLICY._replace(never=frozenset({"diverged"})), ["diverged"], 0, "NO_RETRY_ON names diverged"),
    ],
)
def test_how_often_it_is_tried(policy: Policy, endings: list[str], number: int, why: str) -> None:
    choice = choose(policy, endings[-1], failed(*endings), random.Random(1))
    assert (choice.number, choice.why) == (number, why)


def test_pauses_double_up_to_the_longest_and_are_jittered() -> None:
    rng = random.Random(7)
    waits = [choose(POLICY._replace(retries=9), "crash", failed(*["crash"] * n), rng).wait for n in range(1, 8)]
    for wait, full in zip(waits, (10, 20, 40, 60, 60, 60, 60), strict=True):
        assert full / 2 <= wait <= full
    assert len(set(waits)) == len(waits)
    assert choose(POLICY, "terminated", failed("terminated"), rng).wait == 0, "nothing has to pass first"
    assert choose(POLICY, "terminated", failed("terminated", "terminated"), rng).wait >= 10
    assert choose(POLICY._replace(retries=1000), "crash", failed(*["crash"] * 100), rng).wait <= 60


@pytest.mark.parametrize(
    ("printed", "published", "count"),
    [(100, None, 3), (99, 50, 3), (None, None, 3), (101, None, 1), (90, 51, 1), (None, 60, 1)],
)
def test_getting_further_gives_the_budget_back(printed: int | None, published: int | None, count: int) -> None:
    tries = Tries(best=100, saved=50, since=failed("crash", "crash").since)
    now = after(tries, Failure(3, "crash", 0, 0.0), printed, published)
    assert len(now.since) == count
    assert (now.best, now.saved) == (max(100, printed or 0), max(50, published or 0))
    stopped = after(tries, None, printed, published)
    assert len(stopped.since) == count - 1, "a stop that was asked for is no failure, and no success"


@pytest.mark.parametrize("before", [[], ["diverged"], ["crash"]])
def test_going_back_waits_for_nothing(before: list[str]) -> None:
    rng = random.Random(1)
    assert choose(POLICY, "diverged", failed(*before, "diverged"), rng).wait == 0, "what it trained into is left behind"


class Told:
    def __init__(self) -> None:
        self.kinds: list[str] = []

    def event(self, kind: str, message: str, data: object = None) -> None:
        self.kinds.append(kind)


def retries(tmp_path: Path, pod: str = "pod", digest: str = "d") -> Retries:
    (tmp_path / pod).mkdir(exist_ok=True)
    return Retries(POLICY, open_run(tmp_path, "run"), tmp_path / pod, digest, FakeClock(), random.Random(1))


async def crash(kept: Retries, epoch: int, told: Any, ending: str = "crash") -> str:
    await kept.load()
    verdict = Verdict(Outcome.FAILED, 1, 5, "it failed", 1, ending, printed=5)
    return (await kept.settle(verdict, Stop(), epoch, told)).message


async def test_a_retry_is_told_once_and_its_words_stay_true(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, told, stop = retries(tmp_path), Told(), Stop()
    message = await crash(kept, 1, told)
    assert re.fullmatch(r"it failed; retry 1 of 3 after [\d.]+ s", message), "it is read when the pause is long over"
    stop.ask(Why.SIGNAL, "enough")
    assert not await kept.hold_off(stop, told)  # type: ignore[arg-type]
    assert re.search(r"retry 1 of 3 in [\d.]+ s: it failed$", capsys.readouterr().err.strip())


@pytest.mark.parametrize(
    ("wait", "after", "within"),
    [
        (0.0, "at once", ""),
        (0.04, "after 0.1 s", " in 0.1 s"),
        (0.72, "after 0.7 s", " in 0.7 s"),
        (9.96, "after 10 s", " in 10 s"),
        (42.4, "after 42 s", " in 42 s"),
    ],
)
def test_a_pause_is_told_however_short(wait: float, after: str, within: str) -> None:
    assert Choice(1, 3, wait).told == (after, within)


async def test_what_was_tried_is_known_to_whoever_comes_next(tmp_path: Path) -> None:
    told: Any = Told()
    assert "retry 1 of 3" in await crash(retries(tmp_path), 1, told)
    assert "retry 2 of 3" in await crash(retries(tmp_path, "another-pod"), 2, told)
    (tmp_path / "runs" / "run" / "tries.json").unlink()  # the volume lost it: the pod has it
    assert "retry 3 of 3" in await crash(retries(tmp_path, "another-pod"), 3, told)
    assert "retry 1 of 3" in await crash(retries(tmp_path, "another-pod", digest="another command"), 4, told)
    assert "not tried again" in await crash(
        retries(tmp_path, "another-pod", digest="another command"), 5, told, "no_job"
    )
    assert "retry 1 of 3" in await crash(retries(tmp_path, "another-pod", digest="another command"), 6, told)
    assert told.kinds == []


@pytest.mark.parametrize("planted", ["garbage", "fifo", "link", "folder", "huge", "deep", "out of range"])
async def test_nothing_that_lies_there_stops_an_agent(tmp_path: Path, planted: str) -> None:
    told: Any = Told()
    kept = retries(tmp_path)
    for place in (tmp_path / "runs" / "run" / "tries.json", tmp_path / "pod" / "tries.json"):
        match planted:
            case "garbage":
                place.write_bytes(b"\xff\x00{")
            case "fifo":
                os.mkfifo(place)
            case "link":
                place.symlink_to("/etc/passwd")
            case "folder":
                (place / "x").mkdir(parents=True)
            case "huge":
                place.touch()
                os.truncate(place, 1 << 40)
            case "deep":
                place.write_bytes(b"[" * 60_000)
            case _:
                place.write_text('{"digest": "d", "best": -5, "epoch": 99999999999999999999}')
    assert "retry 1 of 3" in await crash(kept, 1, told)
    assert told.kinds == (["retries.unwritten"] * 2 if planted == "folder" else [])
    assert "retry 2 of 3" in await crash(kept, 2, told), "this agent knows it all the same"


async def test_a_holder_that_was_replaced_writes_nothing(tmp_path: Path) -> None:
    told: Any = Told()
    kept = retries(tmp_path)
    (tmp_path / "runs" / "run" / "claims" / "00000009.json").write_text("{}")
    await crash(kept, 3, told)
    assert not (tmp_path / "runs" / "run" / "tries.json").exists()


async def test_a_volume_that_is_gone_costs_nothing_of_what_the_pod_knows(tmp_path: Path) -> None:
    told: Any = Told()
    kept = retries(tmp_path)
    shutil.rmtree(tmp_path / "runs")
    assert "retry 1 of 3" in await crash(kept, 1, told)
    assert told.kinds == ["retries.unwritten"]
    assert "retry 2 of 3" in await crash(retries(tmp_path), 2, told)


# -- real trainers -------------------------------------------------------------------------------------------------


def ends(rig: Rig) -> list[tuple[str, str]]:
    return [(attempt["outcome"], attempt.get("ending", "")) for attempt in rig.run()["attempts"]]


def test_a_crash_is_tried_again_from_the_newest_checkpoint(rig: Rig) -> None:
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    once = ("--crash-at", 12, "--crash-once", "$RELAY_RUN_ROOT/once", "--last-words", f'"{words}"')
    agent = rig.agent(mock("--steps", 20, "--step-seconds", 0.01, "--save-every", 5, *once), **QUICK)
    assert agent.wait() == 0, agent.says()
    run = rig.run()
    first, second = run["attempts"]
    assert ends(rig) == [("crashed", "cuda_oom"), ("completed", "completed")]
    assert (first["exit_code"], first["last_step"]) == (1, 11)
    assert f"out of GPU memory; its last words: {words}; retry 1 of 2" in first["message"]
    assert (second["epoch"], second["started_step"], second["started_from"]) == (2, 10, "step_00000010")
    started = next(event for event in rig.call(f"/api/events?run={rig.run_id}&limit=1000")["events"]
                   if event["kind"] == "run.started" and event["epoch"] == 2)  # fmt: skip
    assert "attempt 2, as the one before ended: the trainer exited with 1 at step 11" in started["message"]
    crashed = next(event for event in rig.events() if event["event"] == "attempt.ended")
    assert (crashed["outcome"], crashed["ending"]) == ("crashed", "cuda_oom")
    assert "attempt.retry" in rig.kinds()
    tries = json.loads((rig.folder / "tries.json").read_text())
    assert (tries["best"], tries["saved"], tries["since"]) == (20, 20, [])


def test_what_ends_so_again_is_not_tried_again(rig: Rig) -> None:
    agent = rig.agent("echo 'ModuleNotFoundError: No module named trl' >&2; exit 1", **QUICK)
    assert agent.wait() == 1
    assert ends(rig) == [("failed", "import_error")]
    assert rig.run()["status"] == "failed"
    assert rig.run()["message"].endswith("not tried again: it would end so again")


def test_the_budget_is_for_tries_that_get_no_further_and_outlives_the_agent_and_the_pod(rig: Rig) -> None:
    """Each agent dies while it waits for the next try, and the next one is on another pod."""
    command = mock("--steps", 20, "--step-seconds", 0.01, "--save-every", 5, "--crash-at", 7)
    slow = {"RETRIES": "2", "RETRY_BACKOFF": "60"}
    first = rig.agent(command, **slow)
    first.heard("relay-agent: retry 1 of 2 in")
    first.process.kill()
    second = rig.agent(command, worker="pod-b", **slow)
    second.heard("relay-agent: retry 2 of 2 in")
    second.process.send_signal(signal.SIGTERM)
    assert second.wait() == 143
    assert rig.run()["status"] == "queued"
    third = rig.agent(command, worker="pod-c", **slow)
    assert third.wait() == 1, third.says()
    run = rig.run()
    assert run["status"] == "failed"
    assert "not tried again: 2 retries in a row brought it no further than step 6" in run["message"]
    outcomes = [attempt["outcome"] for attempt in run["attempts"]]
    assert outcomes == ["crashed", "lost", "crashed", "preempted", "failed"]
    # Whoever queues it again means it: as many tries anew.
    rig.call(f"/api/runs/{rig.run_id}/requeue", expected_epoch=run["epoch"], why="mended")
    fourth = rig.agent(command, worker="pod-d", **QUICK)
    assert fourth.wait() == 1
    assert [outcome for outcome, _ in ends(rig)][5:] == ["crashed", "crashed", "failed"]


@pytest.mark.parametrize(("order", "status"), [("drain", "queued"), ("cancel", "cancelled")])
def test_orders_are_obeyed_at_once_while_it_waits(rig: Rig, order: str, status: str) -> None:
    agent = rig.agent(mock("--crash-at", 3, "--step-seconds", 0.01), RETRIES="3", RETRY_BACKOFF="600")
    agent.heard("retry 1 of 3 in")
    eventually(lambda: rig.run()["status"] == "leased", "the lease of the next try")
    assert "attempt 2, as the one before ended" in rig.run()["message"]
    rig.call(f"/api/runs/{rig.run_id}/{order}", expected_epoch=rig.run()["epoch"], why="enough")
    assert agent.wait(10) == 143, agent.says()
    assert rig.run()["status"] == status
    assert len(rig.run()["attempts"]) == 2


def test_a_trainer_that_failed_while_no_agent_was_there_is_tried_again(rig: Rig) -> None:
    wait = "cd $RELAY_RUN_ROOT; touch up; while ! test -e go; do sleep 0.05; done; echo step 1/4 loss 1; exit 5"
    command = f"test -e $RELAY_RUN_ROOT/up || {{ {wait}; }}; {mock('--steps', 4, '--step-seconds', 0.01)}"
    first = rig.agent(command, ORPHAN_TIMEOUT="60", **QUICK)
    eventually(lambda: (rig.folder / "up").exists(), "its trainer")
    first.process.kill()
    first.process.wait()
    (rig.folder / "go").touch()
    eventually(lambda: (rig.pod_folder() / "ended").exists(), "its guardian's word")
    second = rig.agent(command, ORPHAN_TIMEOUT="60", **QUICK)
    assert second.wait() == 0, second.says()
    assert ends(rig) == [("crashed", "crash"), ("completed", "completed")]


@pytest.fixture
def tight() -> Iterator[Path]:
    """A control group with 200 MB of memory, of either version; skipped where none can be made."""
    name = f"relay-test-{secrets.token_hex(4)}"
    for own, limit in ((cgroup._place()[1], "memory.max"), (cgroup._place1(), "memory.limit_in_bytes")):
        path = Path(own) / name
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            (path / limit).write_text(str(200 << 20))
        except OSError:  # this version does not count memory here
            path.rmdir()
            continue
        yield path
        eventually(lambda path=path: not (path / "cgroup.procs").read_text(), "nobody in it")
        path.rmdir()
        return
    pytest.skip("no control group that limits memory can be made here")


def test_who_takes_more_memory_than_there_is_is_told_so_and_tried_again(rig: Rig, tight: Path) -> None:
    """By the kernel's own count: the exit code is the same as for any other SIGKILL."""
    rig.within = ("sh", "-c", f'echo $$ > {tight}/cgroup.procs && exec "$@"', "sh")
    greedy = "python3 -c \"x = bytearray(900 << 20); x[::4096] = b'x' * (900 << 8)\""
    command = f"cd $RELAY_RUN_ROOT; test -e once || {{ touch once; exec {greedy}; }}; {mock('--steps', 3)}"
    agent = rig.agent(command, **QUICK)
    try:
        assert agent.wait() == 0, agent.says()
        assert ends(rig) == [("crashed", "oom_killed"), ("completed", "completed")]
        message = rig.run()["attempts"][0]["message"]
        assert "exited with 137, killed by SIGKILL at step 0: killed for want of host memory" in message
    finally:
        agent.process.kill()
        agent.process.wait()


def test_of_a_pipe_whose_trainer_was_killed_for_want_of_memory_no_half_of_a_save_is_published(
    rig: Rig, tight: Path
) -> None:
    """It exits with 0, as its last program does."""
    rig.within = ("sh", "-c", f'echo $$ > {tight}/cgroup.procs && exec "$@"', "sh")
    save = "d=$RELAY_CKPT_STAGING_ROOT/step_3; mkdir $d; echo 1 > $d/one"
    greedy = "python3 -c \"x = bytearray(900 << 20); x[::4096] = b'x' * (900 << 8)\""
    agent = rig.agent(f"(echo step 3/3; {save}; exec {greedy}) | cat", RETRIES="0")
    try:
        assert agent.wait() == 1, agent.says()
        assert rig.checkpoints() == []
        assert ends(rig) == [("failed", "unpublished")]
        assert "the kernel had killed something for want of memory" in rig.run()["attempts"][0]["message"]
    finally:
        agent.process.kill()
        agent.process.wait()
