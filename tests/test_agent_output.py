"""Output as lines, progress in lines, and what becomes of both."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable
from typing import Any

import pytest
from commander_kit import FakeClock
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_agent.attempt.spoken import Spoken
from relay_agent.output.follow import Follower
from relay_agent.output.health import MAX_STRETCHES, Health
from relay_agent.output.lines import LINE_BYTES, Lines, Lot
from relay_agent.output.progress import Progress, read
from relay_agent.spool.lane import Mark
from relaytui.wire.reports import Gap, Log, Step, TelemetryReport
from relaytui.wire.text import MAX_LINE


def shown_of(lots: list[Lot]) -> list[str]:
    return [line for lot in lots if lot.shown for line in lot.lines]


def lines_of(*chunks: bytes, now: float = 0.0) -> list[str]:
    lines = Lines()
    lots = [lot for chunk in chunks for lot in lines.feed(chunk, now)]
    return shown_of(lots + lines.finish())


def test_the_pods_own_log_says_how_far_it_is_once_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    clock, reports = FakeClock(), list[Any]()
    follower = Follower(Progress(), clock, Spoken(reports.append, clock), lambda mark: None, lambda: None)
    for step in range(1, 125):
        follower.feed(b"step %d/200 loss %.3f\n" % (step, 4 - step / 100))
        clock.advance(1)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "relay-agent: step 1 of 200, loss 3.99",
        "relay-agent: step 61 of 200, loss 3.39",
        "relay-agent: step 121 of 200, loss 2.79",
    ]
    assert sum(isinstance(report, Step) for report in reports) == 124, "and all are handed on"
    Spoken(reports.append, clock)(Step(0.0, 7))
    assert capsys.readouterr().err == "relay-agent: step 7\n"


def test_lines_come_whole_however_they_were_cut() -> None:
    text = "eins\nzwei ✓ drei\n\nvier"
    data = text.encode()
    for cut in range(len(data)):
        assert lines_of(data[:cut], data[cut:]) == text.split("\n")


def test_carriage_return_and_newline_are_one_end() -> None:
    assert lines_of(b"a\r\nb\r", b"\nc\r\n") == ["a", "b", "c"]


def test_a_bar_is_one_line_that_changes() -> None:
    lines = Lines()
    shown: list[str] = []
    for percent in range(1000):
        shown += shown_of(lines.feed(f"\r{percent / 10:.1f}%|####".encode(), now=percent / 1000))
    shown += shown_of(lines.feed(b"\ndone\n", 1.0))
    assert len(shown) <= 5
    assert shown[-2:] == ["99.9%|####", "done"]


def test_a_bar_that_was_held_back_is_shown_when_it_is_due() -> None:
    lines = Lines()
    assert shown_of(lines.feed(b"\r 1%", 0.0)) == [" 1%"]
    assert not shown_of(lines.feed(b"\r 2%", 0.1))
    assert lines.waiting
    assert not lines.tick(0.4)
    assert lines.tick(0.6) == [Lot((" 2%",), shown=True, whole=True)]
    assert not lines.waiting


def test_a_blanked_bar_leaves_the_line_after_it() -> None:
    """As transformers does it: the bar is overwritten with blanks, then the metrics are printed."""
    assert lines_of(b"\r 20%|##  | 10/50\r              \r\r{'loss': 2.3}\n", now=9)[-1] == "{'loss': 2.3}"


def test_a_line_without_end_is_capped_and_the_rest_counted() -> None:
    data = b"x" * (10 << 20)
    begun = time.process_time()
    (line,) = lines_of(*(data[start : start + 65536] for start in range(0, len(data), 65536)))
    assert len(line) <= MAX_LINE
    assert line.endswith(f"…(+{len(data) - LINE_BYTES:,} bytes)")
    assert time.process_time() - begun < 2


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=20))
def test_no_bytes_raise_and_nothing_shown_controls_a_terminal(chunks: list[bytes]) -> None:
    for line in lines_of(*chunks):
        assert line.isprintable() or line == ""


def test_torture_is_lines_too() -> None:
    rng = random.Random(4)
    data = bytes(rng.randrange(256) for _ in range(200_000)) + b"\0\0\xff\xfe\n\x1b]0;title\x07\x1b[31mred\x1b[0m\n"
    assert lines_of(data)[-1] == "red"


@pytest.mark.parametrize(
    ("line", "step", "total", "metrics"),
    [
        ("step 120/400 loss 2.3456 lr 0.0100", 120, 400, {"loss": 2.3456, "lr": 0.01}),
        ("step 20/300 reward 0.4321 loss 0.1234 lr 0.0100 t=1700000000.123456", 20, 300, {"reward": 0.4321}),
        ("step 5/9 loss 2.3 lr 1e-3", 5, 9, {"lr": 0.001}),
        ("step=5 loss=nan", 5, None, {"loss": math.nan}),
        ("step: 5, loss: inf", 5, None, {"loss": math.inf}),
        ("step=120 loss=0.3512 lr=3.0e-04 tok/s=18234", 120, None, {"loss": 0.3512, "lr": 0.0003, "tok/s": 18234}),
        ("{'loss': 2.1, 'step': 3}", 3, None, {"loss": 2.1}),
        ("{'loss': nan, 'step': 4, 'learning_rate': 4.9e-05}", 4, None, {"loss": math.nan, "lr": 4.9e-05}),
        ('{"global_step": 120, "max_steps": 1000, "loss": 0.35, "event": "train"}', 120, 1000, {"loss": 0.35}),
        ('{"step": 121, "loss": NaN}', 121, None, {"loss": math.nan}),
        ("(Actor pid=51) [10:00:07] model.py:918 - step 41: {'train/loss': 0.018}", 41, None, {"loss": 0.018}),
        ("[rank0]:[titan] 10:00:00,435 - INFO - step: 89  loss:  2.81340  tps: 6,939", 89, None, {"loss": 2.8134}),
        ("iter 250: loss 3.4512, time 132.10ms, mfu 12.34%", 250, None, {"loss": 3.4512}),
        ("Step 25 | loss:1.2345 lr:2e-05 tokens_per_second_per_gpu:812.3 ", 25, None, {"loss": 1.2345, "lr": 2e-05}),
        ("Epoch [3/10], Step [120/500], Loss: 0.3512", 120, 500, {"loss": 0.3512}),
        ("step 7/100", 7, 100, {}),
        ("run eval-7: step 7/100 loss 1", 7, 100, {"loss": 1.0}),
        ("[eval_utils.py:12] step 7/100 loss 1", 7, 100, {"loss": 1.0}),
    ],
)  # fmt: skip
def test_progress_in_plain_lines(line: str, step: int, total: int | None, metrics: dict[str, float]) -> None:
    sight = read(line)
    assert sight is not None
    assert (sight.step, sight.total) == (step, total)
    for name, value in metrics.items():
        assert sight.metrics[name] == value or (math.isnan(value) and math.isnan(sight.metrics[name]))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "The next step 3 is to lower the loss",
        "step 1/3: downloading the model",
        "Answer: a step of loss 3.2 would be too much",
        "GET /health 200 OK",
        "{'eval_loss': 2.0, 'eval_runtime': 3.1}",
        "step 99999999999999999999999 loss 1",
        "steps: " + "x" * 5000 + " loss 3",
        "{" * 5000,
    ],
)
def test_what_is_no_progress(line: str) -> None:
    assert read(line) is None


@pytest.mark.parametrize(
    "line",
    [
        " " * 1990 + "step",
        "step" + " " * 1990,
        "step 1/2" + " " * 1900 + "x",
        "{'" * 990 + "step",
        "{'step'" + "'a':1," * 300,
        "step 1 " + "a.b/c-" * 320,
        "step 1 " + "loss= " * 300,
        "step 1 " + "loss   " * 280,
    ],
)
def test_no_line_takes_long(line: str) -> None:
    begun = time.process_time()
    read(line)
    assert time.process_time() - begun < 0.1


def test_a_validation_loss_is_not_the_loss() -> None:
    sight = read("step 5 val_loss 4.0 loss 2.0")
    assert sight is not None
    assert sight.metrics["loss"] == 2.0


def test_rate_is_an_average_that_starts_anew_when_the_counter_goes_back() -> None:
    progress = Progress()
    for step in range(1, 50):
        progress.see(f"step {step}/100 loss 1.0", now=step * 0.5)
    assert progress.rate == pytest.approx(2.0)
    assert (progress.step, progress.total, progress.first) == (49, 100, 1)
    progress.see("step 3/100 loss 1.0", now=30)
    assert progress.rate is None


def paced(sightings: Iterable[tuple[float, int]]) -> Progress:
    progress = Progress()
    for now, step in sightings:
        progress.see(f"step {step}/100000 loss 1.0", now)
    return progress


def bursts(every: float, lines: int, count: int, spread: float = 0.0) -> list[tuple[float, int]]:
    """Bursts of step lines, each read within `spread` seconds."""
    return [
        (100 + burst * every + line * spread / lines, burst * lines + line + 1)
        for burst in range(count)
        for line in range(lines)
    ]


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.2])
@pytest.mark.parametrize(
    ("every", "lines", "count"),
    [(1.0, 50, 2), (1.0, 50, 3), (1.0, 50, 30), (5.0, 50, 12), (30.0, 100, 12), (60.0, 1, 2), (60.0, 1, 30)],
)
def test_the_rate_is_that_of_the_clock_however_lines_come(every: float, lines: int, count: int, spread: float) -> None:
    progress = Progress()
    sightings = bursts(every, lines, count, spread)
    for seen, (now, step) in enumerate(sightings, 1):
        progress.see(f"step {step}/100000 loss 1.0", now)
        if len(sightings) // 2 <= seen and seen > 2 * lines:  # in the midst of a burst too
            assert progress.rate == pytest.approx(lines / every, rel=0.55 if count < 12 else 0.2)
    assert progress.rate == pytest.approx(lines / every, rel=0.03)


def test_a_first_burst_tells_no_rate() -> None:
    assert paced(bursts(1.0, 50, 1, spread=0.05)).rate is None


@pytest.mark.parametrize("every", [0.001, 0.01, 0.3, 2.0])
def test_the_rate_of_steady_lines(every: float) -> None:
    count = 20 + int(3 / every)
    assert paced((n * every, n) for n in range(1, count)).rate == pytest.approx(1 / every, rel=0.01)


def test_the_rate_follows_a_change_of_pace_within_a_window() -> None:
    slow = [(n * 1.0, n) for n in range(1, 60)]
    fast = [(59 + n * 0.1, 59 + n) for n in range(1, 121)]
    assert paced(slow + fast).rate == pytest.approx(10.0, rel=0.05)


def test_a_counter_that_goes_back_starts_the_rate_anew() -> None:
    first = [(n * 0.1, n) for n in range(1, 100)]
    assert paced([*first, (12.0, 1)]).rate is None
    assert paced([*first, (12.0, 1), (13.0, 3), (14.0, 5)]).rate == pytest.approx(2.0)


def test_a_known_target_is_not_overruled_by_a_line() -> None:
    progress = Progress(total=1000)
    assert progress.see("step 3/100 loss 1.0", 0.0) is not None
    assert progress.total == 1000


def test_lines_are_numbered_without_holes_whatever_was_skipped() -> None:
    clock, reports, woken, marks = FakeClock(), list[TelemetryReport](), list[int](), list[Mark]()
    follower = Follower(Progress(), clock, reports.append, marks.append, lambda: woken.append(1))
    follower.feed(b"one\nstep 1/9 loss 3.0\nunfinished")
    assert marks[-1] == Mark(22, 3), "a line that is not whole yet is read again"
    follower.skip(40, 900)
    assert marks[-1] == Mark(932, 43)
    follower.feed(b"after\n" + b"y" * 3000 + b"\n" * 30)
    follower.feed(b"\r 10%\r 11%")
    clock.advance(1.0)
    follower.tick()
    follower.finish()
    n = 1
    for report in reports:
        if isinstance(report, Log):
            assert report.n == n
            n += len(report.lines)
        elif isinstance(report, Gap):
            assert (report.n, report.count) == (n, 39), "the end of what was begun is one of the forty"
            n += report.count
    steps = [report for report in reports if isinstance(report, Step)]
    assert [(step.step, step.total, step.metrics) for step in steps] == [(1, 9, {"loss": 3.0})]
    assert follower.loss == 3.0
    assert follower.last_line.strip() == "11%"
    assert woken


def test_a_new_agent_knows_what_the_old_one_read_and_tells_only_what_comes_after() -> None:
    first, marks = list[TelemetryReport](), list[Mark]()
    printed = b"".join(f"step {n}/40 loss {4 - n / 20}\n".encode() for n in range(3, 31))
    follower = Follower(Progress(2), FakeClock(), first.append, marks.append, lambda: None)
    follower.feed(printed[:300])
    mark = marks[-1]
    second, began = list[TelemetryReport](), list[tuple[int, bool]]()
    other = Follower(Progress(2), FakeClock(), second.append, marks.append, lambda: None)
    other.on_first_step = lambda step, told: began.append((step, told))
    other.replay(printed[: mark.offset])
    assert (second, began) == ([], [(3, True)])
    assert (other.progress.first, other.progress.total, other.progress.rate) == (3, 40, None)
    other.go_on(mark)
    other.feed(printed[mark.offset :])
    steps = [report.step for report in first + second if isinstance(report, Step)]
    assert steps == list(range(3, 31))
    n = 1
    for report in first + second:
        if isinstance(report, Log):
            assert report.n == n
            n += len(report.lines)
    assert n == 29


def test_a_diverged_loss_travels_by_name() -> None:
    reports: list[TelemetryReport] = []
    follower = Follower(Progress(), FakeClock(), reports.append, lambda mark: None, lambda: None)
    follower.feed(b"step=5 loss=nan\n")
    (step,) = [report for report in reports if isinstance(report, Step)]
    assert step.metrics == {"loss": "nan"}


@pytest.mark.parametrize(
    ("lines", "begins", "unhealthy"),
    [
        ("step 1 loss 1;step 2 loss nan;step 3 loss NaN;step 4 loss inf", [2], [2, 3, 4, 5, 6, 7]),
        ("step 1 loss 1;step 2 loss nan;step 4 loss 1;step 6 loss -inf", [2, 6], [2, 3, 6, 7]),
        ("step 6 loss 0 grad_norm nan", [6], [6, 7]),
        ("step 1 loss 0.5 grad_norm inf;step 2 loss 0.5 grad_norm nan", [], []),
        ("step 1 lr nan;step 2 reward nan", [], []),
        ("{'loss': 'nan', 'step': 5};{'eval_loss': 1.0, 'step': 6}", [5], [5, 6, 7]),
        ("step 5 loss nan;step 3 loss nan;step 4 loss 1", [5], [3]),
        ("[10:00] iteration 6/ 100 | loss scale: 1.0 | grad norm: nan | number of nan iterations:   1 |", [6], [6, 7]),
    ],
)
def test_which_steps_had_no_finite_loss(lines: str, begins: list[int], unhealthy: list[int]) -> None:
    said: list[int] = []
    follower = Follower(Progress(), FakeClock(), lambda report: None, lambda mark: None, lambda: None)
    follower.on_nonfinite = said.append
    follower.feed("".join(f"{line}\n" for line in lines.split(";")).encode())
    assert said == begins
    assert [step for step in range(8) if not follower.health.healthy(step)] == unhealthy


def test_a_loss_that_comes_and_goes_is_said_so_often_and_no_more() -> None:
    health = Health()
    began = sum(health.see(step, {"loss": math.nan if step % 2 else 1.0}) for step in range(100_000))
    assert began == MAX_STRETCHES
    assert not health.healthy(100_000)


def test_many_long_lines_make_reports_of_bounded_size() -> None:
    reports: list[TelemetryReport] = []
    follower = Follower(Progress(), FakeClock(), reports.append, lambda mark: None, lambda: None)
    follower.feed((b"z" * 3900 + b"\n") * 200)
    logs = [report for report in reports if isinstance(report, Log)]
    assert sum(len(log.lines) for log in logs) == 200
    assert max(sum(map(len, log.lines)) for log in logs) <= 64 << 10
