"""The live widgets: what a change costs, where a selection and a scroll stay, and what a chart draws."""

from __future__ import annotations

import math
import random

import pytest
from textual.app import App, ComposeResult

from relaytui.client.curve import Curve, Line
from relaytui.client.logbuffer import LogBuffer
from relaytui.client.mirror import Mirror
from relaytui.client.words import remaining
from relaytui.dashboard.format import age, bar, count, duration, number, per_second, percent, size, steps
from relaytui.dashboard.ink import Ink, Piece
from relaytui.dashboard.screens.facts import event_lines, peek_lines
from relaytui.dashboard.screens.histories import ATTEMPT_COLUMNS, CHECKPOINT_COLUMNS
from relaytui.dashboard.screens.lists import EVENT_COLUMNS, RUN_COLUMNS, WORKER_COLUMNS, run_item
from relaytui.dashboard.widgets.chart import Chart, frame_of, plot
from relaytui.dashboard.widgets.log import LogView
from relaytui.dashboard.widgets.pieces import fit, folded, named, width_of
from relaytui.dashboard.widgets.table import Column, Row, Table, place_columns
from relaytui.wire.rows import EventRow, RunRow
from relaytui.wire.status import RunStatus

NOW = 1_700_000_000.0

COLUMNS = (
    Column("name", "name", 8, 0, grow=10),
    Column("value", "value", 6, 1, right=True),
    Column("extra", "extra", 6, 9),
)


class Stage(App[None]):
    def __init__(self, widget: Table | LogView | Chart) -> None:
        super().__init__()
        self.widget = widget
        self.ink = Ink(self.get_css_variables())

    def compose(self) -> ComposeResult:
        yield self.widget


class CountingTable(Table):
    """Counts how often a row is really drawn."""

    drawn = 0

    def _draw(self, *args: object) -> object:  # type: ignore[override]
        self.drawn += 1
        return super()._draw(*args)  # type: ignore[arg-type]


def rows(count: int, values: dict[int, str] | None = None) -> list[Row]:
    changed = values or {}
    return [Row(f"r{i}", ((Piece(f"r{i}"),), (Piece(changed.get(i, "0")),), (Piece("x"),))) for i in range(count)]


async def test_only_the_row_that_changed_is_drawn_again() -> None:
    table = CountingTable(COLUMNS)
    async with Stage(table).run_test(size=(60, 20)) as pilot:
        table.show(rows(1_000))
        await pilot.pause()
        table.drawn = 0
        table.show(rows(1_000, {3: "1"}))
        await pilot.pause()
        assert table.drawn == 1
        table.show(rows(1_000, {3: "1", 900: "1"}))  # out of sight
        await pilot.pause()
        assert table.drawn == 1
        table.show(rows(1_000, {3: "1", 900: "1"}))
        await pilot.pause()
        assert table.drawn == 1


async def test_a_number_that_grew_is_not_cut_and_one_that_shrank_moves_no_column() -> None:
    table = Table((Column("name", "name", 6, 0, grow=20), Column("step", "step", 4, 1, grow=8, right=True, least=1)))

    def show(*steps: str) -> list[str]:
        table.show([Row(f"r{i}", ((Piece(f"run-{i}"),), (Piece(step),))) for i, step in enumerate(steps)])
        return [table.render_line(y + 1).text.rstrip() for y in range(len(steps))]

    async with Stage(table).run_test(size=(60, 10)) as pilot:
        show("1/10", "2/10")
        await pilot.pause()
        assert show("1/10", "200000/999")[1].endswith("run-1   200000/999")
        wide = show("1/10", "3/10")
        assert [line.index("/") for line in wide] == [line.index("/") for line in show("1/10", "200/99")]
        assert table.rows[0].key == "r0"
        table.show(list(reversed(table.rows)))
        assert table.render_line(1).text.rstrip().endswith("run-1       200/99")
        assert show("1/10")[0].endswith("run-0   1/10"), "other rows: all columns anew"


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("llama3-8b-lr1e-05-seed17", 15, "llama3-…-seed17"),
        ("llama3-8b-lr1e-05-seed17", 24, "llama3-8b-lr1e-05-seed17"),
        ("日本語日本語日本語", 9, "日本…本語"),
        ("abcdefgh", 5, "ab…gh"),
        ("abcdefgh", 4, "abc…"),
    ],
)
def test_a_long_name_is_told_from_its_family_by_its_end(text: str, width: int, shown: str) -> None:
    assert "".join(part for part, _ in fit(named((Piece(text),), width), width)).rstrip() == shown
    two = "".join(part for part, _ in fit(named((Piece("waits "), Piece(text)), width + 6), width + 6))
    assert two.rstrip() == f"waits {shown}"


async def test_selection_and_scroll_follow_the_key_through_any_reordering() -> None:
    table = Table(COLUMNS)
    rng = random.Random(3)
    async with Stage(table).run_test(size=(60, 20)) as pilot:
        table.show(rows(200))
        table.select("r150")
        await pilot.pause()
        for _ in range(10):
            shuffled = rows(200)
            rng.shuffle(shuffled)
            table.show(shuffled)
            assert table.cursor_key == "r150"
            assert table.cursor_index == [row.key for row in shuffled].index("r150")
        table.show([row for row in rows(200) if row.key != "r150"])
        assert table.cursor_key is not None
        table.show([])
        assert table.cursor_key is None


async def test_keys_move_and_the_selected_row_stays_in_sight() -> None:
    table = Table(COLUMNS)
    async with Stage(table).run_test(size=(60, 12)) as pilot:
        table.show(rows(100))
        table.focus()
        await pilot.press("end")
        assert table.cursor_key == "r99"
        await pilot.press("pageup", "up", "k")
        index = table.cursor_index
        assert index is not None
        assert table.scroll_offset.y <= index < table.scroll_offset.y + 11
        await pilot.press("home")
        assert (table.cursor_key, table.scroll_offset.y) == ("r0", 0)


@pytest.mark.parametrize("width", [1, 3, 8, 12, 20, 40, 80, 200])
def test_columns_never_take_more_than_there_is(width: int) -> None:
    placed = place_columns(COLUMNS, (30, 6, 6), width, 2)
    assert placed[0].column.key == "name"
    assert placed[-1].x + placed[-1].width <= width
    assert [p.column.priority for p in placed] == sorted(p.column.priority for p in placed)


@pytest.mark.parametrize("width", range(60, 160, 3))
@pytest.mark.parametrize(("step", "total"), [(1_000, 60_000), (12_345, 99_999), (999_999, 1_000_000), (7, None)])
def test_in_the_list_of_runs_no_number_is_cut(width: int, step: int, total: int | None) -> None:
    row = RunRow(
        run_id="a-run-whose-name-is-long-enough-to-want-more", mode="sft", status=RunStatus.RUNNING, epoch=123,
        created_at=NOW, updated_at=NOW, holder="a-pod-with-a-name-of-some-length", lease_expires_at=NOW + 40_000,
        step=step, total=total, rate=1.2345, loss=12.3456,
    )  # fmt: skip
    cells = run_item(row, NOW).row.cells
    needs = [sum(width_of(text) for text, _ in cell) for cell in cells]
    placed = place_columns(RUN_COLUMNS, needs, width, 2)
    assert {"run", "status", "step", "loss"} <= {each.column.key for each in placed}
    for each in placed:
        assert not each.column.right or each.width >= needs[each.index], each.column.key


@pytest.mark.parametrize("columns", [RUN_COLUMNS, WORKER_COLUMNS, EVENT_COLUMNS, ATTEMPT_COLUMNS, CHECKPOINT_COLUMNS])
@pytest.mark.parametrize("width", [40, 60, 80, 160])
@pytest.mark.parametrize("epoch", [7, 10_007, 2**53])
def test_an_epoch_is_whole_or_left_out(columns: tuple[Column, ...], width: int, epoch: int) -> None:
    """After a restore epochs have five digits, and three attempts in a row were all `10…`."""
    needs = [len(str(epoch)) if column.key == "epoch" else column.width for column in columns]
    shown = {each.column.key: each.width for each in place_columns(columns, needs, width, 2)}
    assert shown.get("epoch", 99) >= len(str(epoch))
    assert "epoch" in shown or width < 160


def test_an_event_below_the_list_is_a_sentence_and_says_nothing_twice() -> None:
    row = EventRow(
        id=1, at=NOW, kind="checkpoint.published", actor="pod-a", message="step_00000010 at step 10, 3 files",
        run_id="r", epoch=1, data={"name": "step_00000010", "step": "10", "bytes": "33658"},
    )  # fmt: skip
    _, *words = event_lines(row, NOW, 80)
    assert "".join(text for line in words for text, _ in line).strip() == "step_00000010 at step 10, 3 files, 33.7 kB"


LONG = EventRow(
    id=1, at=NOW, kind="checkpoint.none", actor="pod-a", message=" ".join(f"word-{n}" for n in range(60)),
    run_id="r", epoch=1, data={"files": "4711", "where": "/mnt/relay"},
)  # fmt: skip


@pytest.mark.parametrize("rows", [2, 3, 5])
def test_what_there_is_no_room_for_below_the_list_is_seen_to_be_missing(rows: int) -> None:
    head, *words = event_lines(LONG, NOW, 80, rows)
    said = ["".join(text for text, _ in line).rstrip() for line in words]
    assert len(said) == rows - 1
    assert all(width_of(line) <= 80 for line in said)
    assert said[-1].endswith("…"), said[-1]
    assert head


def test_an_event_is_whole_where_there_is_room_and_its_details_are_set_apart() -> None:
    _, *words = event_lines(LONG, NOW, 80, 12)
    said = " ".join("".join(text for text, _ in line).strip() for line in words)
    assert said == f"{LONG.message} (files 4711, where /mnt/relay)"


@pytest.mark.parametrize("width", [24, 40, 60, 80, 120])
def test_no_line_below_the_list_ends_in_half_a_number(width: int) -> None:
    row = RunRow(
        run_id="r", mode="sft", status=RunStatus.RUNNING, epoch=3, created_at=NOW, updated_at=NOW, holder="pod-a",
        lease_expires_at=NOW + 200, step=7, total=2_000, rate=7.47, loss=0.82, first_loss=0.97, reward=0.219, lr=0.0097,
    )  # fmt: skip
    _, held, numbers = peek_lines(row, Mirror(), width)
    for line in (held, numbers):
        assert sum(width_of(text) for text, _ in line) <= width
    said = "".join(text for text, _ in numbers).split("  ·  ")
    assert (
        said == [" 7/2000  0%", "7.47/s", "eta 4:26", "reward 0.219", "loss 0.820 from 0.970", "lr 0.0097"][: len(said)]
    )
    assert "nothing reported" not in "".join(text for text, _ in held), "it has made steps"


def test_large_counts_are_short_and_right() -> None:
    assert [count(n) for n in (9_999, 99_999, 100_000, 999_999, 1_240_000, 999_999_999)] == [
        "9999", "99,999", "100k", "1000k", "1.24M", "1000M",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["plain", "日本語テキスト", "a\u0301bc", "x" * 300, "", "😀😀😀", "mi日x"])
@pytest.mark.parametrize("width", [0, 1, 2, 3, 7, 20])
def test_a_cell_is_exactly_as_wide_as_its_column(text: str, width: int) -> None:
    for right in (False, True):
        assert sum(width_of(t) for t, _ in fit([Piece(text), Piece(text)], width, right=right)) == width


def test_folding_keeps_every_word_in_order() -> None:
    words = [Piece("one two three"), Piece("four five", "bad")]
    lines = folded(words, 9)
    assert " ".join("".join(t for t, _ in line) for line in lines) == "one two three four five"
    assert all(sum(width_of(t) for t, _ in line) <= 9 for line in lines)


# -- log -----------------------------------------------------------------------------------------------------------


def shown(view: LogView) -> list[str]:
    return [view.render_line(y).text.rstrip() for y in range(view.size.height)]


async def test_the_log_follows_until_scrolled_and_then_holds_what_is_in_sight() -> None:
    view, buffer = LogView(), LogBuffer(limit=500)
    async with Stage(view).run_test(size=(50, 12)) as pilot:
        view.focus()
        view.follow_buffer(buffer)
        buffer.add(1, 1, 0, [f"line {n}" for n in range(1, 101)])
        view.refresh_log()
        await pilot.pause()
        assert shown(view)[-1].strip() == "line 100"
        await pilot.press("home")
        await pilot.pause()
        assert shown(view)[1].startswith(" ── epoch 1 ─"), "attempts are counted otherwise"
        await pilot.press("end", "pageup")
        held = shown(view)[1:]
        # More than the ring holds goes by: what is in sight stays there as long as it exists.
        buffer.add(1, 101, 0, [f"line {n}" for n in range(101, 501)])
        view.refresh_log()
        await pilot.pause()
        assert shown(view)[1:] == held
        assert "400 new below" in shown(view)[0]
        await pilot.press("end")
        await pilot.pause()
        assert shown(view)[-1].strip() == "line 500"
        assert "following" in shown(view)[0]


async def test_the_log_holds_still_while_its_oldest_lines_go() -> None:
    view, buffer = LogView(), LogBuffer(limit=200)
    async with Stage(view).run_test(size=(50, 12)) as pilot:
        view.focus()
        view.follow_buffer(buffer)
        buffer.add(1, 1, 0, [f"line {n}" for n in range(1, 201)])
        view.refresh_log()
        await pilot.pause()
        await pilot.press("pageup")
        held = shown(view)[1:]
        for start in range(201, 301, 20):
            buffer.add(1, start, 0, [f"line {n}" for n in range(start, start + 20)])
            view.refresh_log()
            await pilot.pause()
            assert shown(view)[1:] == held


async def test_gaps_and_attempts_are_said_and_counted() -> None:
    view, buffer = LogView(), LogBuffer()
    async with Stage(view).run_test(size=(50, 16)) as pilot:
        view.follow_buffer(buffer)
        buffer.add(1, 41, 0, ["a"])
        buffer.add_gap(1, 42, 7)
        buffer.add(1, 49, 0, ["b"])
        buffer.add(1, 60, 0, ["c"])
        buffer.add(2, 1, 0, ["d"])
        view.refresh_log()
        await pilot.pause()
        said = "\n".join(shown(view))
        assert "epoch 1" in said
        assert "40 lines not loaded" in said
        assert "7 lines gave way" in said
        assert "10 lines not loaded" in said
        assert "epoch 2" in said


async def test_wrapped_lines_lose_nothing() -> None:
    view, buffer = LogView(), LogBuffer()
    text = "".join(chr(97 + i % 26) for i in range(300)) + "日本語" * 20
    async with Stage(view).run_test(size=(40, 24)) as pilot:
        view.focus()
        view.follow_buffer(buffer)
        buffer.add(1, 1, 0, [text])
        view.refresh_log()
        await pilot.press("w")
        await pilot.pause()
        assert "".join(line.strip() for line in shown(view)[2:]) == text


async def test_lines_of_a_past_attempt_that_come_late_are_put_in_their_place() -> None:
    view, buffer = LogView(), LogBuffer()
    async with Stage(view).run_test(size=(50, 12)) as pilot:
        view.follow_buffer(buffer)
        buffer.add(2, 1, 0, ["second"])
        view.refresh_log()
        buffer.add(1, 1, 0, ["first"])
        view.refresh_log()
        await pilot.pause()
        said = [line.strip() for line in shown(view)]
        assert said.index("first") < said.index("second")


# -- chart ---------------------------------------------------------------------------------------------------------


def test_no_spike_is_lost_however_many_points_there_are() -> None:
    values = [1.0] * 5_000
    values[2_345] = 9.0
    line = Line(list(range(5_000)), values)
    frame = frame_of([line])
    assert frame is not None
    cells = plot(line, frame, 40, 8)
    assert any(y == 0 for _, y in cells), "the spike reaches the top"


def test_what_is_no_number_is_a_gap() -> None:
    steps_ = list(range(100))
    line = Line(steps_, [1.0 + s / 100 if not 40 <= s < 60 else math.nan for s in steps_])
    frame = frame_of([line])
    assert frame is not None
    columns = {x for x, _ in plot(line, frame, 50, 8)}
    assert not columns & set(range(22, 29))
    assert {0, 10, 40, 49} <= columns


def test_nothing_to_draw_has_no_frame_and_a_flat_line_has_one() -> None:
    assert frame_of([Line([1, 2], [math.nan, math.inf])]) is None
    assert frame_of([]) is None
    flat = frame_of([Line([1, 2], [3.0, 3.0])])
    assert flat is not None
    assert flat.low < 3.0 < flat.high


@pytest.mark.parametrize("size_", [(3, 2), (12, 4), (40, 10), (160, 40)])
async def test_a_chart_fits_any_size(size_: tuple[int, int]) -> None:
    chart, curve = Chart("loss"), Curve()
    async with Stage(chart).run_test(size=size_) as pilot:
        chart.show(curve)
        curve.add([(1, s, 4.0 - s / 100) for s in range(200)] + [(2, s, "nan") for s in range(100, 120)])
        chart.show(curve)
        await pilot.pause()
        assert all(chart.render_line(y).cell_length == size_[0] for y in range(size_[1]))


# -- numbers -------------------------------------------------------------------------------------------------------


def test_numbers_as_people_read_them() -> None:
    assert [duration(s) for s in (-1, 7, 252, 7_500, 273_600)] == ["0:00", "0:07", "4:12", "2h05m", "3d04h"]
    assert [age(s) for s in (0.4, 12, 200, 7_300, 500_000)] == ["now", "12s", "3m", "2h", "5d"]
    assert [number(v) for v in (None, "nan", "-inf", 0.0, 2.31064, 0.01, 12_345.6, 1e-7)] == [
        "–",
        "nan",
        "-inf",
        "0",
        "2.311",
        "0.01",
        "12346",
        "1.0e-07",
    ]
    assert [per_second(r) for r in (None, 12.42, 0.45, 0.001, 1_234.0)] == ["–", "12.4/s", "27/m", "3.6/h", "1234/s"]
    assert [remaining(*each) for each in ((340, 400, 12.0), (1, None, 1.0), (1, 10, 0.0))] == [5.0, None, None]
    assert (steps(340, 400), steps(12, None), steps(1_240_000, 9_000_000)) == ("340/400", "12", "1.24M/9M")
    assert (percent(399, 400), percent(400, 400), percent(5, None)) == ("99%", "100%", "")
    assert [size(b) for b in (12, 41_200, 7_000_000_000)] == ["12 B", "41.2 kB", "7 GB"]
    for done in range(0, 401, 7):
        assert sum(len(t) for t, _ in bar(done, 400, 8)) == 8


def test_a_curve_from_one_end_of_the_floats_to_the_other_is_drawn() -> None:
    line = Line([1, 2], [1.7e308, -1.7e308])
    frame = frame_of([line])
    assert frame is not None
    assert plot(line, frame, 10, 4)
