"""What is said of an artifact: the same in the list, of one run and on its screen."""

from __future__ import annotations

import pytest
from dashboard_fleet import RUNS
from msgspec.structs import replace
from scripted_commander import NOW

from relaytui.cli.artifacts import COLUMNS, _cells
from relaytui.cli.output import laid_out
from relaytui.cli.runs import print_detail
from relaytui.client.answers import RunDetail
from relaytui.client.artifacts import lost_with
from relaytui.dashboard.screens.histories import ARTIFACT_COLUMNS, artifact_item
from relaytui.dashboard.widgets.pieces import named, width_of
from relaytui.wire.artifacts import ArtifactKind, ArtifactRow

STORED = ArtifactRow(28, "r", ArtifactKind.CHECKPOINT, "step_00000025", "ab" * 32, 4_100, NOW - 60, "pod-a", 3, 25)
MANIFEST = replace(
    STORED, id=27, kind=ArtifactKind.FILE, name="checkpoint.manifest.json", sha256="cd" * 32, manifest_sha256="cd" * 32
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "whole"),
        ({"kind": ArtifactKind.FILE, "step": None}, "whole"),
        ({"final": True}, "final"),
        ({"verified_at": NOW - 33}, "verified 33s ago"),
        ({"final": True, "verified_at": NOW - 33}, "final, verified 33s ago"),
        (
            {"final": True, "damaged": "its content is missing, or cut off"},
            "damaged: its content is missing, or cut off",
        ),
    ],
)
def test_its_state_has_one_word_wherever_it_is_shown(
    changes: dict[str, object], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-`, `damaged`, `✓ veri…`, `whole` and nothing at all were said of one artifact."""
    monkeypatch.setenv("COLUMNS", "160")
    row = replace(STORED, **changes)
    assert _cells(row, NOW)[-1] == words
    print_detail(RunDetail(NOW, RUNS[0], artifacts=[row]))
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"  {words}")
    (state,) = artifact_item(row, NOW).cells[1]
    assert state.text.removeprefix("✗ ") == words


def test_of_two_manifests_it_is_said_which_step_each_is_of(capsys: pytest.CaptureFixture[str]) -> None:
    """Each row said `checkpoint.manifest.json`, on the screen `checkp…t.json`; a narrow list dropped the step."""
    print_detail(RunDetail(NOW, RUNS[0], artifacts=[MANIFEST, replace(MANIFEST, id=29, step=30)]))
    said = capsys.readouterr().out
    assert "27  checkpoint.manifest.json of step 25  file" in said
    assert "29  checkpoint.manifest.json of step 30  file" in said
    name = ARTIFACT_COLUMNS[0]
    (shown,) = named(artifact_item(MANIFEST, NOW).cells[0], name.width)
    assert width_of(shown.text) <= name.width
    assert shown.text.endswith("tep 25")
    lines = list(laid_out(COLUMNS, [_cells(MANIFEST, NOW)], 60))
    assert "STEP" in lines[0]
    assert all(width_of(line) <= 60 for line in lines)


def test_whose_checkpoint_a_manifest_is_is_said() -> None:
    """A small file was deleted, and the checkpoint beside it, still shown as stored, could not be restored any more."""
    rows = [MANIFEST, STORED]
    assert lost_with(MANIFEST, rows) == [], "it is not of that one"
    rows = [MANIFEST, known := replace(STORED, manifest_sha256=MANIFEST.sha256)]
    (said,) = lost_with(MANIFEST, rows)
    assert said.startswith("No agent can restore checkpoint step_00000025 (artifact 28) without it; ")
    assert said.endswith("what is left is `relay-tui artifacts fetch 28 --extract FOLDER`.")
    assert lost_with(known, rows) == [], "a checkpoint takes its manifest along"
    assert lost_with(replace(MANIFEST, sha256="ef" * 32), rows) == []
    for other in (
        replace(known, damaged="torn"),
        replace(known, run_id="other"),
        replace(known, kind=ArtifactKind.FILE),
    ):
        assert lost_with(MANIFEST, [MANIFEST, other]) == []
    again = replace(MANIFEST, id=31)
    assert lost_with(MANIFEST, [*rows, again]) == [], "another one says the same"
    assert lost_with(MANIFEST, [*rows, replace(again, damaged="torn")]) != []
