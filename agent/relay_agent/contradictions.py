"""Settings that are each well and together say what cannot be: which of two counts, and which says nothing. Pure.

They begin no worse a training for it, so none is an error; `relay-agent doctor` says each in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from relay_agent.config import Settings
from relay_agent.outcome.retry import BACK, STALLED


class Contradiction(NamedTuple):
    why: str
    todo: str


class _Rule(NamedTuple):
    holds: Callable[[Settings], bool]
    why: Callable[[Settings], str]
    todo: str


def found(settings: Settings) -> Iterator[Contradiction]:
    """In the order of run.example.yaml."""
    for rule in _RULES:
        if rule.holds(settings):
            yield Contradiction(rule.why(settings), rule.todo)


def _goes_back(settings: Settings) -> str:
    """Which settings do, as the beginning of a sentence."""
    chosen = [name for name in ("ON_NAN", "ON_DIVERGE") if getattr(settings, name.lower()) == "rollback"]
    words = " and ".join(f"{name}=rollback" for name in chosen)
    return f"{words} {'go' if len(chosen) > 1 else 'goes'} back to a healthy checkpoint" if chosen else ""


def _never_stalls(settings: Settings) -> bool:
    return not any(
        (settings.stall_start, settings.stall_load, settings.stall_step, settings.stall_eval, settings.stall_save)
    )


def _other_mode(settings: Settings) -> str:
    """The command of the mode that is not this one's, where it is set and nothing else tells which is meant."""
    name, text = (
        ("SLIME_RL_CMD", settings.slime_rl_cmd) if settings.mode == "sft" else ("SLIME_SFT_CMD", settings.slime_sft_cmd)
    )
    mine = settings.slime_sft_cmd if settings.mode == "sft" else settings.slime_rl_cmd
    return name if text and not (mine or settings.train_cmd) else ""


def _both_commands(settings: Settings) -> str:
    mine = settings.slime_sft_cmd if settings.mode == "sft" else settings.slime_rl_cmd
    return f"SLIME_{settings.mode.upper()}_CMD" if mine and settings.train_cmd else ""


def _named_twice(settings: Settings) -> list[str]:
    return sorted(set(settings.retry_on) & set(settings.no_retry_on))


_RULES = (
    _Rule(
        lambda s: bool(_other_mode(s)),
        lambda s: f"{_other_mode(s)} is set and MODE is {s.mode}: launch_{s.mode}.sh is started instead",
        "set MODE to the mode that the command is for",
    ),
    _Rule(
        lambda s: bool(_both_commands(s)),
        lambda s: f"{_both_commands(s)} and TRAIN_CMD are both set: TRAIN_CMD is not started in MODE {s.mode}",
        "leave one of them",
    ),
    _Rule(
        lambda s: s.counter_restarts and s.target_steps is not None,
        lambda s: (
            f"with COUNTER_RESTARTS the trainer counts from 0 after a resume: TARGET_STEPS {s.target_steps} would have "
            "to be reached by each attempt alone"
        ),
        "unset TARGET_STEPS: what the trainer prints as its total counts then",
    ),
    _Rule(
        lambda s: s.counter_restarts and s.ckpt_keep_every is not None,
        lambda s: (
            "with COUNTER_RESTARTS steps begin at 0 after a resume, and CKPT_KEEP_EVERY keeps nothing for good until "
            "they are beyond the last that it kept"
        ),
        "use CKPT_BEST_METRIC, which keeps the best whatever its step",
    ),
    _Rule(
        lambda s: s.checkpoints == "staging" and s.complete_marker == "never",
        lambda s: (
            "CHECKPOINTS=staging takes only what has COMPLETE in it, and COMPLETE_MARKER=never says that the trainer "
            "never writes it"
        ),
        "leave COMPLETE_MARKER at auto, or set CHECKPOINTS to none and save into RELAY_CKPT_STAGING_ROOT",
    ),
    _Rule(
        lambda s: s.checkpoints == "none" and str(s.checkpoint_dir) != ".",
        lambda s: (
            f"CHECKPOINTS=none takes nothing from the trainer's folder, so CHECKPOINT_DIR {s.checkpoint_dir} does "
            "nothing"
        ),
        "set CHECKPOINTS to auto, or leave CHECKPOINT_DIR out",
    ),
    _Rule(
        lambda s: bool(s.ckpt_keep_every and s.target_steps and s.ckpt_keep_every > s.target_steps),
        lambda s: (
            f"CKPT_KEEP_EVERY {s.ckpt_keep_every} is beyond TARGET_STEPS {s.target_steps}: it keeps no checkpoint"
        ),
        "set CKPT_KEEP_EVERY to fewer steps than the run has",
    ),
    _Rule(
        lambda s: s.stop_grace_set and s.preempt_grace is not None and s.preempt_grace <= s.stop_grace,
        lambda s: (
            f"RELAY_STOP_GRACE leaves the trainer {s.stop_grace:g} s after SIGTERM, and by PREEMPT_GRACE the pod is "
            f"gone {s.preempt_grace:g} s after it: the trainer is killed sooner"
        ),
        "set RELAY_STOP_GRACE well below PREEMPT_GRACE, or leave it out",
    ),
    _Rule(
        lambda s: bool(s.preempt_url) and s.preempt in ("none", "slurm"),
        lambda s: f"PREEMPT is {s.preempt}, so nobody asks the service at PREEMPT_URL",
        "set PREEMPT to whose service it is: aws, gcp or azure",
    ),
    _Rule(
        lambda s: s.orphan_timeout == 0 and s.on_lease_loss == "continue",
        lambda s: (
            "ORPHAN_TIMEOUT 0 stops the trainer the moment its agent dies: the next agent on this pod cannot take it "
            "over, and ON_LEASE_LOSS=continue does nothing then"
        ),
        "set ORPHAN_TIMEOUT to the seconds that the next agent needs to start",
    ),
    _Rule(
        lambda s: s.retries == 0 and bool(s.retry_on),
        lambda s: f"RETRIES 0 starts no trainer again, not even after what RETRY_ON names ({', '.join(s.retry_on)})",
        "set RETRIES above 0, or leave RETRY_ON out",
    ),
    _Rule(
        lambda s: s.retry_backoff > s.retry_backoff_max,
        lambda s: f"RETRY_BACKOFF {s.retry_backoff:g} is cut down to RETRY_BACKOFF_MAX {s.retry_backoff_max:g}",
        "set RETRY_BACKOFF_MAX to the longest pause",
    ),
    _Rule(
        lambda s: bool(_named_twice(s)),
        lambda s: f"RETRY_ON and NO_RETRY_ON both name {', '.join(_named_twice(s))}: NO_RETRY_ON counts",
        "leave it in one of them",
    ),
    _Rule(
        lambda s: s.on_stall == "restart" and STALLED in s.no_retry_on,
        lambda s: (
            f"ON_STALL=restart restarts a trainer that stalls, but NO_RETRY_ON names {STALLED}: it is not restarted"
        ),
        f"take {STALLED} out of NO_RETRY_ON, or set ON_STALL to warn",
    ),
    _Rule(
        lambda s: s.on_stall == "restart" and _never_stalls(s),
        lambda s: "ON_STALL is restart, but every STALL_* is 0: nothing is ever a stall",
        "set one of STALL_START, STALL_LOAD, STALL_STEP, STALL_EVAL, STALL_SAVE to seconds",
    ),
    _Rule(
        lambda s: bool(_goes_back(s)) and s.rollbacks == 0,
        lambda s: f"{_goes_back(s)}, but ROLLBACKS is 0: the run ends instead",
        "set ROLLBACKS above 0, or say stop instead of rollback",
    ),
    _Rule(
        lambda s: bool(_goes_back(s)) and BACK in s.no_retry_on,
        lambda s: f"{_goes_back(s)}, but NO_RETRY_ON names {BACK}: the run ends instead",
        f"take {BACK} out of NO_RETRY_ON, or say stop instead of rollback",
    ),
    _Rule(
        lambda s: s.artifacts == "best" and s.ckpt_best_metric is None,
        lambda s: "ARTIFACTS best goes by CKPT_BEST_METRIC, which is not set: only the last checkpoint is kept there",
        "set CKPT_BEST_METRIC, or set ARTIFACTS to final",
    ),
    _Rule(
        lambda s: s.save_rollout_trajectories and s.mode == "sft" and not (s.slime_sft_cmd or s.train_cmd),
        lambda s: "RELAY_SAVE_ROLLOUT_TRAJECTORIES sends rollouts, but the launcher of MODE sft makes none",
        "set MODE to rl, or unset RELAY_SAVE_ROLLOUT_TRAJECTORIES",
    ),
)
