"""The bench's own arithmetic, its output, and that its parts work; how fast anything is, is not asked here."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from relaytui.wire.codec import decode, encode
from relaytui.wire.messages import Ack, Reports
from relaytui.wire.reports import Log, Step
from tests.bench import __main__ as command
from tests.bench import cancel, renew, renew_lines
from tests.bench.bare import etcd
from tests.bench.children import REPOSITORY, BenchError, Child, child, module
from tests.bench.load.agents import Holder
from tests.bench.load.frames import PER_FRAME, Frames
from tests.bench.load.lines import Printer
from tests.bench.load.websocket import ClosedError, Socket, connect
from tests.bench.rounds import Bench, Setting, Skipped, interleave
from tests.bench.rows import Goal, Row, Yardstick, as_object, as_table, measured, percentile

KEYS = ["name", "value", "unit", "against", "ratio", "goal", "met"]


def fake(name: str, rows: list[Row]) -> Bench:
    return Bench(name, "nothing real", tuple(row.name for row in rows), lambda setting: rows)


@pytest.fixture
def benches(monkeypatch: pytest.MonkeyPatch) -> dict[str, Bench]:
    reached = measured("fake.fast", "ops/s", [10.0], Yardstick("bare", [20.0]), Goal(at_least=5))
    missed = measured("fake.slow", "ms", [9.0, 7.0, 8.0], None, Goal(at_most=5))
    plain = measured("other", "MB", [3.0])
    benches = {"fake": fake("fake", [reached, missed]), "other": fake("other", [plain])}
    monkeypatch.setattr(command, "BENCHES", benches)
    return benches


# -- arithmetic ----------------------------------------------------------------------------------------------------


def test_value_is_the_median_and_ratio_the_median_of_each_rounds_own_ratio() -> None:
    row = measured("x", "ms", [1.0, 9.0, 2.0], Yardstick("bare", [1.0, 3.0, 4.0]))
    assert row.value == 2.0
    assert row.ratio == 1.0  # of 1, 3 and 0.5; not the ratio of the medians, 2 / 3
    assert row.against == "bare 3"
    assert (row.goal, row.met) == ("", None)


def test_a_goal_holds_only_when_all_its_bounds_do() -> None:
    goal = Goal(at_least=100_000, ratio_at_least=0.2)
    assert goal.words() == "≥ 100,000 and ≥ 0.2×"
    assert goal.met(100_000, 0.2)
    assert not goal.met(99_999, 0.9)
    assert not goal.met(200_000, 0.19)
    assert not goal.met(200_000, None)
    assert Goal(at_most=25).met(25, None)
    assert not Goal(at_most=25).met(math.nan, None)


def test_a_goal_is_judged_before_rounding() -> None:
    assert measured("x", "MB", [45.0001], None, Goal(at_most=45)).met is False


def test_rounds_that_do_not_pair_up_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        measured("x", "ms", [1.0, 2.0], Yardstick("bare", [1.0]))


def test_percentile_is_the_nearest_rank() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile(values, 1.0) == 100
    assert percentile([7.0], 0.99) == 7
    assert math.isnan(percentile([], 0.5))


def test_rounds_interleave_and_turn_around(tmp_path: Path) -> None:
    order: list[str] = []

    def variant(name: str) -> dict[str, float]:
        order.append(name)
        return {"figure": float(len(order))}

    said: list[str] = []
    samples = interleave(
        {"bare": lambda: variant("bare"), "relay": lambda: variant("relay")}, Setting(3, tmp_path, said.append)
    )
    assert order == ["bare", "relay", "relay", "bare", "bare", "relay"]
    assert samples.of("bare", "figure") == [1, 4, 5]
    assert samples.of("relay", "figure") == [2, 3, 6]
    assert len(said) == 6


# -- output --------------------------------------------------------------------------------------------------------


def test_json_is_one_object_of_rows(benches: dict[str, Bench], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == ["rows"]
    assert [list(row) for row in printed["rows"]] == [KEYS] * 3
    fast, slow, other = printed["rows"]
    assert fast == {
        "name": "fake.fast",
        "value": 10.0,
        "unit": "ops/s",
        "against": "bare 20",
        "ratio": 0.5,
        "goal": "≥ 5",
        "met": True,
    }
    assert (slow["value"], slow["ratio"], slow["met"]) == (8.0, None, False)
    assert (other["goal"], other["met"]) == ("", None)


def test_the_table_says_plainly_what_was_missed(benches: dict[str, Bench], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0  # a measurement, not a test
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "value", "unit", "beside", "ratio", "goal", "met"]
    assert lines[2].endswith("yes")
    assert lines[3].endswith("MISSED")
    assert lines[4].endswith("-")


@pytest.mark.parametrize(
    ("only", "names"),
    [(["other"], ["other"]), (["fake"], ["fake.fast", "fake.slow"]), (["fake.slow", "other"], ["fake.slow", "other"])],
)
def test_only_takes_benches_and_rows(
    benches: dict[str, Bench], capsys: pytest.CaptureFixture[str], only: list[str], names: list[str]
) -> None:
    assert command.main(["--json", "--only", *only]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["rows"]] == names


def test_an_unknown_name_is_a_usage_error(benches: dict[str, Bench], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--only", "speed"])
    assert ended.value.code == 2
    assert "'speed' is neither a bench nor a row (fake, fake.fast, fake.slow, other)" in capsys.readouterr().err


def test_a_bench_that_breaks_costs_only_itself(
    benches: dict[str, Bench], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(setting: Setting) -> list[Row]:
        (setting.folder / "left").touch()
        raise BenchError("the commander ended")

    benches["fake"] = Bench("fake", "breaks", ("fake.fast",), broken)
    assert command.main(["--json", "--folder", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert [row["name"] for row in json.loads(output.out)["rows"]] == ["other"]
    assert output.err.splitlines()[-1] == "fake broke: the commander ended"
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_bench_leaves_nothing(
    benches: dict[str, Bench], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    left: list[Child] = []

    def interrupted(setting: Setting) -> list[Row]:
        with child("sleeper", ["sleep", "60"], setting.folder) as sleeper:
            left.append(sleeper)
            raise KeyboardInterrupt

    benches["fake"] = Bench("fake", "is interrupted", ("fake.fast",), interrupted)
    assert command.interruptible(["--folder", str(tmp_path)]) == 130
    assert left[0].process.poll() is not None
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"


def test_help_names_every_bench_and_row(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    text = capsys.readouterr().out
    for bench in command.BENCHES.values():
        assert bench.about in text
        assert all(name in text for name in bench.rows)


def test_every_row_is_documented_and_nothing_else() -> None:
    page = (REPOSITORY / "docs" / "performance.md").read_text(encoding="utf-8")
    table = page.partition("## The rows")[2].partition("\n## ")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    documented = [name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)]
    assert sorted(documented) == sorted(row for bench in command.BENCHES.values() for row in bench.rows)


@pytest.mark.parametrize("row", [row for bench in command.BENCHES.values() for row in bench.rows])
def test_every_row_can_be_asked_for_alone(
    row: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def shown(bench: Bench) -> Bench:
        return Bench(
            bench.name,
            bench.about,
            bench.rows,
            lambda setting: [measured(name, "", [1.0]) for name in bench.rows if setting.wants(name)],
        )

    monkeypatch.setattr(command, "BENCHES", {name: shown(bench) for name, bench in command.BENCHES.items()})
    assert command.main(["--json", "--folder", str(tmp_path), "--only", row]) == 0
    rows = [each["name"] for each in json.loads(capsys.readouterr().out)["rows"]]
    assert row in rows
    assert rows == [row] or row in command.BENCHES  # a bench's own name asks for all of its rows


def test_parts_of_renew_are_run_only_where_a_row_of_theirs_is_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(renew, "rates", lambda setting: ran.append("rates") or [])
    monkeypatch.setattr(renew_lines, "run", lambda setting: ran.append("lines") or [])
    for wanted in ({"renew.lines"}, {"renew.256"}, {"renew.lines", "renew.disk"}, set[str]()):
        ran.append("|")
        folder = tmp_path / str(len(ran))
        folder.mkdir()
        renew.run(Setting(1, folder, lambda words: None, frozenset(wanted)))
    assert ran == ["|", "lines", "|", "rates", "|", "rates", "lines", "|", "rates", "lines"]


def test_a_bench_that_lacks_something_is_skipped_with_a_word(
    benches: dict[str, Bench], capsys: pytest.CaptureFixture[str]
) -> None:
    def skipped(setting: Setting) -> list[Row]:
        raise Skipped("etcd is not installed")

    benches["fake"] = Bench("fake", "needs much", ("fake.fast",), skipped)
    assert command.main(["--json"]) == 0
    output = capsys.readouterr()
    assert [row["name"] for row in json.loads(output.out)["rows"]] == ["other"]
    assert "  skipped: etcd is not installed" in output.err.splitlines()


def test_etcd_is_skipped_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Skipped, match="etcd-server nghttp2-client"):
        command.BENCHES["etcd"].run(Setting(1, tmp_path, lambda words: None))


def test_row_names_are_unique_and_begin_with_their_bench() -> None:
    names = [(bench.name, row) for bench in command.BENCHES.values() for row in bench.rows]
    assert all(row.partition(".")[0] == bench for bench, row in names)
    assert len({row for _, row in names}) == len(names)


def test_no_rows_is_still_an_object_and_a_table() -> None:
    assert as_object([]) == {"rows": []}
    assert as_table([]).startswith("name")


# -- parts ---------------------------------------------------------------------------------------------------------


def test_frames_are_valid_and_go_on() -> None:
    frames = Frames(Holder(Socket(), "run", 3, "t" * 64))
    first, second = (decode(frames.next(), Reports) for _ in range(2))
    assert (first.first_seq, second.first_seq) == (1, PER_FRAME + 1)
    assert frames.last_seq == 2 * PER_FRAME
    reports = [*first.reports, *second.reports]
    assert [report.step for report in reports if isinstance(report, Step)] == list(range(1, PER_FRAME + 1))
    assert [report.n for report in reports if isinstance(report, Log)] == list(range(1, PER_FRAME + 1))


def test_a_report_has_the_size_that_the_goals_were_set_with() -> None:
    frames = Frames(Holder(Socket(), "ingest-0001", 1, "t" * 64))
    for _ in range(400):  # 10,000 steps, as in the middle of a burst
        frame = frames.next()
    assert 190 <= len(frame) / PER_FRAME <= 202


async def test_log_lines_are_numbered_on_and_none_is_sent_twice() -> None:
    class Commander:
        """Acknowledges every second frame late, so that lines gather."""

        def __init__(self) -> None:
            self.frames: list[Reports] = []
            self.on_message: Callable[[bytes], None] = lambda payload: None

        def send(self, payload: bytes) -> None:
            frame = decode(payload, Reports)
            self.frames.append(frame)
            last = frame.first_seq + len(frame.reports) - 1
            ack = encode(Ack(frame.run_id, frame.epoch, frame.stream, last))
            asyncio.get_running_loop().call_later(0.002 * (len(self.frames) % 2), lambda: self.on_message(ack))

    commander = Commander()
    printer = Printer(Holder(cast(Socket, commander), "run", 3, "t" * 64), rate=5_000.0)
    loop = asyncio.get_running_loop()
    printed = sum([await printer.go(loop.time() + 0.01) for _ in range(3)])
    reports = [report for frame in commander.frames for report in frame.reports]
    assert [report.n for report in reports if isinstance(report, Log)] == list(range(1, printed + 1))
    assert sum(len(report.lines) for report in reports if isinstance(report, Log)) == printed
    assert [frame.first_seq for frame in commander.frames] == [
        1 + sum(len(before.reports) for before in commander.frames[:number]) for number in range(printer.frames)
    ]


def test_what_is_said_to_etcd_is_protocol_buffers() -> None:
    assert etcd.number(1, 150) == b"\x08\x96\x01"
    assert etcd.message(2, b"testing") == b"\x12\x07testing"


def test_a_lifeline_counts_its_holders_and_ends_with_the_last(tmp_path: Path) -> None:
    path = tmp_path / "line"
    free = os.open("/dev/null", os.O_RDONLY)
    with cancel.lifeline(path) as end:
        os.close(free)  # a listing of our own descriptors has one before it now that is gone as it is looked at
        holder = ["sh", "-c", 'exec 9>"$0"; sleep 60 & echo "{}"; wait', str(path)]
        with child("holder", holder, tmp_path) as process:
            process.answer(30)
            assert cancel.holders(path) == 3  # ours, the shell's and its child's
            os.killpg(process.pid, signal.SIGKILL)
            assert cancel.gone_at(end) > 0


async def test_the_websocket_client_carries_small_and_large_messages_both_ways(tmp_path: Path) -> None:
    with child("echo", module("bare.echo"), tmp_path) as echo:
        socket = await connect(echo.answer(30)["port"])
        for size in (1, 125, 126, 65_535, 65_536, 1_000_000):
            socket.send(b"x" * size)
            assert await socket.receive() == b"x" * size
        socket.close()


async def test_the_websocket_client_says_when_an_upgrade_is_refused(tmp_path: Path) -> None:
    with child("echo", module("bare.echo"), tmp_path) as echo:
        port = echo.answer(30)["port"]
        with pytest.raises(ClosedError, match="404"):
            await connect(port, "/nothing-here")


def test_a_child_that_dies_or_is_silent_is_one_line(tmp_path: Path) -> None:
    last_words = r"dies ended \(exit code 3\); its last words: the reason"
    with (
        child("dies", ["sh", "-c", "echo the reason >&2; exit 3"], tmp_path) as dead,
        pytest.raises(BenchError, match=last_words),
    ):
        dead.answer(30)
    with child("silent", ["sleep", "60"], tmp_path) as silent, pytest.raises(BenchError, match="said nothing for"):
        silent.answer(0.05)
    assert silent.process.poll() is not None
