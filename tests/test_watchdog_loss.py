"""Whether a loss goes bad: curves that must raise an alarm, and many more that must not."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from relay_agent.watchdog.diverging import IN_A_ROW, Bad, LossTrend

NAN, INF = math.nan, math.inf


def learning(steps: int, rng: random.Random, noise: float = 0.05, start: float = 10.8, end: float = 2.5) -> list[float]:
    return [end + (start - end) * math.exp(-step / 80) + rng.gauss(0, noise) for step in range(steps)]


def seen(
    losses: Iterable[float], trend: LossTrend | None = None, first: int = 1, **more: float
) -> list[tuple[int, Bad]]:
    """Steps at which an alarm came, and which."""
    trend = trend or LossTrend()
    told = ((step, trend.see(step, {"loss": loss, **more})) for step, loss in enumerate(losses, first))
    return [(step, bad) for step, bad in told if bad is not None]


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_that_goes_to_a_new_level_far_above_is_diverging(seed: int) -> None:
    rng = random.Random(seed)
    trend = LossTrend()
    curve = learning(600, rng) + [7.5 + rng.gauss(0, 0.3) for _ in range(100)]
    assert seen(curve, trend) == [(600 + IN_A_ROW, Bad.DIVERGING)]
    assert (trend.bad, trend.since) == (Bad.DIVERGING, 601)
    assert trend.healthy(600)
    assert not trend.healthy(601)
    assert not trend.healthy(690)


def test_a_loss_that_explodes_slowly_is_found_by_what_it_had_learnt() -> None:
    rng = random.Random(1)
    curve = learning(500, rng) + [2.5 + step / 100 + rng.gauss(0, 0.05) for step in range(800)]
    ((step, bad),) = seen(curve)
    assert bad is Bad.DIVERGING
    assert 800 < step < 1_100, "when half of the way down was lost"


def test_a_resumed_run_is_judged_by_what_it_sees() -> None:
    rng = random.Random(2)
    curve = [2.5 + rng.gauss(0, 0.05) for _ in range(200)] + [4.0] * 60
    assert seen(curve, first=5_000) == [(5_199 + IN_A_ROW, Bad.DIVERGING)]


@pytest.mark.parametrize(
    ("name", "curve"),
    [
        ("learning", lambda rng: learning(1_000, rng)),
        ("very noisy", lambda rng: [abs(loss) + 0.01 for loss in learning(1_000, rng, noise=1.5)]),
        ("spikes", lambda rng: [loss * (30 if rng.random() < 0.02 else 1) for loss in learning(1_000, rng)]),
        (
            "a plateau of spikes",
            lambda rng: learning(300, rng) + [9.0] * (IN_A_ROW - 1) + learning(300, rng, start=2.6),
        ),
        ("heavy tails", lambda rng: [math.exp(rng.gauss(0, 1.5)) for _ in range(1_000)]),
        ("flat", lambda rng: [2.0] * 1_000),
        ("a small shift of the data", lambda rng: learning(500, rng) + [2.9 + rng.gauss(0, 0.05) for _ in range(300)]),
        ("a warm restart", lambda rng: learning(500, rng) + learning(500, rng, start=4.0)),
        ("never learnt", lambda rng: [10.8 + rng.gauss(0, 0.2) for _ in range(600)]),
        ("tiny", lambda rng: [1e-6 * (1 + rng.random()) for _ in range(600)]),
        ("short", lambda rng: [1.0] * 30 + [100.0] * 15),
    ],
)
def test_no_alarm(name: str, curve: object) -> None:
    for seed in range(3):
        assert callable(curve)
        assert seen(curve(random.Random(seed))) == [], f"{name}, seed {seed}"


@pytest.mark.parametrize("reward", ["reward", "rollout/raw_reward", "critic/rewards/mean", "critic/score/mean"])
def test_a_loss_beside_a_reward_says_nothing(reward: str) -> None:
    rng = random.Random(3)
    assert seen(learning(300, rng) + [50.0] * 100, **{reward: 0.5}) == []


def test_nor_does_one_that_is_not_positive_or_none_at_all() -> None:
    rng = random.Random(4)
    assert seen([rng.gauss(0, 0.01) for _ in range(400)] + [5.0] * 100) == []
    trend = LossTrend()
    assert all(trend.see(step, {"reward": step / 10}) is None for step in range(500))
    assert trend.bad is None


def test_rewards_of_preferences_are_beside_a_loss_that_counts() -> None:
    rng = random.Random(5)
    assert seen(learning(300, rng) + [50.0] * 100, **{"rewards/chosen": 0.02}) != []


def test_a_reward_seen_late_takes_an_alarm_back() -> None:
    rng = random.Random(6)
    trend = LossTrend()
    seen(learning(300, rng) + [50.0] * 50, trend)
    assert trend.bad is Bad.DIVERGING
    trend.see(351, {"loss": 50.0, "reward": 1.0})
    assert trend.bad is None
    assert trend.healthy(400)


def test_one_far_above_makes_a_checkpoint_doubtful_until_it_is_back() -> None:
    rng = random.Random(7)
    trend = LossTrend()
    seen([*learning(300, rng), 9.0, 9.0, 2.6], trend)
    assert [trend.healthy(step) for step in (300, 301, 302, 303)] == [True, False, False, True]


def test_it_comes_back_and_can_go_bad_again() -> None:
    rng = random.Random(8)
    curve = learning(400, rng) + [8.0] * 40 + [2.5] * 100 + [8.0] * 40
    assert [bad for _, bad in seen(curve)] == [Bad.DIVERGING, Bad.DIVERGING]


@pytest.mark.parametrize("wrong", [NAN, INF, -INF])
def test_no_number_for_a_while_is_bad_and_one_alone_is_not(wrong: float) -> None:
    trend = LossTrend()
    assert seen([2.0, wrong, 2.0, wrong, wrong, 2.0], trend) == []
    assert seen([wrong] * 5, trend, first=7) == [(9, Bad.NONFINITE)]
    assert (trend.bad, trend.since, trend.finite) == (Bad.NONFINITE, 7, True)
    trend.see(12, {"loss": 2.0})
    assert trend.bad is None


def test_whether_there_ever_was_a_number() -> None:
    trend = LossTrend()
    seen([NAN] * 5, trend)
    assert (trend.bad, trend.finite) == (Bad.NONFINITE, False)


def test_a_counter_that_goes_back_while_it_is_bad() -> None:
    rng = random.Random(9)
    trend = LossTrend()
    seen(learning(300, rng) + [9.0] * 5, trend)
    seen([9.0] * 30, trend, first=100)
    assert trend.since == 100
    assert not trend.healthy(100)


def test_a_loss_that_is_known_to_be_no_number_though_it_shows_zero_or_nothing() -> None:
    trend = LossTrend()
    lines: list[dict[str, float]] = [{"loss": 0.0, "grad_norm": NAN}, {"lr": 1e-4}, {"loss": 0.0}]
    assert [trend.see(step, metrics, sick=True) for step, metrics in enumerate(lines, 1)] == [None, None, Bad.NONFINITE]
    assert trend.since == 1
