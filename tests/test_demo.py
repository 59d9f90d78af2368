"""The whole way once: `relay-tui demo`, as its user runs it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import replace

from relaytui.cli import demo
from relaytui.cli.demo import _headless, _live, left_out, over, so_far, stage
from relaytui.cli.director import Director, Plan
from relaytui.cli.fleet import Fleet
from relaytui.client.endpoint import Endpoint
from relaytui.client.feed import Feed
from relaytui.dashboard.app import DashboardResult
from relaytui.dashboard.session import Opened
from relaytui.wire.errors import RelayError
from relaytui.wire.rows import AttemptRow, RunRow
from relaytui.wire.status import Outcome, RunStatus

RELAY = Path(sys.executable).with_name("relay-tui")


def test_the_killed_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = subprocess.run(
        [RELAY, "demo", "--headless", "--seconds", "90", "--steps", "60", "--json", "--folder", folder],
        capture_output=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode().endswith(f"relay-tui --state {folder / 'commander'}\n"), "what is kept can be looked at"
    report = json.loads(done.stdout)
    runs = {run["run_id"]: run for run in report["runs"]}
    assert {run["status"] for run in runs.values()} == {"completed"}
    for run in runs.values():
        assert run["step"] == run["total"] == 60
        assert run["last_loss"] < run["first_loss"]
        assert run["checkpoints_published"] == run["checkpoints_verified"] > 0
    assert runs["demo-rl"]["mode"] == "rl"
    assert report["torn"] == []
    assert report["left_out"] == []
    assert report["killed"]["worker"] == "pod-a"

    killed, resumed = runs["demo-sft"]["attempts"]
    assert (killed["worker"], killed["outcome"]) == ("pod-a", "lost")
    assert (resumed["worker"], resumed["outcome"]) == ("pod-c", "completed")
    assert resumed["epoch"] > killed["epoch"]
    # No step is lost but those after the newest checkpoint, and those were trained again.
    assert 0 < resumed["started_step"] <= killed["last_step"]
    assert killed["last_step"] - resumed["started_step"] <= 10
    assert report["events"]["run.lost"] == 1
    assert report["events"]["run.completed"] == 2
    assert report["latency_ms"]["lines"] > 60
    assert 0 < report["latency_ms"]["p50"] <= report["latency_ms"]["p99"]

    manifest = folder / "volume" / "runs" / "demo-sft" / "ckpt" / "step_00000060" / "manifest.json"
    assert json.loads(manifest.read_bytes())["step"] == 60


def test_what_it_did_not_come_to_is_said() -> None:
    killed, going_on = tried("pod-a", 1, Outcome.LOST), tried("pod-a", 1)
    assert left_out(80, [killed, tried("pod-c", 2)]) == []
    assert "not taken up again" in " ".join(left_out(80, [going_on]))
    assert "not killed" in " ".join(left_out(None, [going_on]))

    assert "interrupted" in " ".join(left_out(None, [going_on], "it was interrupted"))


def tried(worker: str, epoch: int, outcome: Outcome | None = None, last_step: int = 233) -> AttemptRow:
    return AttemptRow("demo-sft", epoch, worker, 0.0, last_step=last_step, outcome=outcome)


@pytest.mark.parametrize("outcome", [Outcome.DRAINED, Outcome.SUPERSEDED, Outcome.CANCELLED])
def test_what_a_person_did_is_not_told_as_what_time_did(outcome: Outcome) -> None:
    """`pod-a was not killed: you quit before demo-sft was 30 % of its way` was said of a run at 71 %, that had been
    drained, and `demo-sft was not taken up again by pod-c` of one that pod-c trained."""
    drained, taken = tried("pod-a", 1, outcome), tried("pod-c", 2, last_step=640)
    why = f"pod-a was not killed: it had demo-sft no more ({outcome} at step 233)"
    assert left_out(None, [drained, taken], "you quit") == [why]
    assert left_out(None, [drained], "you quit") == [why, "demo-sft was not taken up again by pod-c"]
    # It came back to pod-a, which was killed then: that pod-c had it before is no taking up.
    again = tried("pod-a", 3, Outcome.LOST)
    assert left_out(300, [drained, replace(taken, outcome=Outcome.DRAINED), again], "you quit") == [
        "demo-sft was not taken up again by pod-c: you quit before it was granted"
    ]
    assert left_out(300, [drained, replace(taken, outcome=Outcome.DRAINED), replace(again, outcome=None)]) == [
        "demo-sft was not taken up again by pod-c: the time was over before its lease ran out"
    ]
    assert left_out(300, [drained, again, replace(taken, epoch=4)]) == []
    assert "you quit before demo-sft was 30 %" in left_out(None, [drained, replace(again, outcome=None)], "you quit")[0]


async def test_one_that_is_interrupted_prints_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def interrupted(director: Director, seconds: float | None) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(Fleet, "start", lambda *_: None)
    monkeypatch.setattr(Director, "run", interrupted)
    with stage(tmp_path / "demo", 40, True) as (root, endpoint, fleet):
        assert await _headless(root, endpoint, fleet, 60.0, True) == 130
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert (report["runs"], report["killed"]) == ([], None)
    assert "it was interrupted before" in report["left_out"][0]
    assert "interrupted" in said.err


async def test_one_without_a_screen_says_now_and_then_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It printed one line, and nothing for a minute."""
    told: list[str] = []

    async def until_told(director: Director, seconds: float | None) -> None:
        while sum("so far" in line for line in told) < 2:
            await asyncio.sleep(0.01)
            told.extend(capsys.readouterr().err.splitlines())

    monkeypatch.setattr(Fleet, "start", lambda *_: None)
    monkeypatch.setattr(Director, "run", until_told)
    monkeypatch.setattr(demo, "TELL_EVERY", 0.02)
    with stage(None, 40, True) as (root, endpoint, fleet):
        async with asyncio.timeout(20):
            assert await _headless(root, endpoint, fleet, 60.0, True) == 0


def test_how_far_it_is_names_each_run_and_who_was_killed() -> None:
    sft = RunRow("demo-sft", "sft", RunStatus.RUNNING, 2, 0.0, 0.0, step=80, total=240)
    assert so_far({}, None) == "no run has begun"
    assert so_far({"demo-sft": sft}, None) == "demo-sft running, step 80 of 240"
    rl = msgspec.structs.replace(sft, run_id="demo-rl", status=RunStatus.QUEUED, step=0, total=None)
    said = so_far({"demo-sft": sft, "demo-rl": rl}, 72)
    assert said == "demo-rl queued; demo-sft running, step 80 of 240; pod-a was killed at step 72"


@pytest.mark.parametrize(("reason", "prints"), [("quit", True), ("signal", False)])
def test_the_dashboard_prints_what_happened_when_it_is_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    reason: str,
    prints: bool,
) -> None:
    """It said nothing but that the pods were stopped."""
    shown: list[Opened] = []

    def show(opened: Opened, **_: object) -> DashboardResult:
        shown.append(opened)
        return DashboardResult(reason)  # type: ignore[arg-type]

    async def until_cancelled(director: Director, seconds: float | None) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Fleet, "start", lambda *_: None)
    monkeypatch.setattr(Director, "run", until_cancelled)
    monkeypatch.setattr(demo, "show", show)
    with stage(tmp_path / "demo", 40) as (root, endpoint, fleet):
        assert _live(root, endpoint, fleet, None) == 0
    said = capsys.readouterr()
    assert ("pod-a was not killed: you quit before demo-sft" in said.out) is prints
    assert said.out.startswith("RUN  STATUS") is prints
    assert said.err.endswith("stopping the demo's pods\n")
    assert shown[0].remark is over


def test_a_director_that_cannot_start_ends_the_demo_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hung at its end, whatever one pressed."""

    def no_room(director: Director, seconds: float | None) -> Coroutine[None, None, None]:
        raise OSError(errno.EMFILE, "Too many open files")

    shown: list[Opened] = []
    monkeypatch.setattr(Fleet, "start", lambda *_: None)
    monkeypatch.setattr(Director, "run", no_room)
    monkeypatch.setattr(demo, "show", lambda opened, **_: shown.append(opened) or DashboardResult("quit"))
    with (
        stage(tmp_path / "demo", 40) as (root, endpoint, fleet),
        pytest.raises(RelayError, match=r"the demo's director does not start: .*Too many open files") as problem,
    ):
        _live(root, endpoint, fleet, None)
    assert problem.value.exit_code == 1
    assert shown == [], "there would be nothing to see"


def test_a_director_that_fails_later_is_told_of_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody was killed, and nobody was told why."""
    failed = threading.Event()

    async def fails(director: Director, seconds: float | None) -> None:
        failed.set()
        raise RelayError("no_agent", "relay-agent is not installed beside relay-tui")

    def show(opened: Opened, **_: object) -> DashboardResult:
        assert failed.wait(10)
        return DashboardResult("quit")

    monkeypatch.setattr(Fleet, "start", lambda *_: None)
    monkeypatch.setattr(Director, "run", fails)
    monkeypatch.setattr(demo, "show", show)
    with (
        stage(tmp_path / "demo", 40) as (root, endpoint, fleet),
        pytest.raises(RelayError, match="the demo's director failed on the way: relay-agent is not installed"),
    ):
        _live(root, endpoint, fleet, None)
    assert capsys.readouterr().out.startswith("RUN  STATUS"), "what happened is printed all the same"


async def test_a_director_that_hears_nothing_any_more_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(feed: Feed) -> None:
        raise ValueError("of the feed")

    monkeypatch.setattr(Feed, "run", breaks)
    plan = Plan("pod-a", "sft", "sft", "pod-c", runs=2)
    director = Director(Endpoint("http://127.0.0.1:9", "t"), Pods(), Path("unused"), plan, lambda path: None)
    async with asyncio.timeout(10):
        with pytest.raises(ValueError, match="of the feed"):
            await director.run(None)


def test_that_it_is_over_is_said_once_both_runs_have_ended() -> None:
    done = RunRow("demo-sft", "sft", RunStatus.COMPLETED, 2, 0.0, 0.0)
    other = RunRow("demo-rl", "rl", RunStatus.RUNNING, 1, 0.0, 0.0)
    assert over({"demo-sft": done}) == ""
    assert over({"demo-sft": done, "demo-rl": other}) == ""
    for status in (RunStatus.COMPLETED, RunStatus.CANCELLED):
        said = over({"demo-sft": done, "demo-rl": msgspec.structs.replace(other, status=status)})
        assert said.startswith(f"the demo is over: demo-sft completed, demo-rl {status.value}; q ")


class Pods(Fleet):
    """A fleet without processes."""

    def __init__(self) -> None:
        super().__init__(Path("unused"), {})
        self.started: list[str] = []

    def start(self, name: str, run_id: str, mode: str) -> None:
        self.started.append(name)
        self.wants[name] = (run_id, mode)
        self.pods[name] = SimpleNamespace(poll=lambda: None)  # type: ignore[assignment]

    def end(self, name: str) -> None:
        self.pods[name] = SimpleNamespace(poll=lambda: 0)  # type: ignore[assignment]


async def test_a_pod_whose_run_was_drained_comes_back_and_one_whose_run_is_over_does_not() -> None:
    pods = Pods()
    director = Director(
        Endpoint("http://127.0.0.1:9", "t"), pods, Path("unused"), Plan("pod-a", "sft", "sft", "pod-c", runs=2), print
    )
    pods.start("pod-b", "rl", "rl")
    row = RunRow("rl", "rl", RunStatus.DRAINING, 1, 0.0, 0.0)
    for status, ends, started in (
        (RunStatus.RUNNING, False, 1),
        (RunStatus.QUEUED, True, 2),
        (RunStatus.RUNNING, False, 2),
        (RunStatus.COMPLETED, True, 2),
        (RunStatus.QUEUED, False, 3),  # requeued by the operator
    ):
        director.runs["rl"] = msgspec.structs.replace(row, status=status)
        if ends:
            pods.end("pod-b")
        await director.act()
        assert len(pods.started) == started, status


def test_an_old_demo_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    done = subprocess.run(
        [RELAY, "demo", "--headless", "--folder", tmp_path], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [[], ["demo"]])
def test_without_a_terminal_it_names_serve(command: list[str]) -> None:
    done = subprocess.run(
        [RELAY, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert "relay-tui serve" in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_lines_carry_their_time_only_where_it_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fleet, "start", lambda *_: None)  # what its pods would be told is all there is to see
    for stamped in (False, True):
        with stage(tmp_path / str(stamped), 40, stamped) as (_, _, fleet):
            assert fleet.variables["RELAY_STAMP"] == ("1" if stamped else "")
