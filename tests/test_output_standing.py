"""A checkpoint is judged by all that its trainer had printed when it was saved, whole lines or not."""

from __future__ import annotations

from typing import Any

import pytest
from commander_kit import FakeClock

from relay_agent.output.follow import Follower
from relay_agent.output.progress import Progress
from relaytui.wire.reports import Log, Step

BAR = "\r 25%|##        | 10/40 [00:01<00:03, 9.0it/s, loss={}]"
RICH = "\rEpoch 0/0 ━━━━━━━━ 10/40 0:00:01 • 0:00:03 9.00it/s loss: {}"


class Pod:
    def __init__(self) -> None:
        self.reports = list[Any]()
        self.follower = Follower(Progress(), FakeClock(), self.reports.append, lambda mark: None, lambda: None)

    def prints(self, text: str) -> None:
        self.follower.feed(text.encode())

    @property
    def seen(self) -> list[Any]:
        return [
            (report.step, report.metrics) if isinstance(report, Step) else report.lines
            for report in self.reports
            if isinstance(report, Step | Log)
        ]


@pytest.fixture
def pod() -> Pod:
    pod = Pod()
    for step in range(1, 10):
        pod.prints(f"step {step}/40 loss: 0.5\n")
    return pod


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "text", [BAR, RICH, BAR + "\r", "step 10/40 loss: {}", "step 10/40 loss: {}\r", "step 10/40 loss: {}\n"]
)
def test_a_bar_and_a_line_that_nothing_ended_tell_of_the_loss_too(pod: Pod, text: str, loss: str) -> None:
    pod.prints(text.format(loss))
    assert not pod.follower.well(10)
    assert pod.follower.well(9)


@pytest.mark.parametrize("text", [BAR, "step 10/40 loss: {}"])
def test_a_loss_that_is_well_there_stays_so_and_nothing_is_counted_by_the_look(text: str) -> None:
    pod, other = Pod(), Pod()
    for each in (pod, other):
        for step in range(1, 10):
            each.prints(f"step {step}/40 loss: 0.5\n")
    for loss in ("0.4", "nan"):
        for each in (pod, other):
            each.prints(text.format(loss))
        assert pod.follower.well(10) == (loss == "0.4")
        assert (pod.seen, pod.follower.progress.step) == (other.seen, other.follower.progress.step)
        for each in (pod, other):
            each.prints("\n")
        assert pod.seen == other.seen


def test_metrics_that_wait_for_their_bar_are_looked_at(pod: Pod) -> None:
    pod = Pod()
    for step in (1, 2, 3):
        pod.prints(f"\r {step}%|#    | {step}/40 [00:01<00:03, 9.0it/s]")
    pod.prints("\n{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}\n")
    assert not pod.follower.well(4)


def test_a_loss_far_above_the_usual_counts_once_its_number_is_whole() -> None:
    pod = Pod()
    for step in range(1, 100):
        pod.prints(f"step {step}/400 loss: 0.5{step % 7}\n")
    pod.prints("step 100/400 loss: 9.1")  # of 9.1e-05
    assert pod.follower.well(100)
    pod.prints("e-05\n")
    assert pod.follower.well(100)
    pod.prints("\r 25%|##        | 101/400 [00:01<00:03, 9.0it/s, loss=91.5]")
    assert pod.follower.well(100)
    assert not pod.follower.well(101)


def test_half_a_line_makes_nothing_well_that_is_known_to_be_spoilt(pod: Pod) -> None:
    pod.prints("step 10/40 loss: nan\n" + BAR.format("0.4"))
    assert not pod.follower.well(10)
