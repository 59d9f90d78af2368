"""Whether what a trainer printed of its steps completes a run, whatever it evaluates in between."""

from __future__ import annotations

import pytest

from relay_agent.outcome.stop import Stop
from relay_agent.outcome.verdict import Ended, judge
from relay_agent.output.progress import Progress


def seen(*lines: str, start: int = 0) -> Progress:
    progress = Progress(start)
    for n, line in enumerate(lines):
        progress.see(line, float(n))
    return progress


def steps(first: int, last: int, total: int) -> list[str]:
    return [f"step {n}/{total} loss 1" for n in range(first, last + 1)]


def test_an_evaluation_that_counts_by_itself_does_not_complete_a_run() -> None:
    evaluated = steps(1, 10, 10)
    early = seen(*steps(1, 1, 400), *evaluated, *steps(2, 2, 400), *evaluated, *steps(3, 3, 400), *evaluated)
    late = seen(*steps(1, 37, 400), *evaluated, *steps(38, 38, 400), *steps(1, 1000, 1000))
    assert (early.step, early.total) == (3, 400)
    assert (late.step, late.total) == (38, 400)
    warmed_up = seen(*steps(1, 3, 3), *steps(1, 20, 400))
    assert (warmed_up.step, warmed_up.total) == (20, 400)
    unsaid = seen(*steps(1, 2, 400), *evaluated)
    assert (unsaid.step, unsaid.total) == (2, 400)
    assert judge(Ended(0, Stop(), unsaid, None, "")).outcome == "failed"
    larger = seen(*steps(1, 1, 400), *steps(1, 1000, 1000))
    assert (larger.step, larger.total) == (1, 400)
    first = seen("step 10/1000", *steps(1, 2, 400))
    assert (first.step, first.total) == (2, 400)
    named = seen(
        "[eval] step 10/10 loss 2.0", "Validation: step 9/10 loss 1.5", "{'eval_loss': 2.0, 'step': 7, 'total': 9}"
    )
    assert (named.step, named.total) == (0, None)
    longer = seen(*steps(1, 20, 40), *steps(21, 22, 80))
    assert (longer.step, longer.total) == (22, 80)


@pytest.mark.parametrize(
    ("lines", "start", "outcome"),
    [
        (steps(1, 9, 10), 0, "failed"),
        (steps(1, 10, 10), 0, "completed"),
        (steps(0, 9, 10), 0, "completed"),
        (steps(0, 8, 10), 0, "failed"),
        (steps(5, 9, 10), 5, "completed"),
        # A resume hides whether 9 of 10 is the last one of who counts from 0, or the last but one of who counts from 1.
        (steps(6, 9, 10), 5, "completed"),
        (steps(6, 8, 10), 5, "failed"),
        (steps(9, 9, 10), 8, "completed"),
        ([], 9, "completed"),
        ([], 0, "completed"),
        (["step 0/1 loss 1"], 0, "completed"),
        # Every tenth step is printed: no line was due between the last one and the end.
        ([f"step {n}/1005 loss 1" for n in range(10, 1001, 10)], 0, "completed"),
        ([f"step {n}/1000 loss 1" for n in range(10, 991, 10)], 0, "failed"),
        ([f"step {n}/1000 loss 1" for n in range(0, 991, 10)], 0, "completed"),
        ([f"step {n}/1000 loss 1" for n in (1, *range(100, 801, 100))], 0, "failed"),
        ([f"step {n}/1000 loss 1" for n in (1, 2, 3, 900)], 0, "failed"),
    ],
)
def test_the_last_step_of_who_counts_from_0_or_1(lines: list[str], start: int, outcome: str) -> None:
    assert judge(Ended(0, Stop(), seen(*lines, start=start), None, "")).outcome == outcome


def megatron(step: int, loss: str = "lm loss: 6.12E+00 | ", norm: str = "2.134") -> str:
    return (
        f" [2026-03-01 10:00:00.123456] iteration {step:8}/     100 | consumed samples:         1280 | elapsed time per"
        f" iteration (ms): 812.4 | learning rate: 3.000000E-05 | global batch size:   128 | {loss}loss scale: 1.0 |"
        f" grad norm: {norm} | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def factory(step: int) -> str:
    return (
        f'{{"current_steps": {step}, "total_steps": 300, "loss": 1.2345, "lr": 4.9e-05, "epoch": 0.1,'
        ' "percentage": 3.33, "elapsed_time": "0:00:35", "throughput": 812.3, "total_tokens": 28416}'
    )


def slime(step: int) -> str:
    return (
        f"(MegatronTrainRayActor pid=5121) [2026-03-01 10:00:07] model.py:918 - step {step}: {{'train/loss': 0.01873,"
        f" 'train/grad_norm': 0.52, 'train/lr-pg_0': 1e-06, 'train/step': {step}}}"
    )


MEGATRON_VALIDATES = " validation loss at iteration 50 | lm loss value: 3.1E+00 | lm loss PPL: 2.2E+01 | "


SLIME_EVALUATES = (
    "(RolloutManager pid=4990) [2026-03-01 10:04:00] rollout_metrics.py:247 - eval 20: {'eval/aime': 0.3125}"
)


TITAN = (
    "[rank0]:[titan] 2026-03-01 10:00:00,435 - root - INFO - step: 89  loss:  2.81340  grad_norm:  0.2804  tps: 6,939"
)


TITAN_VALIDATES = (
    "[titan] 2026-03-01 10:00:00,435 - root - INFO - validate step: 90  loss:  2.9001  memory:  9.46GiB(64.99%)"
)


NANO = ("iter 250: loss 3.4512, time 132.10ms, mfu 12.34%", "step 500: train loss 2.9312, val loss 3.0127")


@pytest.mark.parametrize(
    ("lines", "start", "step", "total", "outcome"),
    [
        ([*map(megatron, range(10, 101, 10)), MEGATRON_VALIDATES], 0, 100, 100, "completed"),
        ([*map(megatron, range(10, 61, 10)), MEGATRON_VALIDATES], 0, 60, 100, "failed"),
        ([*map(megatron, range(60, 101, 10))], 50, 100, 100, "completed"),
        ([*map(factory, range(10, 301, 10)), "{'eval_loss': 2.01, 'epoch': 1.0}"], 0, 300, 300, "completed"),
        ([*map(factory, range(10, 291, 10))], 0, 290, 300, "failed"),
        ([*map(slime, range(42)), SLIME_EVALUATES], 0, 41, None, "completed"),
        ([TITAN, TITAN_VALIDATES], 0, 89, None, "completed"),
        ([NANO[0], "saving checkpoint to out"], 0, 250, None, "completed"),
    ],
)  # fmt: skip
def test_how_real_trainers_end(lines: list[str], start: int, step: int, total: int | None, outcome: str) -> None:
    progress = seen(*lines, start=start)
    assert (progress.step, progress.total) == (step, total)
    assert judge(Ended(0, Stop(), progress, None, "")).outcome == outcome
