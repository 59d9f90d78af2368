"""What the dashboard shows: lists and one run."""

from __future__ import annotations

import msgspec
import pytest
from dashboard_fleet import ATTEMPTS, CHECKPOINTS, RUNS, WORKERS, backlog, commander, fleet, run, scripted
from dashboard_rig import dashboard
from msgspec.structs import replace
from scripted_commander import NOW, ScriptedCommander, snapshot

from relaytui.client.answers import RunDetail
from relaytui.client.link import Link, LinkState
from relaytui.client.mirror import Mirror
from relaytui.dashboard.glyphs import worker_status
from relaytui.dashboard.screens.lists import WORKER_COLUMNS, event_item, run_item, worker_items
from relaytui.dashboard.screens.run import RunScreen
from relaytui.dashboard.widgets.table import Table
from relaytui.wire.feed import CheckpointChanged, EventAdded, Lines, Points, RunChanged, WorkerChanged, WorkerGone
from relaytui.wire.rows import CheckpointRow, EventRow, WorkerRow
from relaytui.wire.status import Gone, RunStatus, WorkerStatus

__all__ = ["commander"]

HOSTILE = (
    "[/x] [@click=app.quit]q[/] \x1b]52;c;cHduZWQ=\x07 \x1b[2J \x9b31m \u202eevil\u2066 日本語 " + "e" + "\u0301" * 6
)


# -- lists ---------------------------------------------------------------------------------------------------------


async def test_every_state_is_told_by_glyph_and_word(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        text = await rig.shows("● live", "sft-sh")
        for said in (
            "○ queued",
            "● running",
            "◑ draining",
            "✓ completed",
            "✗ failed",
            "⊘ cancelled",
            "↯ preempted",
            "? lost",
        ):
            assert said in text


async def test_what_matters_of_a_run_is_in_its_row_at_80_columns(commander: ScriptedCommander) -> None:
    commander.greeting = [snapshot([RUNS[0]])]
    async with dashboard(commander) as rig:
        text = await rig.shows("sft-shakespeare")
        row = next(line for line in text.splitlines() if "340/400" in line)
        for said in ("sft-shakespeare", "● running", "340/400", "2.311", "0:04", " 300 ", "pod-a"):
            assert said in row
        assert "lease 4:1" in text  # below the list, as its column gave way


async def test_a_wide_terminal_has_all_columns(commander: ScriptedCommander) -> None:
    async with dashboard(commander, size=(160, 50)) as rig:
        text = await rig.shows("sft-shakespeare")
        header = next(line for line in text.splitlines() if "status" in line and "loss" in line)
        for title in ("run", "status", "step", "loss", "rate", "eta", "holder", "ep", "lease", "saved"):
            assert title in header
        assert "━" in text


@pytest.mark.parametrize("size", [(20, 5), (12, 3), (60, 20), (80, 24), (160, 50)])
async def test_no_size_breaks_any_screen(commander: ScriptedCommander, size: tuple[int, int]) -> None:
    async with dashboard(commander, size=size) as rig:
        await rig.becomes(lambda: rig.app.mirror.loaded)
        for key in (
            "2",
            "3",
            "1",
            "slash",
            "x",
            "escape",
            "enter",
            "v",
            "v",
            "v",
            "v",
            "escape",
            "question_mark",
            "escape",
        ):
            await rig.press(key)
        await rig.press("f")
        await rig.pilot.resize_terminal(20, 5)
        await rig.pilot.pause()
        await rig.pilot.resize_terminal(*size)
        await rig.press("escape")


async def test_changes_show_without_a_key(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await rig.shows("340/400")
        await commander.tell(RunChanged(NOW, run("sft-shakespeare", step=355, total=400, loss=2.2)))
        await rig.shows("355/400", without="340/400")
        await rig.press("2")
        await commander.tell(
            WorkerChanged(now=NOW, worker=WorkerRow("pod-new", "i-n", WorkerStatus.CONNECTING, NOW, NOW))
        )
        await rig.shows("pod-new", "◔ connecting")
        await rig.press("3")
        await commander.tell(EventAdded(EventRow(99, NOW, "run.completed", "pod-a", "reached step 400", "sft-x", 3)))
        await rig.shows("run.completed", "reached step 400")


async def test_the_header_and_the_tab_count_the_same_workers(commander: ScriptedCommander) -> None:
    async with dashboard(commander, size=(120, 24)) as rig:
        await rig.shows("workers 3/4", "3/4 workers")
        await commander.tell(WorkerGone("i-d"))
        await rig.shows("workers 3 ", " 3 workers", without="3/4 workers")
        for incarnation in ("i-a", "i-b", "i-c"):
            here = next(row for row in WORKERS if row.incarnation == incarnation)
            await commander.tell(WorkerChanged(NOW, msgspec.structs.replace(here, status=WorkerStatus.OFFLINE)))
        await rig.shows("workers 0/3", "0/3 workers")
        # One that has done what it came for, or cannot have it, is missed by nobody.
        gone = next(row for row in WORKERS if row.incarnation == "i-a")
        await rig.press("2")
        for why in Gone:
            left = msgspec.structs.replace(gone, status=WorkerStatus.OFFLINE, run_id=None, epoch=0, gone=why)
            await commander.tell(WorkerChanged(NOW, left))
            await rig.shows("workers 0/2", "0/2 workers", f"· {why}")


def test_a_worker_whose_connection_is_open_is_heard_now() -> None:
    """It is known to be there, though it has nothing to say; when the picture was last true counts where it is not."""
    time = [0.0]
    mirror = Mirror(lambda: time[0])
    rows = [
        WorkerRow("waits", "i-1", WorkerStatus.IDLE, NOW, NOW - 60, version="0.1.0", waiting_for="run-1"),
        WorkerRow("busy", "i-2", WorkerStatus.BUSY, NOW, NOW - 60, version="0.1.0", run_id="run-1"),
        WorkerRow("polls", "i-3", WorkerStatus.BUSY, NOW, NOW - 60, version="original", run_id="run-2"),
        WorkerRow("away", "i-4", WorkerStatus.OFFLINE, NOW, NOW - 60, version="0.1.0"),
    ]
    mirror.set_link(Link(LinkState.LIVE, 0.0))
    mirror.apply(snapshot(workers=rows))

    def heard() -> list[str]:
        column = [column.key for column in WORKER_COLUMNS].index("seen")
        return ["".join(text for text, _ in item.row.cells[column]) for item in worker_items(mirror, mirror.now)]

    time[0] = 20.0
    assert heard() == ["now", "now", "20s ago", "20s ago"]
    mirror.set_link(Link(LinkState.STALE, 20.0))
    time[0] = 32.0
    assert heard() == ["12s ago", "12s ago", "32s ago", "32s ago"]


async def test_the_selection_stays_on_its_run_when_order_and_rows_change(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await rig.shows("sft-sh")
        table = rig.app.screen.query_one("#runs", Table)
        table.select("rl-rewrite")
        for _ in range(6):
            await rig.press("o")
            assert table.cursor_key == "rl-rewrite"
        await rig.press("O")
        await commander.tell(RunChanged(NOW, run("aaa-new")))
        await rig.shows("aaa-new")
        assert table.cursor_key == "rl-rewrite"


async def test_the_newest_event_stays_selected_until_another_one_is(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await rig.shows("sft-sh")
        await rig.press("3")
        await rig.shows("lease.forced")
        table = rig.app.screen.query_one("#events", Table)
        await commander.tell(EventAdded(EventRow(90, NOW, "run.lost", "commander", "nothing heard", "sft-x", 3)))
        await rig.becomes(lambda: table.cursor_key == "90")
        await rig.press("j")
        below = table.cursor_key
        await commander.tell(EventAdded(EventRow(91, NOW, "run.queued", "commander", "again", "sft-x", 3)))
        await rig.shows("run.queued")
        assert (table.cursor_key, table.cursor_index) == (below, 2)


async def test_the_filter_counts_and_escape_clears_it(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await rig.shows("sft-sh")
        await rig.press("slash", *"sweep")
        await rig.shows("2 of 9", "sweep-lr-03", without="rl-rewrite")
        await rig.press("enter")
        await rig.press("escape")
        await rig.shows("rl-rewrite")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/3000", ["sft-long", "dead"]),
        ("▲ silent 1:45", ["dead"]),
        ("4:12", ["sft-long", "dead"]),
        ("running", ["sft-long"]),
        ("hub", []),
        ("what-it-said", []),
        ("sft", ["sft-long"]),
        ("POD-A", ["sft-long", "dead"]),
        ("5/m", []),
        ("30/m", ["sft-long"]),
    ],
)
def test_the_filter_matches_what_a_row_says(text: str, shown: list[str]) -> None:
    """`3000` gave 1 of 30 where ten rows had it, and `hub` all of them, where none did."""
    first = run("sft-long", step=340, total=3_000, rate=0.5, message="what-it-said")
    rows = [first, replace(first, run_id="dead", silent_since=NOW - 105), run("x", RunStatus.QUEUED)]
    assert [row.run_id for row in rows if text.casefold() in run_item(row, NOW).text] == shown


def test_of_workers_and_events_too() -> None:
    worker = next(iter(worker_items(mirror_of(WORKERS[0]), NOW)))
    assert all(text in worker.text for text in ("8× nvidia h100", "● busy", "sft-shakespeare", "node-07", "0.1.0"))
    event = event_item(EventRow(1, NOW, "lease.granted", "pod-a", "granted", "sft-x", 7))
    assert all(text in event.text for text in ("lease.granted", "sft-x", "7", "pod-a", "granted"))
    assert "mode" not in event.text


def mirror_of(worker: WorkerRow) -> Mirror:
    mirror = Mirror()
    mirror.apply(snapshot([], [worker]))
    return mirror


async def test_filtered_to_nothing_says_so_and_how_to_get_back(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await rig.shows("sft-sh")
        await rig.press("slash", *"zzz")
        await rig.shows("none of 9 runs contains zzz", "esc shows all")


async def test_a_key_typed_into_the_filter_is_text(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await rig.shows("sft-sh")
        await rig.press("slash", "q", "f", "d")
        assert rig.app.is_running
        await rig.shows("qfd")


REASON = (
    "the trainer ended (exit code 1) after 212 steps; its last words: torch.OutOfMemoryError: CUDA out of memory. Tried"
)
REASON += " to allocate 2.50 GiB; GPU 0 has 79.10 GiB of which 1.1 GiB is free: lower the batch size"


async def test_the_cause_of_a_failure_is_read_in_a_narrow_terminal(commander: ScriptedCommander) -> None:
    failed = run("sft-shakespeare", RunStatus.FAILED, epoch=3, message=REASON)
    commander.greeting = [snapshot([failed])]
    async with dashboard(commander) as rig:
        assert REASON in " ".join((await rig.shows("sft-sh", "lower the batch size")).split())
    async with dashboard(commander, size=(60, 18)) as rig:
        await rig.shows("sft-sh", "the trainer ended", "lower the batch size", "…")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (80, 17)])
async def test_the_run_s_own_screen_says_the_whole_of_why_it_failed(
    commander: ScriptedCommander, size: tuple[int, int]
) -> None:
    failed = run("sft-shakespeare", RunStatus.FAILED, epoch=3, message=REASON, loss=3.9)
    commander.greeting = [snapshot([failed])]
    commander.answers["GET", "/api/runs/sft-shakespeare"] = (200, RunDetail(NOW, failed, [], []))
    async with dashboard(commander, size=size) as rig:
        await opened(rig)
        said = await rig.shows("esc back", "lower the batch size")
        assert REASON in " ".join(said.split())
        assert "log" in said
        await rig.press("v")
        assert REASON in " ".join((await rig.shows("esc back")).split())
        await commander.tell(RunChanged(NOW, run("sft-shakespeare", RunStatus.QUEUED, message="", updated_at=NOW + 1)))
        await rig.shows("○ queued", without="batch size")


async def test_at_the_first_line_there_is_no_older_one_and_that_is_said(commander: ScriptedCommander) -> None:
    scripted(commander)
    async with dashboard(commander) as rig:
        await opened(rig)
        await commander.tell(Lines("sft-shakespeare", 1, 1, NOW - 2_000, ["the very first"]), *backlog())
        await rig.shows("step 340/400 loss")
        await rig.becomes(lambda: rig.app.mirror.picture("sft-shakespeare").loaded)
        await rig.press("home", "home")
        await rig.shows("the very first", "this is the first line", without="no older lines")


# -- one run -------------------------------------------------------------------------------------------------------


async def opened(rig: object) -> None:
    from dashboard_rig import Rig

    assert isinstance(rig, Rig)
    await rig.shows("sft-sh")
    rig.app.screen.query_one("#runs", Table).select("sft-shakespeare")
    await rig.press("enter")
    await rig.becomes(lambda: bool(rig.commander.watches) and rig.commander.watches[-1].runs == ["sft-shakespeare"])


async def test_after_a_restore_a_run_s_screen_says_that_its_lists_may_be_older(commander: ScriptedCommander) -> None:
    older = msgspec.structs.replace(RUNS[0], restored_at=NOW - 200)
    commander.answers["GET", f"/api/runs/{older.run_id}"] = (200, RunDetail(NOW, older, ATTEMPTS, CHECKPOINTS))
    async with dashboard(commander, size=(120, 50)) as rig:
        await opened(rig)
        words = "restored 3m ago from a backup: what is listed may be older than the volume until an agent tells what"
        await rig.shows(words)
        late = CheckpointRow(RUNS[0].run_id, "step_00000310", 310, 3, 9, 1, "a" * 64, NOW)
        await commander.tell(CheckpointChanged(late))
        await rig.shows("step_00000310", words)
        await commander.tell(RunChanged(NOW, msgspec.structs.replace(older, restored_at=None)))
        await rig.shows("step_00000310", without="restored")


async def test_an_opened_run_shows_progress_curve_attempts_checkpoints_and_log(commander: ScriptedCommander) -> None:
    async with dashboard(commander, size=(120, 40)) as rig:
        await opened(rig)
        await commander.tell(*backlog())
        text = await rig.shows(
            "340/400  85%", "● going on", "? lost", "step_00000300", "step 340/400 loss", "following"
        )
        assert "held by pod-a" in text
        assert "lowest" in text
        assert any("\u2800" < char <= "\u28ff" for char in text), "the curve is drawn"


async def test_new_lines_and_points_appear_as_they_come(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await opened(rig)
        await commander.tell(*backlog())
        await rig.shows("step 340/400 loss")
        await commander.tell(
            Lines("sft-shakespeare", 3, 92, NOW, ["step 341/400 loss 0.5000"]),
            Points("sft-shakespeare", "loss", [(3, 341, 0.5)]),
        )
        await rig.shows("step 341/400 loss 0.5000", "lowest 0.500")


async def test_scrolled_up_the_log_stays_and_counts_what_is_new(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await opened(rig)
        await commander.tell(*backlog())
        await rig.shows("step 340/400 loss")
        await rig.press("pageup", "pageup")
        await rig.shows("held", without="following")
        before = [line[:-1] for line in rig.text.splitlines()[14:23]]  # beside them the bar tells of the new ones
        await commander.tell(Lines("sft-shakespeare", 3, 92, NOW, ["new one", "new two", "new three"]))
        await rig.shows("3 new below")
        assert [line[:-1] for line in rig.text.splitlines()[14:23]] == before
        await rig.press("end")
        await rig.shows("new three", "following")


async def test_the_logs_filter_counts_and_recovers(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await opened(rig)
        await commander.tell(*backlog())
        await rig.shows("step 340/400 loss")
        await rig.press("slash", *"clipped")
        await rig.shows("3 of 93 lines with clipped", "warning: clipped gradient")
        await rig.press("escape")
        await rig.shows("step 340/400 loss")
        await rig.press("escape")
        await rig.shows("1 runs 9")


async def test_views_cycle_through_all_log_curve_history(commander: ScriptedCommander) -> None:
    async with dashboard(commander, size=(60, 20)) as rig:
        await opened(rig)
        await commander.tell(*backlog())
        await rig.shows("loss", "following")
        await rig.press("v")
        await rig.shows("following", without="lowest")
        await rig.press("v")
        await rig.shows("lowest", without="following")
        await rig.press("v")
        await rig.shows("checkpoint", "outcome", without="following")


async def test_a_run_lost_and_granted_anew_is_read_again(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await opened(rig)
        await rig.shows("going on")
        asked = sum(path == "/api/runs/sft-shakespeare" for _, path, _, _ in commander.requests)
        await commander.tell(RunChanged(NOW, run("sft-shakespeare", epoch=4, attempts=4, holder="pod-z")))
        await rig.becomes(
            lambda: sum(path == "/api/runs/sft-shakespeare" for _, path, _, _ in commander.requests) > asked
        )


async def test_leaving_a_run_stops_its_lines(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await opened(rig)
        await rig.press("escape")
        await rig.becomes(lambda: commander.watches[-1].runs == [])


# -- what pods say -------------------------------------------------------------------------------------------------


async def test_text_of_pods_is_never_markup_nor_control(commander: ScriptedCommander) -> None:
    odd = run(HOSTILE, message=HOSTILE, holder=HOSTILE, newest_checkpoint=HOSTILE, mode=HOSTILE)
    worker = WorkerRow(HOSTILE, "i-odd", WorkerStatus.BUSY, NOW, NOW, HOSTILE, HOSTILE, HOSTILE, 1, HOSTILE)
    event = EventRow(50, NOW, HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, {"k": HOSTILE})
    commander.greeting = [snapshot([odd, RUNS[0]], [worker], [event])]
    async with dashboard(commander, size=(120, 40)) as rig:
        await rig.shows("[/x]")
        for key in ("2", "3", "1", "f", "escape", "d", "escape", "question_mark", "escape"):
            await rig.press(key)
            assert_harmless(rig.text)
        rig.app.say(HOSTILE)
        await rig.pilot.pause()
        assert_harmless(rig.text)
        rig.app.push_screen(RunScreen("sft-shakespeare"))
        await rig.pilot.pause()
        await commander.tell(Lines("sft-shakespeare", 3, 1, NOW, [HOSTILE, "日本語" * 200, "e" + "\u0301" * 500]))
        text = await rig.shows("[/x] [@click=app.quit]q[/]")
        assert_harmless(text)
        await rig.press("w")
        assert_harmless(rig.text)
        assert all(strip.cell_length == 120 for strip in rig.app.screen._compositor.render_strips())


def assert_harmless(text: str) -> None:
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    assert "\u202e" not in text
    assert "cHduZWQ=" not in text


async def test_the_palette_survives_odd_run_ids(commander: ScriptedCommander) -> None:
    commander.greeting = [snapshot([run(HOSTILE), RUNS[0]])]
    async with dashboard(commander, size=(120, 40)) as rig:
        await rig.shows("[/x]")
        await rig.press("ctrl+p")
        await rig.press(*"open sft")
        await rig.shows("open sft-shakespeare")


async def test_states_are_legible_without_colours(commander: ScriptedCommander) -> None:
    async with dashboard(commander, theme="relay-ansi", plain=True) as rig:
        await rig.shows("● running", "sft-sh")
        assert rig.app.ink.plain
        styles = [
            segment.style
            for strip in rig.app.screen._compositor.render_strips()
            for segment in strip
            if segment.style is not None and segment.text.strip()
        ]
        assert any(style.reverse for style in styles), "the selected row is reversed"
        assert fleet().runs[0].status is RunStatus.RUNNING


WHY = "trainer exited with 1 after 12 steps: CUDA out of memory on device 3 (79.1 GiB of 79.2 in use)"


async def test_why_a_run_failed_is_read_at_80_by_24(commander: ScriptedCommander) -> None:
    failed = run(
        "ablation-with-a-long-name", RunStatus.FAILED, step=12, total=400, loss=3.9, first_loss=4.1, lr=0.01,
        newest_checkpoint="step_00000010", newest_step=10, checkpoints=1, published=1, message=WHY,
    )  # fmt: skip
    commander.greeting = [snapshot([failed])]
    async with dashboard(commander) as rig:
        await rig.shows("ablation", WHY[:70], "step_00000010")
        await rig.press("enter")
        await rig.shows("esc back", WHY[:70], "loss 3.900", "step_00000010")


async def test_why_a_run_failed_is_read_on_a_short_terminal(commander: ScriptedCommander) -> None:
    commander.greeting = [snapshot([run("ablation-7", RunStatus.FAILED, step=12, total=400, message=WHY)])]
    async with dashboard(commander, size=(80, 14)) as rig:
        await rig.shows("ablation-7")
        await rig.press("enter")
        await rig.shows("esc back", WHY[:70])


async def test_a_reward_is_read_at_80_columns(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await rig.shows("rl-rew")
        rig.app.screen.query_one("#runs", Table).select("rl-rewrite")
        text = await rig.shows("reward 0.432", "loss 0.123")
        line = next(line for line in text.splitlines() if "reward" in line)
        assert line.index("reward") < line.index("loss")


async def test_a_worker_that_went_away_is_no_alarm(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await rig.shows("sft-sh")
        await rig.press("2")
        text = await rig.shows("offline", "pod-d")
        line = next(line for line in text.splitlines() if "offline" in line)
        assert "✗" not in line
        assert worker_status(WorkerStatus.OFFLINE).ink == "muted"


async def test_help_that_scrolls_says_so(commander: ScriptedCommander) -> None:
    for size, said in (((80, 24), "↑↓ scrolls · esc closes"), ((100, 60), "─ esc closes")):
        async with dashboard(commander, size=size) as rig:
            await rig.shows("sft-sh")
            await rig.press("question_mark")
            await rig.shows(said)


async def test_an_event_names_its_run_whole_at_80_columns(commander: ScriptedCommander) -> None:
    words = "a sentence that is longer than what is left of the line beside all the columns"
    name = "my-first-run"
    event = EventRow(1, NOW, "checkpoint.published", "pod-1", words, name, 1)
    commander.greeting = [snapshot([run(name)], events=[event])]
    async with dashboard(commander) as rig:
        await rig.shows(name)
        await rig.press("3")
        shown = await rig.shows("checkpoint.published")
        assert any("pod-1" in line and name in line and "a sentence" in line for line in shown.splitlines()[:12]), shown


async def test_before_the_first_step_no_bare_nought_is_shown(commander: ScriptedCommander) -> None:
    new, failed = run("new", RunStatus.LEASED), run("bad", RunStatus.FAILED, message="it broke")
    commander.greeting = [snapshot([new, failed])]
    async with dashboard(commander) as rig:
        await rig.shows("no step yet")
        rig.app.screen.query_one("#runs", Table).select("bad")
        await rig.press("enter")
        await rig.shows("no step was made")


async def test_help_is_in_words_with_spaces_and_no_key_is_called_palette(commander: ScriptedCommander) -> None:
    async with dashboard(commander, size=(100, 50)) as rig:
        await rig.shows("sft-sh")
        rig.app.screen.query_one("#runs", Table).select("sft-shakespeare")
        await rig.press("question_mark")
        text = await rig.shows("· asks first", "Choose a theme")
        line = next(line for line in text.splitlines() if "Choose a theme" in line)
        assert "palette " not in line
        assert "ctrl+p" in line
        assert text.count("· asks first") == 3, "never broken in two"
