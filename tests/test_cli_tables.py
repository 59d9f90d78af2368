"""What the shell prints for people: columns that fit, numbers that are whole, events as sentences."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from relaytui.cli import runs, show
from relaytui.cli.output import Column, laid_out
from relaytui.client.answers import Events, RunDetail, Runs
from relaytui.client.words import details, sentence
from relaytui.dashboard.format import steps
from relaytui.wire.rows import EventRow, RunRow
from relaytui.wire.status import RunStatus

NOW = 1_700_000_000.0


def run(run_id: str = "ablation-with-a-name", **more: object) -> RunRow:
    values: dict[str, object] = {
        "run_id": run_id, "mode": "sft", "status": RunStatus.RUNNING, "epoch": 12, "created_at": NOW, "updated_at": NOW,
        "holder": "pod-in-the-north-7", "lease_expires_at": NOW + 290, "step": 123_456, "total": 6_000_000,
        "rate": 12.345, "loss": 2.34567, "first_loss": 10.5, "reward": 0.5, "reported_at": NOW - 3,
        "newest_checkpoint": "step_00123000", "checkpoints": 3, "published": 40,
    }  # fmt: skip
    return RunRow(**{**values, **more})  # type: ignore[arg-type]


def test_before_the_first_step_no_number_is_shown() -> None:
    """A bare 0 would be read as a step that was made; the lists of shell and dashboard say so alike."""
    said = [(step, total, runs._step(run(step=step, total=total))) for step in (0, 7) for total in (None, 40)]
    assert [text for *_, text in said] == ["-", "0/40", "7", "7/40"]
    assert [steps(step, total) for step, total, _ in said] == ["–", "0/40", "7", "7/40"]


def event(kind: str, message: str, **data: str) -> EventRow:
    return EventRow(id=1, at=NOW, kind=kind, actor="pod-a", message=message, run_id="r", epoch=1, data=data)


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int | None) -> list[str]:
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    runs.print_runs(Runs(NOW, [run(), run("b", total=None, rate=None, holder=None)]))
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_runs_fit_and_no_number_is_cut(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(monkeypatch, capsys, columns)
    assert max(map(cell_len, lines)) <= columns
    for word in ("ablation-with-a-name", "running", "123456/6000000", "2.346"):
        assert word in lines[1].split()
    assert not any("…" in line for line in lines)


def test_a_file_gets_every_column(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (header, first, _) = printed(monkeypatch, capsys, None)
    assert header.split() == [column.title for column in runs.RUN_COLUMNS]
    assert "pod-in-the-north-7" in first
    assert "5d12h" in first  # the ETA


def test_what_matters_least_gives_way_first_and_text_goes_on_in_the_next_line() -> None:
    columns = (Column("NAME"), Column("MORE", 2), Column("LESS", 1), Column("WORDS", least=10))
    rows = [("a" * 10, "m" * 10, "5" * 10, "one two three four")]
    wide, narrow, least = (list(laid_out(columns, rows, width)) for width in (80, 45, 22))
    assert wide[1] == f"{'a' * 10}  {'m' * 10}  {'5' * 10}  one two three four"
    assert narrow[1:] == [f"{'a' * 10}  {'5' * 10}  one two three four"]
    assert least == [
        "NAME        WORDS", f"{'a' * 10}  one two", f"{' ' * 12}three four",
    ]  # fmt: skip


def test_whom_a_narrow_line_of_events_is_about_stands_before_what_happened() -> None:
    """`no longer connected from vm`: of whom?"""
    row = ("10:00:00", "worker.disconnected", "-", "-", "pod-a", "no longer connected from vm")
    other = ("10:00:01", "run.started", "naive", "3", "pod-a", "from the beginning")
    _, *lines = laid_out(show.EVENT_COLUMNS, [row, other], 60)
    said = " ".join(" ".join(lines).split())
    assert "pod-a: no longer connected" in said
    assert "naive, pod-a: from the" in said
    wide = list(laid_out(show.EVENT_COLUMNS, [row], 120))[1]
    assert wide.split()[-5:] == ["no", "longer", "connected", "from", "vm"]
    assert "pod-a:" not in wide


def test_one_run_says_where_it_is_and_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    runs.print_detail(RunDetail(NOW, run(message="why \x1b[31mnot")))
    out = capsys.readouterr().out
    facts = dict(line.split(None, 1) for line in out.splitlines())
    assert facts["run"] == "ablation-with-a-name (sft)"
    assert facts["step"] == "123456/6000000 (2%), 12.3/s, ETA 5d12h"
    assert facts["loss"] == "2.346, 10.5 at first"
    assert facts["why"] == "why not"
    assert facts["checkpoint"] == "step_00123000; 40 published, 37 pruned"
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("row", "words", "more"),
    [
        (event("worker.connected", "vm-1"), "connected from vm-1", []),
        (event("worker.connected", "connected"), "connected", []),
        (
            event("checkpoint.pruned", "step_00000010", name="step_00000010"),
            "step_00000010 is deleted, newer ones are kept",
            [],
        ),
        (
            event(
                "checkpoint.published",
                "step_00000010 at step 10, 3 files",
                name="step_00000010",
                step="10",
                bytes="33658",
            ),
            "step_00000010 at step 10, 3 files, 33.7 kB",
            [],
        ),
        (
            event("run.completed", "reached step 60", outcome="completed", worker="pod-a", exit_code="0"),
            "reached step 60",
            [],
        ),
        (event("run.started", "from the beginning", step="0", pid="8470"), "from the beginning", ["pid 8470"]),
        (event("lease.forced", "going home", why="going home", pod_gone="yes"), "going home", ["pod gone yes"]),
        (event("loss.nonfinite", "the loss is nan at step 17", step="7"), "the loss is nan at step 17", ["step 7"]),
        (event("from.the.future", "a word", key_of="\x1b[2Jvalue"), "a word", ["key of value"]),
        (event("checkpoint.published", "x", bytes="9" * 400), "x, 1000 PB", []),
    ],
)
def test_an_event_is_a_sentence_and_says_nothing_twice(row: EventRow, words: str, more: list[str]) -> None:
    assert sentence(row) == words
    assert details(row) == more


def test_events_fit_into_a_narrow_terminal_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = event("checkpoint.salvaged", " ".join(f"word{n}" for n in range(30)), name="step_1")
    monkeypatch.setattr(show, "ask", lambda target, question: Events(NOW, [row]))
    show.events.main(["--state", "/nowhere"], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(f"word{n}" in " ".join(lines).split() for n in range(30))
    assert "pod-a" in lines[1]  # who
    assert lines[0].split() == ["TIME", "EVENT", "RUN", "EPOCH", "WHO", "WHAT"]
    show.events.main(["r", "--state", "/nowhere"], standalone_mode=False)
    assert capsys.readouterr().out.split("\n")[0].split() == ["TIME", "EVENT", "EPOCH", "WHO", "WHAT"]


def test_a_token_goes_on_in_the_next_line_whole_and_one_that_is_too_long_where_its_parts_end() -> None:
    columns = (Column("NAME"), Column("WHAT", least=24))
    said = "kept step_00000100.e00000003 of /mnt/relay/runs/my-run/ckpt/step_00000100.e00000003 漢漢漢漢漢漢漢漢"
    lines = list(laid_out(columns, [("a", said)], 30))
    assert max(map(cell_len, lines)) <= 30
    assert [line[6:] for line in lines[1:]] == [
        "kept", "step_00000100.e00000003", "of", "/mnt/relay/runs/my-run/", "ckpt/", "step_00000100.e00000003",
        "漢漢漢漢漢漢漢漢",
    ]  # fmt: skip
