"""What an agent is told: run.yaml, and the environment above it. Read once, checked whole, frozen."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from relay_agent import run_yaml
from relay_agent.checkpoints.retention import Best, Retention
from relay_agent.fork_from import ForkFrom
from relay_agent.run_yaml import CONFIG_VARIABLE
from relay_agent.values import (
    Bad,
    Figure,
    a_best,
    a_count,
    a_flag,
    a_fork,
    a_kind,
    a_model,
    a_path,
    a_path_below,
    a_save_signal,
    a_secret,
    a_text,
    a_url,
    a_word,
    an_id,
    one_of,
    seconds_from,
    some_endings,
    some_files,
    some_globs,
    some_patterns,
    up_to_1000,
)
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.url import holds_more

DEFAULT_CONFIG = Path("configs/run.yaml")
STOP_GRACE = 30.0
"""Seconds between SIGTERM and SIGKILL for a trainer, where nobody says otherwise."""


class Settings(Struct, frozen=True):
    """Everything an agent needs to know before it asks for a lease. Times in seconds."""

    commander_url: str
    shared_secret: str
    run_id: str
    run_id_set: bool
    worker_id: str
    mode: Literal["sft", "rl"]
    l1_root: Path
    agent_state: Path
    hf_repo: str
    hf_dry_run: bool
    hf_token: str
    hf_private: bool
    hf_push: tuple[str, ...]
    hf_keep_last_n: int
    hf_end_wait: float
    hf_endpoint: str
    hf_xet: bool
    artifacts: Literal["none", "final", "every", "best"]
    artifacts_files: tuple[str, ...]
    artifacts_end_wait: float
    save_rollout_trajectories: bool
    rollout_trajectory_root: Path
    rollout_trajectory_pattern: str
    slime_sft_cmd: str
    slime_rl_cmd: str
    train_cmd: str
    settle_seconds: float
    complete_marker: Literal["auto", "always", "never"]
    checkpoints: str
    checkpoint_dir: Path
    ckpt_keep_every: int | None
    ckpt_best_metric: Best | None
    stop_grace: float
    stop_grace_set: bool
    preempt: Literal["auto", "aws", "gcp", "azure", "slurm", "none"]
    preempt_grace: float | None
    preempt_url: str
    save_signal: signal.Signals | None
    target_steps: int | None
    patterns: tuple[str, ...]
    pty: bool
    counter_restarts: bool
    orphan_timeout: float
    on_lease_loss: Literal["continue", "stop"]
    on_missing_checkpoint: Literal["ask", "older", "restart"]
    base_model: str
    fork_from: ForkFrom | None
    retries: int
    retry_backoff: float
    retry_backoff_max: float
    retry_on: tuple[str, ...]
    no_retry_on: tuple[str, ...]
    stall_start: float
    stall_load: float
    stall_step: float
    stall_eval: float
    stall_save: float
    on_stall: Literal["warn", "restart"]
    on_nan: Literal["warn", "stop", "rollback"]
    on_diverge: Literal["warn", "stop", "rollback"]
    rollbacks: int
    source: str
    """Where it came from, for people."""

    @property
    def retention(self) -> Retention:
        return Retention(self.ckpt_keep_every or 0, self.ckpt_best_metric)

    def __repr__(self) -> str:
        return f"Settings(run_id={self.run_id!r}, worker_id={self.worker_id!r}, mode={self.mode!r})"  # no secrets


class Key(NamedTuple):
    """One thing that can be set: by `name` in the environment, by `name` or its lower case in run.yaml."""

    name: str
    parse: Callable[[Any], Any]
    default: Any
    help: str

    @property
    def field(self) -> str:
        return self.name.removeprefix("RELAY_").lower()


_LOSS = ("warn", "stop", "rollback")
KEYS = (
    Key("COMMANDER_URL", a_url, None, "where the commander listens, http(s)://host[:port]; needed"),
    Key("RELAY_SHARED_SECRET", a_secret, "", "what lets this worker in; `relay-tui token worker` prints it"),
    Key("RUN_ID", an_id, "relay-run", "the run to train"),
    Key("WORKER_ID", an_id, None, "a name for this pod; if unset HOSTNAME, else relay-worker"),
    Key("MODE", one_of("sft", "rl"), "sft", "sft or rl: which launcher starts"),
    Key("RELAY_L1_ROOT", a_path, Path("/mnt/relay"), "where the volume is mounted"),
    Key("SLIME_SFT_CMD", a_text, "", "shell command instead of launchers/launch_sft.sh"),
    Key("SLIME_RL_CMD", a_text, "", "shell command instead of launchers/launch_rl.sh"),
    Key(
        "TRAIN_CMD",
        a_text,
        "",
        "shell command of any trainer, in both modes; SLIME_SFT_CMD and SLIME_RL_CMD count before it",
    ),
    Key("TARGET_STEPS", a_count, None, "the last step, where the trainer does not print a total"),
    Key("COUNTER_RESTARTS", a_flag, False, "true: the trainer counts its steps from 0 again after a resume"),
    Key(
        "PATTERNS",
        some_patterns,
        (),
        "regular expressions that read the trainer's lines, with named groups: step, total, loss, …",
    ),
    Key("PTY", a_flag, False, "true: the trainer is run in a terminal, if without one it shows no progress"),
    Key(
        "RELAY_SETTLE_SECONDS",
        seconds_from(0.1),
        5.0,
        "seconds without a change after which a checkpoint without COMPLETE counts as whole",
    ),
    Key(
        "COMPLETE_MARKER",
        one_of("auto", "always", "never"),
        "auto",
        "whether the trainer marks whole checkpoints with COMPLETE: auto, always, never",
    ),
    Key(
        "CHECKPOINTS",
        a_kind,
        "auto",
        "which kind of checkpoints the trainer saves: auto (found out), none (its folder is left alone), or a kind",
    ),
    Key("CHECKPOINT_DIR", a_path_below, Path(), "where the trainer saves, if not in RELAY_OUTPUT_DIR itself"),
    Key("CKPT_KEEP_EVERY", a_count, None, "every so many steps a checkpoint is kept for good"),
    Key(
        "CKPT_BEST_METRIC",
        a_best,
        None,
        "the checkpoint that is best by this metric is kept: eval_loss (lowest), -reward (highest)",
    ),
    Key("RELAY_STOP_GRACE", seconds_from(0.1), None, "seconds between SIGTERM and SIGKILL for the trainer (30)"),
    Key(
        "PREEMPT",
        one_of("auto", "aws", "gcp", "azure", "slurm", "none"),
        "auto",
        "who says beforehand that the pod is taken away: auto, aws, gcp, azure, slurm, none",
    ),
    Key(
        "PREEMPT_GRACE",
        seconds_from(0.0),
        None,
        "seconds until the pod is gone after SIGTERM, or after a notice that does not say when",
    ),
    Key("PREEMPT_URL", a_url, "", "address of the cloud's metadata service, if not http://169.254.169.254"),
    Key("SAVE_SIGNAL", a_save_signal, None, "signal on which the trainer saves and trains on: USR1, USR2 or HUP"),
    Key(
        "ORPHAN_TIMEOUT",
        seconds_from(0.0),
        600.0,
        "seconds that the trainer goes on after its agent died, before it is stopped",
    ),
    Key("RELAY_AGENT_STATE", a_path, None, "folder on the pod's own disk for what the agent remembers between starts"),
    Key(
        "ON_LEASE_LOSS",
        one_of("continue", "stop"),
        "continue",
        "what to do when the commander cannot be reached for longer than the lease: continue or stop",
    ),
    Key(
        "ON_MISSING_CHECKPOINT",
        one_of("ask", "older", "restart"),
        "ask",
        "what to do when the newest checkpoint is not on this volume: ask (end), older (use that), restart",
    ),
    Key("BASE_MODEL", a_model, "", "the model that a new run begins with: a folder, or a name on the Hub"),
    Key(
        "FORK_FROM",
        a_fork,
        None,
        "the checkpoint a new run begins with: run@step, run (its newest), hf:owner/name@step-N",
    ),
    Key(
        "RETRIES",
        up_to_1000,
        3,
        "how many times in a row a failed trainer is started again without getting further; 0: never",
    ),
    Key(
        "RETRY_BACKOFF",
        seconds_from(0.0),
        10.0,
        "seconds before a failed trainer is started again; twice as many each further time",
    ),
    Key("RETRY_BACKOFF_MAX", seconds_from(0.0), 300.0, "the most seconds before a failed trainer is started again"),
    Key(
        "RETRY_ON",
        some_endings,
        (),
        "endings after which the trainer is started again, though as a rule that does not help",
    ),
    Key("NO_RETRY_ON", some_endings, (), "endings after which the trainer is never started again, such as cuda_oom"),
    Key(
        "STALL_START",
        seconds_from(0.0),
        1800.0,
        "seconds without any output after the start before the trainer counts as stalled; 0: never",
    ),
    Key(
        "STALL_LOAD",
        seconds_from(0.0),
        3600.0,
        "seconds without progress before each of the first few steps until the trainer counts as stalled; 0: never",
    ),
    Key(
        "STALL_STEP",
        seconds_from(0.0),
        600.0,
        "seconds without a new step before the trainer counts as stalled (more where its steps take longer); 0: never",
    ),
    Key(
        "STALL_EVAL",
        seconds_from(0.0),
        1800.0,
        "seconds without a sign of life during an evaluation before the trainer counts as stalled; 0: never",
    ),
    Key(
        "STALL_SAVE",
        seconds_from(0.0),
        1800.0,
        "seconds during a save in which no file grows before the trainer counts as stalled; 0: never",
    ),
    Key("ON_STALL", one_of("warn", "restart"), "warn", "what to do when the trainer has stalled: warn or restart"),
    Key("ON_NAN", one_of(*_LOSS), "warn", "what to do when the loss stays nan or inf: warn, stop, rollback"),
    Key(
        "ON_DIVERGE",
        one_of(*_LOSS),
        "warn",
        "what to do when the loss stays far above what it had come down to: warn, stop, rollback",
    ),
    Key("ROLLBACKS", up_to_1000, 2, "how often a run may go back to a healthy checkpoint (ON_NAN, ON_DIVERGE)"),
    Key("HF_REPO", a_word, "", "Hugging Face repository to sync to, owner/name; empty: the commander's"),
    Key("HF_DRY_RUN", a_flag, True, "true: nothing is sent to the Hub, only said; false: it is sent"),
    Key("HF_TOKEN", a_secret, "", "a Hugging Face token that may write to HF_REPO; the trainer gets it, too"),
    Key("HF_PRIVATE", a_flag, True, "false: the repository may be public"),
    Key("HF_PUSH", some_files, (), "which files of a checkpoint are sent to the Hub: all, weights, or patterns"),
    Key("HF_KEEP_LAST_N", up_to_1000, 0, "how many steps stay on the Hub (the space of older ones is freed); 0: all"),
    Key("HF_END_WAIT", seconds_from(0.0), 1800.0, "seconds that the end of a run waits for the last sync"),
    Key("HF_ENDPOINT", a_url, "", "address of the Hub, if not https://huggingface.co"),
    Key("HF_XET", a_flag, False, "true: files are sent in chunks, each stored only once; takes some 400 MB of memory"),
    Key(
        "ARTIFACTS",
        one_of("none", "final", "every", "best"),
        "none",
        "which checkpoints go to the commander's artifact store: none, final, every, best",
    ),
    Key("ARTIFACTS_FILES", some_globs, (), "small files of RELAY_OUTPUT_DIR that go there at the end, as patterns"),
    Key("ARTIFACTS_END_WAIT", seconds_from(0.0), 1800.0, "seconds that the end of a run waits for the last upload"),
    Key("RELAY_SAVE_ROLLOUT_TRAJECTORIES", a_flag, False, "true: rollouts are sent to the Hub, too"),
    Key("RELAY_ROLLOUT_TRAJECTORY_ROOT", a_path_below, Path("rollout"), "where the trainer saves rollouts"),
    Key("RELAY_ROLLOUT_TRAJECTORY_PATTERN", a_word, "rollout_*.pt", "the names of the rollout files, as a pattern"),
)
_SPELLINGS = {spelling: key.name for key in KEYS for spelling in (key.name, key.name.lower())}


NEVER_EMPTY = (CONFIG_VARIABLE, "RELAY_L1_ROOT", "RELAY_AGENT_STATE", "RUN_ID")
"""Set and empty, such a variable is a slip (`RUN_ID=$UNSET`) and its default a guess. Others count as unset."""


def load(environ: Mapping[str, str] | None = None, config: Path | None = None, *, needs_url: bool = True) -> Settings:
    """run.yaml and the environment above it; RelayError (exit 2) names file, key and what it should be.

    Without `needs_url` the commander's URL may be missing, and is "" then.
    """
    environ = os.environ if environ is None else environ
    for name in NEVER_EMPTY:
        if name in environ and not environ[name].strip() and not (name == CONFIG_VARIABLE and config is not None):
            raise RelayError(
                "empty_variable",
                f"the environment: {name} is set and empty",
                "unset it (the default is used then), or give it a value",
                exit_code=Exit.USAGE,
            )
    path, named = config, config is not None
    if path is None:
        named = bool(environ.get(CONFIG_VARIABLE))
        path = Path(environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)
    troubles: list[RelayError] = []
    values = run_yaml.read(path, named, _SPELLINGS, troubles)
    source = f"{path} and the environment" if values else "the environment"
    settings: dict[str, Any] = {}
    for key in KEYS:
        text = environ.get(key.name, "")
        settings[key.field] = key.default
        try:
            if text.strip():
                settings[key.field] = _parse(key, text, f"the environment: {key.name}")
            elif key.name in values:
                where, value = values[key.name]
                settings[key.field] = _parse(key, value, f"{path}: {where}")
        except RelayError as error:
            troubles.append(error)
    if troubles:
        raise run_yaml.all_of(troubles)
    if settings["commander_url"] is None:
        settings["commander_url"] = ""
    if needs_url and not settings["commander_url"]:
        raise RelayError(
            "no_commander",
            "COMMANDER_URL is not set",
            f"set it in the environment or in {path}, such as COMMANDER_URL=http://host:8080",
            exit_code=Exit.USAGE,
        )
    if settings["worker_id"] is None:
        settings["worker_id"] = _host_label(environ.get("HOSTNAME", ""))
    settings["run_id_set"] = bool(environ.get("RUN_ID")) or "RUN_ID" in values
    settings["stop_grace_set"] = settings["stop_grace"] is not None
    if settings["stop_grace"] is None:
        settings["stop_grace"] = STOP_GRACE
    if settings["agent_state"] is None:
        from platformdirs import user_state_path  # imports much for a default that pods seldom need

        (key,) = (key for key in KEYS if key.field == "agent_state")
        settings["agent_state"] = _parse(key, str(user_state_path("relay-agent")), f"the default of {key.name}")
    return Settings(source=source, **settings)


def secrets_of(settings: Settings) -> dict[str, str]:
    """Those settings that are secret, by the names that they are set by."""
    return {key.name: getattr(settings, key.field) for key in KEYS if key.parse is a_secret}


def _parse(key: Key, value: object, where: str) -> Any:
    try:
        return key.parse(value)
    except Bad as bad:
        secret = key.parse is a_secret or key.name.endswith("_CMD") or _holds_more(key, value)
        shown = f" (it is {str(value)[:80]!a})" if isinstance(value, str | bool | Figure) and not secret else ""
        raise RelayError("bad_config", f"{where} {bad}{shown}", f"it means: {key.help}", exit_code=Exit.USAGE) from None


def _holds_more(key: Key, value: object) -> bool:
    """A user and password, or a query: what is in it may be a secret."""
    text = value if isinstance(value, str) else ""
    return holds_more(text) if key.parse is a_url else any(sign in text for sign in "@?#")


def _host_label(hostname: str) -> str:
    label = re.sub(r"[^A-Za-z0-9._-]", "-", hostname.strip())[:128].lstrip("._-")
    return label or "relay-worker"
