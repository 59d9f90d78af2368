"""`relay-tui runs` of what is on the Hub and in the artifact store, as it is printed."""

from __future__ import annotations

import pytest
from dashboard_fleet import ATTEMPTS, CHECKPOINTS, RUNS
from msgspec.structs import replace
from scripted_commander import NOW
from test_dashboard_transfers import artifact
from test_transfer_words import SYNCED, hub

from relaytui.cli.runs import print_detail, print_runs
from relaytui.client.answers import RunDetail, Runs
from relaytui.wire.status import RunStatus

ROW = replace(RUNS[0], transfers=[hub(attempt=2)], **SYNCED)


def test_one_run_says_how_far_its_sync_is_and_where_each_checkpoint_lies(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [replace(CHECKPOINTS[0], pruned_at=NOW, hub="step-200"), CHECKPOINTS[1], CHECKPOINTS[2]]
    stored = [artifact(250, final=True), artifact(300, damaged="[/x]torn\x1b[2J")]
    print_detail(RunDetail(NOW, ROW, ATTEMPTS, rows, stored))
    said = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "transfers hub uploading step 300, try 2, 1.3 GB/4 GB 32%, 85 MB/s, eta 0:31" in lines
    assert "on the hub step 250 12m ago, newest 300 not yet, me/run, a1b2c3d4" in lines
    ends = {line.split()[0]: line for line in lines if line.startswith("step_")}
    assert ends["step_00000200"].endswith("pruned, hub step-200")
    assert ends["step_00000250"].endswith("ago volume, store")
    assert ends["step_00000300"].endswith("ago volume"), "what is damaged is not in the store"
    assert {line.split()[-1] for line in lines if line.startswith(("NAME ", "ID "))} == {"WHERE", "STATE"}
    assert "250 step_00000250 checkpoint 4100000000 1m ago final" in lines
    assert "300 step_00000300 checkpoint 4100000000 1m ago damaged: [/x]torn" in lines
    assert "\x1b" not in said


def test_a_run_without_a_hub_says_nothing_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    print_detail(RunDetail(NOW, RUNS[0], ATTEMPTS, CHECKPOINTS))
    said = capsys.readouterr().out
    assert "hub" not in said
    assert "artifacts" not in said


def test_the_list_has_a_column_of_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_runs(Runs(NOW, [ROW, replace(RUNS[1], sync_error="x"), RUNS[3]]))
    head, *rows = capsys.readouterr().out.splitlines()
    at = head.index("HUB")
    assert [row[at : at + 8].strip() for row in rows] == ["↑ 32%", "✗ failed", "-"]


@pytest.mark.parametrize("status", RunStatus)
def test_a_lease_is_left_where_one_is_held(capsys: pytest.CaptureFixture[str], status: RunStatus) -> None:
    """A run that was forced, and then cancelled, names who may still be stopping it, and until when."""
    row = replace(RUNS[0], status=status, holder="pod-a", lease_expires_at=NOW + 41)
    print_detail(RunDetail(NOW, row))
    said = " ".join(capsys.readouterr().out.split())
    if status.active:
        assert f"status {status.value}, held by pod-a at epoch 3, lease left 41s" in said
    else:
        assert f"status {status.value}, held by nobody, epoch 3 " in said
        assert "lease" not in said
    print_runs(Runs(NOW, [row]))
    assert ("41s" in capsys.readouterr().out) == status.active
