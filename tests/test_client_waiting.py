"""What a start waits for, in words: on a run's screen, below the list, among the workers and in the shell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from dashboard_fleet import run, scripted
from dashboard_rig import dashboard
from msgspec.structs import replace
from scripted_commander import NOW, TOKEN, ScriptedCommander, snapshot

from relaytui.cli.group import cli
from relaytui.client.acts import forced, forces, hold_off, requeues
from relaytui.client.answers import Events, RunDetail, WhoAmI, Workers
from relaytui.client.waiting import not_asked, waits
from relaytui.dashboard.widgets.table import Table
from relaytui.shell.program import run as shell
from relaytui.wire.feed import EventAdded, RunChanged, WorkerChanged
from relaytui.wire.rows import ORIGINAL, EventRow, RunRow, WorkerRow
from relaytui.wire.status import RunStatus, WorkerStatus

NAME = "sft-x"
IDLE = WorkerRow("pod-c", "i-c", WorkerStatus.IDLE, NOW, NOW - 60, version="0.1.0")
ASKS = replace(IDLE, waiting_for=NAME)
LEASED = run(NAME, RunStatus.LEASED, updated_at=NOW - 12)
RESUMES = EventRow(9, NOW, "resume.checkpoint", "pod-a", "from step_00000300", NAME, 3)
GRANTED = EventRow(8, NOW, "lease.granted", "pod-a", "granted for 300 s", NAME, 3)


@pytest.mark.parametrize(
    ("row", "workers", "events", "words"),
    [
        (run(NAME), [], [], ""),
        (run(NAME, RunStatus.COMPLETED), [ASKS], [], ""),
        (run(NAME), [IDLE], [], ""),
        (run(NAME), [ASKS], [], "pod-c waits until pod-a lets go of it"),
        (
            LEASED,
            [],
            [GRANTED],
            "pod-a prepares the trainer's start, 0:12 so far: it looks through its volume for what to go on from",
        ),
        (LEASED, [], [RESUMES, GRANTED], "pod-a prepares the trainer's start, 0:12 so far: from step_00000300"),
        (
            LEASED,
            [],
            [replace(RESUMES, epoch=2), replace(RESUMES, run_id="other")],
            "pod-a prepares the trainer's start, 0:12 so far: it looks through its volume for what to go on from",
        ),
        (  # an operator's word on the run, meanwhile, is nothing that its holder does
            LEASED,
            [],
            [EventRow(10, NOW, "artifact.stored", "ada", "checkpoint step_00000100: 4 GB", NAME, 3), RESUMES, GRANTED],
            "pod-a prepares the trainer's start, 0:12 so far: from step_00000300",
        ),
        (
            run(NAME, RunStatus.QUEUED, holder="pod-a", lease_expires_at=NOW + 41),
            [ASKS],
            [],
            "pod-c waits until pod-a's trainer is dead, in 0:41 at the latest",
        ),
        (
            run(NAME, RunStatus.QUEUED, holder="pod-a", lease_expires_at=NOW + 41),
            [],
            [],
            "the next agent waits until pod-a's trainer is dead, in 0:41 at the latest",
        ),
        (run(NAME, RunStatus.LOST), [ASKS], [], "pod-c waits: it is granted in seconds, when one asks again"),
        (
            run(NAME, RunStatus.PREEMPTED),
            [replace(ASKS, worker=name) for name in "dcba"],
            [],
            "4 agents wait: it is granted in seconds, when one asks again",
        ),
        (
            run(NAME, RunStatus.PREEMPTED),
            [replace(ASKS, worker="b"), replace(ASKS, worker="a"), replace(IDLE, waiting_for="other")],
            [],
            "a, b wait: it is granted in seconds, when one asks again",
        ),
        (run(NAME, RunStatus.QUEUED), [], [], "no agent that is here has asked for it"),
        (
            run(NAME, RunStatus.QUEUED),
            [IDLE],
            [],
            "no agent that is here has asked for it; 1 agent has asked for none yet",
        ),
    ],
)
def test_it_is_said_in_words(row: RunRow, workers: list[WorkerRow], events: list[EventRow], words: str) -> None:
    assert waits(row, workers, events, NOW) == words


def test_after_a_restore_it_waits_for_those_who_may_come_back() -> None:
    said = waits(run(NAME, RunStatus.QUEUED), [ASKS], [], NOW, NOW + 40)
    assert said == "pod-c waits: restored: no new grants for another 40 s, so that holders can come back"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"waiting_for": NAME}, False),
        ({"run_id": NAME, "status": WorkerStatus.BUSY}, False),
        ({"status": WorkerStatus.OFFLINE}, False),
        ({"version": ORIGINAL}, False),  # nothing is known of what it waits for
    ],
)
def test_who_has_not_asked_yet_is_known(changes: dict[str, object], expected: bool) -> None:
    assert not_asked(replace(IDLE, **changes)) is expected


@pytest.fixture
async def commander(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedCommander]:
    monkeypatch.setenv("RELAY_TOKEN", TOKEN)
    made = await ScriptedCommander().start()
    scripted(made)
    made.answers["GET", f"/api/runs/{NAME}"] = (200, RunDetail(NOW, LEASED))
    made.answers["GET", "/api/workers"] = (200, Workers(NOW, [ASKS]))
    made.answers["GET", "/api/events"] = (200, Events(NOW, [GRANTED, RESUMES]))
    yield made
    await made.stop()


async def test_the_dashboard_says_it_below_the_list_on_the_run_s_screen_and_of_the_worker(
    commander: ScriptedCommander,
) -> None:
    commander.greeting = [snapshot([run(NAME, RunStatus.QUEUED)], [IDLE])]
    async with dashboard(commander, size=(110, 30)) as rig:
        await rig.shows("no agent that is here has asked for it; 1 agent has asked for none yet")
        await rig.press("2")
        await rig.shows("none asked for yet")
        await rig.press("1")
        rig.app.screen.query_one("#runs", Table).select(NAME)
        await commander.tell(WorkerChanged(NOW, ASKS))
        await rig.shows("pod-c waits: it is granted in seconds")
        await commander.tell(RunChanged(NOW, LEASED))
        await rig.shows("pod-a prepares the trainer's start, 0:1", "so far: it looks through its volume")
        await rig.press("enter")
        await rig.shows("attempt", "pod-a prepares the trainer's start, 0:1")
        await commander.tell(EventAdded(RESUMES))
        await rig.shows("so far: from step_00000300")
        row = run(NAME, message="trainer runs", updated_at=NOW)
        commander.answers["GET", f"/api/runs/{NAME}"] = (200, RunDetail(NOW, row))
        await commander.tell(RunChanged(NOW, row))
        await rig.shows("trainer runs", "pod-c waits until pod-a lets go of it", without="prepares")


async def test_the_shell_says_it(
    commander: ScriptedCommander, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = ["--connect", commander.endpoint.url, "--state", str(tmp_path)]
    assert await asyncio.to_thread(shell, "relay-tui", cli, [*target, "runs", NAME]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "waiting pod-a prepares the trainer's start, 0:12 so far: from step_00000300" in lines
    commander.answers["GET", f"/api/runs/{NAME}"] = (200, RunDetail(NOW, run(NAME)))
    assert await asyncio.to_thread(shell, "relay-tui", cli, [*target, "runs", NAME]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "waiting pod-c waits until pod-a lets go of it" in lines


async def test_the_shell_says_that_it_waits_for_those_who_may_come_back(
    commander: ScriptedCommander,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    target = ["--connect", commander.endpoint.url, "--state", str(tmp_path)]
    commander.answers["GET", f"/api/runs/{NAME}"] = (200, RunDetail(NOW, run(NAME, RunStatus.QUEUED)))
    who = WhoAmI("operator", "c", NOW, "0.1.0", 300, no_grants_until=NOW + 40)
    commander.answers["GET", "/api/whoami"] = (200, who)
    assert await asyncio.to_thread(shell, "relay-tui", cli, [*target, "runs", NAME]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "waiting pod-c waits: restored: no new grants for another 40 s, so that holders can come back" in lines


async def test_a_force_names_it_too(
    commander: ScriptedCommander, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It said that the next agent that asks gets the run; one that asked got it when the hold-off was over."""
    target = ["--connect", commander.endpoint.url, "--state", str(tmp_path)]
    held = "Restored: no new grants for another 40 s, so that holders can come back."
    free = run(NAME, RunStatus.QUEUED, epoch=4)
    commander.answers["POST", f"/api/runs/{NAME}/force-acquire"] = (200, {"run": free, "epoch": 4})
    commander.answers["GET", "/api/whoami"] = (
        200, WhoAmI("operator", "c", NOW, "0.1.0", 300, no_grants_until=NOW + 40),
    )  # fmt: skip
    force = [*target, "force-acquire", NAME, "--yes", "--expected-epoch", "3"]
    assert await asyncio.to_thread(shell, "relay-tui", cli, force) == 0
    assert capsys.readouterr().err.endswith(f"now at epoch 4; the next agent that asks gets it. {held}\n")
    commander.greeting = [msgspec.structs.replace(snapshot([free]), no_grants_until=NOW + 40)]
    async with dashboard(commander, size=(100, 30)) as rig:
        await rig.shows(NAME)
        await rig.press("f")
        await rig.shows("Nobody holds this run", "Restored: no new grants for another")


def test_each_promise_of_a_grant_names_it() -> None:
    held = hold_off(NOW + 40, NOW)
    assert hold_off(NOW, NOW) == hold_off(None, NOW) == ""
    for row in (run(NAME), run(NAME, RunStatus.QUEUED), run(NAME, RunStatus.QUEUED, holder="pod-a")):
        assert held in forces(row, 9.0, pod_gone=False, held=held)
        assert held in forced(row, 4, held)
    *_, meanwhile, risk = forces(run(NAME), 9.0, pod_gone=True, held=held)
    assert (meanwhile, risk.startswith("Another agent may start then.")) == (held, True)
    assert requeues(run(NAME, RunStatus.FAILED), held)[-1] == held


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_below_the_list_a_long_reason_leaves_room_for_it(
    commander: ScriptedCommander, size: tuple[int, int]
) -> None:
    reason = (
        "drained by root; steps 221 to 227 are lost (7 steps), as the trainer, which handles no SIGTERM, was ended"
        " before it saved; the newest checkpoint is that of step 220"
    )
    commander.greeting = [snapshot([run(NAME, RunStatus.QUEUED, holder=None, message=reason, step=227)], [ASKS])]
    async with dashboard(commander, size=size) as rig:
        text = await rig.shows("drained by root; steps 221 to 227 are lost", "pod-c waits: it is granted in seconds")
        assert ("that of step 220" in text) is (size[1] >= 36), "where there is room, to its end"
