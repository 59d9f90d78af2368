"""What is said of a run and of an event, in the dashboard and in the shell alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dashboard_fleet import run
from msgspec.structs import replace
from scripted_commander import NOW

from relay_agent.link.words import Words
from relaytui.cli.act import _describe
from relaytui.cli.runs import _run_cells
from relaytui.client.acts import cancels, drains, forced, forces
from relaytui.client.answers import RunDetail
from relaytui.client.words import details, how_it_ended, kept, rate_now, sentence, short_hashes, state, time_left
from relaytui.dashboard import glyphs
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.screens.facts import heading, pace
from relaytui.dashboard.screens.lists import run_item
from relaytui.wire.clock import SystemClock
from relaytui.wire.rows import EventRow, RunRow
from relaytui.wire.status import Outcome, RunStatus

HASH = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("status", "more", "moves", "ends"),
    [
        (RunStatus.RUNNING, {}, True, True),
        (RunStatus.RUNNING, {"step": 20}, False, False),  # it saves, sends, or ends
        (RunStatus.RUNNING, {"stalled_at": NOW, "stalled_in": "saving"}, False, False),
        (RunStatus.RUNNING, {"total": None}, True, False),
        (RunStatus.DRAINING, {}, True, False),  # it stops before
        (RunStatus.LEASED, {}, False, False),
        (RunStatus.QUEUED, {"step": 20}, False, False),
        (RunStatus.COMPLETED, {"step": 20}, False, False),
    ],
)
def test_a_pace_and_a_time_left_are_said_only_of_what_moves(
    status: RunStatus, more: dict[str, object], moves: bool, ends: bool
) -> None:
    """A run at 20/20 that waits for its last sync was `running 20/20 ETA 0:00`."""
    row = run("r", status, **{"step": 10, "total": 20, "rate": 2.0, **more})
    assert (rate_now(row) is not None, time_left(row) is not None) == (moves, ends)
    cells = _run_cells(row, NOW)
    assert (cells[6] != "-", cells[7] != "-") == (moves, ends)
    listed = ["".join(text for text, _ in cell) for cell in run_item(row, NOW).row.cells]
    assert (listed[5] != "–", listed[6] != "–") == (moves, ends)
    said = " ".join(text for group in pace(row) for text, _ in group)
    assert ("/s" in said, "eta" in said) == (moves, ends)
    assert ("last step made" in said) == (status.active and row.step == row.total)


def test_what_was_published_and_pruned_is_counted_and_nothing_claimed_of_a_volume() -> None:
    """`5 kept of 7` was read as five on this volume, after the run had moved to another."""
    assert kept(run("r", published=7, checkpoints=5)) == "7 published, 2 pruned"
    assert kept(run("r", published=7, checkpoints=7)) == "7 published"


def test_hashes_are_short_for_people() -> None:
    assert short_hashes(f"sha256 {HASH}, not {HASH[:40]}.") == "sha256 0123456789ab, not 0123456789ab."
    assert short_hashes(f"x{HASH} {HASH}0 {HASH[:13]} {'f' * 39}") == f"x{HASH} {HASH}0 {HASH[:13]} {'f' * 39}"
    row = EventRow(1, NOW, "checkpoint.torn", "pod-a", f"a.bin is {HASH}", data={"sha256": HASH, "wanted": "f" * 64})
    assert sentence(row) == "a.bin is 0123456789ab"
    assert details(row) == [f"wanted {'f' * 12}"], "what the sentence says is not said again"


def test_a_force_names_a_holder_only_where_there_is_one() -> None:
    """Of a run that nobody held the shell said `is taken from its holder`, and the history `holder pod-1`."""
    held = forced(run("r", epoch=3, holder="pod-a"), 3)
    assert held == "r: taken at epoch 3; the next agent that asks gets it once pod-a's trainer is dead"
    for status in (RunStatus.QUEUED, RunStatus.PREEMPTED, RunStatus.LOST):
        free = forced(run("r", status, epoch=3, holder=None), 3)
        assert free == "r: nobody holds it, now at epoch 3; the next agent that asks gets it"
    over = forced(run("r", RunStatus.CANCELLED, epoch=3, holder=None), 3)
    assert over == "r: it is cancelled, at epoch 3; no agent gets it"
    event = EventRow(1, NOW, "lease.forced", "ada", "home", "r", 3, {"holder": "pod-1", "pod_gone": "no"})
    assert details(event) == ["last holder pod-1"]


def test_an_attempt_that_never_had_a_trainer_was_not_preempted() -> None:
    assert how_it_ended(Outcome.PREEMPTED, "not_started") == "never ran"
    assert how_it_ended(Outcome.PREEMPTED, "preempted") == "preempted"
    assert how_it_ended(Outcome.SUPERSEDED, "not_started") == "superseded"
    assert how_it_ended(None, "") == "going on"
    assert glyphs.outcome(Outcome.PREEMPTED, "not_started").text == "↯ never ran"


def test_what_is_false_is_no_fact_to_tell() -> None:
    event = EventRow(1, NOW, "hub.wish", "pod-1", "me/run: all files", "run", 1, {"dry_run": "false", "repo": "me/run"})
    assert not any("dry" in each for each in details(event))


def test_what_a_library_says_of_a_link_that_was_cut_is_said_plainly() -> None:
    said: list[str] = []
    raw = "no commander at http://c: ClientConnectionResetError: Cannot write to closing transport; trying again"
    Words(SystemClock(), said.append).no_session(raw, at_once=True)
    assert said == ["no commander at http://c: the connection was cut; trying again"]


def test_a_success_without_a_step_does_not_look_like_one() -> None:
    """A wrong command that exits with 0 was a bare `completed` in every list."""
    row = run("quiet", RunStatus.COMPLETED, step=0, published=0)
    assert state(row) == _run_cells(row, NOW)[1] == "completed, no steps"
    listed = run_item(row, NOW)
    assert Piece("✓ no steps", "warn") in [piece for cell in listed.row.cells for piece in cell]
    assert listed.order["status"] < run_item(run("r", RunStatus.COMPLETED, step=5), NOW).order["status"]
    assert "✓ completed, no steps" in "".join(text for text, _ in heading(row, NOW))
    assert how_it_ended(Outcome.COMPLETED, "no_step") == "completed, no steps"
    for other in (run("r", RunStatus.COMPLETED, step=5), run("r", RunStatus.COMPLETED, published=1)):
        assert state(other) == "completed"
    assert state(run("r", RunStatus.QUEUED)) == "queued"


@pytest.mark.parametrize("act", [drains, cancels])
def test_what_a_stop_may_cost_is_said_before_it_is_ordered(act: Callable[[RunRow], tuple[str, ...]]) -> None:
    row = RunRow("r", "sft", RunStatus.RUNNING, 1, 0.0, 0.0, holder="pod-a", step=51, newest_step=40)
    told = " ".join(act(row))
    assert "asked by $RELAY_SAVE_FILE first" in told
    assert "Its newest checkpoint is of step 40; steps 41-51 are in none." in told
    assert "Its newest checkpoint is of step 40." in " ".join(act(replace(row, step=40)))
    begun = " ".join(act(replace(row, newest_step=None)))
    assert "Steps 1-51 are in no checkpoint." in begun
    assert "that checkpoint" not in begun
    assert "It has no checkpoint." in " ".join(act(replace(row, newest_step=None, step=0)))
    assert "$RELAY_SAVE_FILE" not in " ".join(act(replace(row, status=RunStatus.QUEUED, holder=None)))


@pytest.mark.parametrize("pod_gone", [False, True])
def test_a_force_names_the_newest_checkpoint_and_what_is_in_none(pod_gone: bool) -> None:
    """It named neither, and is the act that costs the most."""
    row = run("r", step=51, newest_step=40, newest_checkpoint="step_00000040")
    said = "Its newest checkpoint is of step 40; steps 41-51 are in none."
    assert said in forces(row, 200.0, pod_gone=pod_gone)
    assert forces(row, 200.0, pod_gone=pod_gone)[-1].startswith("Another agent may start")
    queued = replace(row, status=RunStatus.QUEUED, holder=None)
    assert said not in forces(queued, None, pod_gone=False)
    assert said in " ".join(drains(row))


def test_the_shells_question_names_no_checkpoint_that_there_is_not() -> None:
    assert "none" not in _describe(RunDetail(NOW, run("r")))
