"""Settings that contradict each other: `relay-agent doctor` says each pair in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_agent.config import load
from relay_agent.contradictions import found
from relay_agent.doctor import Level, _together
from relay_agent.outcome.retry import Choice, Failure, Policy, Tries, choose

URL = {"COMMANDER_URL": "http://127.0.0.1:9"}
STALLS = ("STALL_START", "STALL_LOAD", "STALL_STEP", "STALL_EVAL", "STALL_SAVE")


def said(**settings: str) -> list[str]:
    return [each.why for each in found(load({**URL, **settings}))]


PAIRS = [
    ({"SLIME_RL_CMD": "true"}, "SLIME_RL_CMD is set and MODE is sft"),
    ({"SLIME_SFT_CMD": "true", "MODE": "rl"}, "SLIME_SFT_CMD is set and MODE is rl"),
    ({"SLIME_SFT_CMD": "true", "TRAIN_CMD": "false"}, "SLIME_SFT_CMD and TRAIN_CMD are both set"),
    ({"COUNTER_RESTARTS": "true", "TARGET_STEPS": "9"}, "TARGET_STEPS 9 would have to be reached by each attempt"),
    ({"COUNTER_RESTARTS": "true", "CKPT_KEEP_EVERY": "9"}, "CKPT_KEEP_EVERY keeps nothing"),
    (
        {"CHECKPOINTS": "staging", "COMPLETE_MARKER": "never"},
        "COMPLETE_MARKER=never says that the trainer never writes it",
    ),
    ({"CHECKPOINTS": "none", "CHECKPOINT_DIR": "out"}, "CHECKPOINT_DIR out does nothing"),
    ({"CKPT_KEEP_EVERY": "10", "TARGET_STEPS": "9"}, "CKPT_KEEP_EVERY 10 is beyond TARGET_STEPS 9"),
    ({"RELAY_STOP_GRACE": "30", "PREEMPT_GRACE": "30"}, "the pod is gone 30 s after it"),
    ({"PREEMPT": "slurm", "PREEMPT_URL": "http://10.0.0.1"}, "nobody asks the service at PREEMPT_URL"),
    ({"ORPHAN_TIMEOUT": "0"}, "ORPHAN_TIMEOUT 0 stops the trainer the moment its agent dies"),
    ({"RETRIES": "0", "RETRY_ON": "missing_file"}, "not even after what RETRY_ON names (missing_file)"),
    ({"RETRY_BACKOFF": "600"}, "RETRY_BACKOFF 600 is cut down to RETRY_BACKOFF_MAX 300"),
    ({"RETRY_ON": "cuda_oom", "NO_RETRY_ON": "cuda_oom,crash"}, "RETRY_ON and NO_RETRY_ON both name cuda_oom"),
    ({"ON_STALL": "restart", "NO_RETRY_ON": "stalled"}, "NO_RETRY_ON names stalled: it is not restarted"),
    ({"ON_STALL": "restart", **dict.fromkeys(STALLS, "0")}, "nothing is ever a stall"),
    ({"ON_NAN": "rollback", "ROLLBACKS": "0"}, "ON_NAN=rollback goes back"),
    (
        {"ON_NAN": "rollback", "ON_DIVERGE": "rollback", "ROLLBACKS": "0"},
        "ON_NAN=rollback and ON_DIVERGE=rollback go back",
    ),
    ({"ON_DIVERGE": "rollback", "NO_RETRY_ON": "diverged"}, "NO_RETRY_ON names diverged"),
    ({"ARTIFACTS": "best"}, "goes by CKPT_BEST_METRIC, which is not set"),
    ({"RELAY_SAVE_ROLLOUT_TRAJECTORIES": "true"}, "the launcher of MODE sft makes none"),
]


@pytest.mark.parametrize(("settings", "words"), PAIRS, ids=[" ".join(pair[0]) for pair in PAIRS])
def test_each_is_one_line_that_says_what_to_do(settings: dict[str, str], words: str) -> None:
    (why,) = said(**settings)
    assert words in why
    (check,) = _together(load({**URL, **settings}))
    assert (check.what, check.level) == ("settings", Level.WARN)
    assert check.todo
    assert "\n" not in check.line()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"SLIME_RL_CMD": "true", "SLIME_SFT_CMD": "true"},
        {"SLIME_RL_CMD": "true", "TRAIN_CMD": "false"},
        {"PREEMPT_GRACE": "10"},
        {"RELAY_STOP_GRACE": "30"},
        {"PREEMPT": "aws", "PREEMPT_URL": "http://10.0.0.1"},
        {"ORPHAN_TIMEOUT": "0", "ON_LEASE_LOSS": "stop"},
        {"CHECKPOINTS": "none"},
        {"COUNTER_RESTARTS": "true", "CKPT_BEST_METRIC": "loss"},
        {"ON_NAN": "stop", "ROLLBACKS": "0", "NO_RETRY_ON": "diverged,stalled"},
        {"ARTIFACTS": "best", "CKPT_BEST_METRIC": "loss"},
        {"MODE": "rl", "RELAY_SAVE_ROLLOUT_TRAJECTORIES": "true"},
    ],
)
def test_what_goes_together_is_not_said(settings: dict[str, str]) -> None:
    assert said(**settings) == []


def test_the_example_file_does_not_contradict_itself(tmp_path: Path) -> None:
    example = Path(__file__).resolve().parent.parent / "agent/run.example.yaml"
    assert list(found(load({}, example))) == []


def test_what_is_said_of_retries_is_so() -> None:
    """The words are about another module, this holds the two together."""
    import random

    of = Policy.of(load({**URL, "ON_NAN": "rollback", "NO_RETRY_ON": "diverged,stalled"}))
    for ending in ("diverged", "stalled"):
        tries = Tries(since=(Failure(1, ending, 3, 0.0),))
        assert choose(of, ending, tries, random.Random(0)) == Choice(why=f"NO_RETRY_ON names {ending}")
    both = Policy.of(load({**URL, "RETRY_ON": "crash", "NO_RETRY_ON": "crash"}))
    assert not choose(both, "crash", Tries(since=(Failure(1, "crash", 3, 0.0),)), random.Random(0)).number
    none = Policy.of(load({**URL, "RETRIES": "0", "RETRY_ON": "missing_file"}))
    assert not choose(none, "missing_file", Tries(since=(Failure(1, "missing_file", 3, 0.0),)), random.Random(0)).number
