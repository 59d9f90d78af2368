"""What an agent is told: run.yaml, and the environment above it. Read once, checked whole, frozen."""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from relay_agent import run_yaml
from relay_agent.checkpoints.retention import Best, Retention
from relay_agent.outcome.endings import CAN_BE_SET
from relay_agent.reading.patterns import MAX_PATTERNS, BadPattern, check
from relay_agent.run_yaml import CONFIG_VARIABLE
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.ids import is_id
from relaytui.wire.url import BadUrl, plain_url

DEFAULT_CONFIG = Path("configs/run.yaml")
SAVE_SIGNALS = ("USR1", "USR2", "HUP")
"""Those that a trainer can take for a wish; others mean something else to programs or to the system."""
STOP_GRACE = 30.0
"""Seconds between SIGTERM and SIGKILL for a trainer, where nobody says otherwise."""


class Settings(Struct, frozen=True):
    """Everything an agent needs to know before it asks for a lease. Times in seconds."""

    commander_url: str
    shared_secret: str
    run_id: str
    worker_id: str
    mode: Literal["sft", "rl"]
    l1_root: Path
    agent_state: Path
    hf_repo: str
    hf_dry_run: bool
    hf_token: str
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


class _Bad(Exception):  # noqa: N818 - becomes a RelayError that says where
    """What a value should be."""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _Bad("should be text; put it in quotes")
    if any(ord(char) < 32 and char not in "\t\n" for char in value) or "\x7f" in value:
        raise _Bad("holds a control character")
    return value


def _word(value: object) -> str:
    return _text(value).strip()


def _id(value: object) -> str:
    text = _word(value)
    if not is_id(text):
        raise _Bad("should be 1 to 128 letters, digits, dots, dashes and underscores, a letter or digit first")
    return text


def _secret(value: object) -> str:
    if not isinstance(value, str):
        raise _Bad("should be text; put it in quotes")
    text = value.strip()  # a newline at the end of a file or of `$(cat …)` is nobody's intention
    if not text.isascii() or not text.isprintable() or " " in text:
        raise _Bad("should be printable ASCII without spaces or line breaks inside")
    return text


def _url(value: object) -> str:
    try:
        return plain_url(_word(value))
    except BadUrl as error:
        raise _Bad(str(error)) from None


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in ("true", "yes", "on", "1"):
        return True
    if word in ("false", "no", "off", "0"):
        return False
    raise _Bad("should be true or false")


def _number(value: object, what: str = "a plain number of seconds, such as 600") -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _Bad("should be a number")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise _Bad(f"should be {what}") from None
    if not math.isfinite(number):
        raise _Bad(f"should be {what}")
    return number


def _seconds(least: float) -> Callable[[object], float]:
    def parse(value: object) -> float:
        number = _number(value)
        if not least <= number <= 86_400:
            raise _Bad(f"should be between {least:g} and 86400 seconds")
        return number

    return parse


def _count(value: object) -> int:
    number = _number(value, "a whole number above 0")
    if number != int(number) or not 1 <= number <= 2**53:
        raise _Bad("should be a whole number above 0")
    return int(number)


def _retries(value: object) -> int:
    number = _number(value, "a whole number; 0 is none")
    if number != int(number) or not 0 <= number <= 1000:
        raise _Bad("should be a whole number up to 1000; 0 is none")
    return int(number)


def _endings(value: object) -> tuple[str, ...]:
    words = value if isinstance(value, list) else re.split(r"[\s,]+", _text(value))
    found = tuple(_word(word) for word in words if word)
    if any(name not in CAN_BE_SET for name in found):
        raise _Bad(f"should be endings, one or more of {', '.join(CAN_BE_SET)}")
    return found


def _patterns(value: object) -> tuple[str, ...]:
    given = value if isinstance(value, list) else [line for line in _text(value).splitlines() if line.strip()]
    if len(given) > MAX_PATTERNS:
        raise _Bad(f"holds more than {MAX_PATTERNS} patterns")
    for number, pattern in enumerate(given, 1):
        if not isinstance(pattern, str):
            raise _Bad("should be a list of regular expressions, each in single quotes")
        try:
            check(pattern)
        except BadPattern as bad:
            raise _Bad(f"holds a pattern, number {number}, that {bad}") from None
    return tuple(given)


def _path(value: object) -> Path:
    text = _word(value)
    if "\n" in text or not text:
        raise _Bad("should be a path")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise _Bad("begins with ~ and a user that does not exist") from None


def _kind(value: object) -> str:
    from relay_agent.checkpoints.adapters import BY_NAME

    text = _word(value)
    words = ("auto", "none", *BY_NAME)
    if text not in words:
        raise _Bad(f"should be {', '.join(words[:-1])} or {words[-1]}")
    return text


def _best(value: object) -> Best:
    best = Best.parse(_word(value))
    if best is None:
        raise _Bad("should be a metric's name, with - before it (or max behind it) where the highest is the best")
    return best


def _below(value: object) -> Path:
    path = _path(value)
    if ".." in path.parts:
        raise _Bad("should be a folder below RELAY_OUTPUT_DIR, or an absolute path, without ..")
    return path


def _choice(*words: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        text = _word(value)
        if text not in words:
            raise _Bad(f"should be {' or '.join(words)}")
        return text

    return parse


def _signal(value: object) -> signal.Signals:
    name = _word(value).upper().removeprefix("SIG")
    if name not in SAVE_SIGNALS:
        raise _Bad(f"should be {', '.join(SAVE_SIGNALS[:-1])} or {SAVE_SIGNALS[-1]}")
    return signal.Signals[f"SIG{name}"]


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
    Key("COMMANDER_URL", _url, None, "where the commander listens, http(s)://host[:port]; needed"),
    Key("RELAY_SHARED_SECRET", _secret, "", "what lets this worker in; `relay-tui token worker` prints it"),
    Key("RUN_ID", _id, "relay-run", "the run to train"),
    Key("WORKER_ID", _id, None, "a label for this pod; HOSTNAME, else relay-worker"),
    Key("MODE", _choice("sft", "rl"), "sft", "sft or rl: which launcher starts"),
    Key("RELAY_L1_ROOT", _path, Path("/mnt/relay"), "where the volume is mounted"),
    Key("SLIME_SFT_CMD", _text, "", "shell command instead of launchers/launch_sft.sh"),
    Key("SLIME_RL_CMD", _text, "", "shell command instead of launchers/launch_rl.sh"),
    Key("TRAIN_CMD", _text, "", "shell command of any trainer, whatever the mode; SLIME_*_CMD count before it"),
    Key("TARGET_STEPS", _count, None, "last step, where the trainer does not print a total"),
    Key("COUNTER_RESTARTS", _flag, False, "true: the trainer counts its steps from 0 again after a resume"),
    Key(
        "PATTERNS",
        _patterns,
        (),
        "regular expressions for its lines, with named groups: step, total, loss, …",
    ),
    Key("PTY", _flag, False, "true: the trainer gets a terminal, where it shows nothing on a pipe"),
    Key("RELAY_SETTLE_SECONDS", _seconds(0.1), 5.0, "an unmarked checkpoint is whole when unchanged this long"),
    Key(
        "COMPLETE_MARKER",
        _choice("auto", "always", "never"),
        "auto",
        "whether the trainer marks whole checkpoints with COMPLETE: auto, always, never",
    ),
    Key("CHECKPOINTS", _kind, "auto", "whose checkpoints to take from the trainer's folder: auto, none, or a kind"),
    Key("CHECKPOINT_DIR", _below, Path(), "where the trainer saves, if not in RELAY_OUTPUT_DIR itself"),
    Key("CKPT_KEEP_EVERY", _count, None, "steps from one checkpoint that is never pruned to the next"),
    Key("CKPT_BEST_METRIC", _best, None, "the best by it is never pruned: eval_loss (lowest), -reward (highest)"),
    Key("RELAY_STOP_GRACE", _seconds(0.1), None, "seconds between SIGTERM and SIGKILL for the trainer (30)"),
    Key(
        "PREEMPT",
        _choice("auto", "aws", "gcp", "azure", "slurm", "none"),
        "auto",
        "who gives notice before the pod goes: auto, aws, gcp, azure, slurm, none",
    ),
    Key("PREEMPT_GRACE", _seconds(0.0), None, "seconds the pod has after SIGTERM, or a notice that names no time"),
    Key("PREEMPT_URL", _url, "", "the metadata service, where it is not at 169.254.169.254"),
    Key("SAVE_SIGNAL", _signal, None, "signal on which the trainer saves and goes on: USR1, USR2 or HUP"),
    Key("ORPHAN_TIMEOUT", _seconds(0.0), 600.0, "seconds that a trainer goes on without an agent before it is stopped"),
    Key("RELAY_AGENT_STATE", _path, None, "folder on the pod's own disk for what the agent remembers"),
    Key(
        "ON_LEASE_LOSS", _choice("continue", "stop"), "continue", "when cut off longer than the lease: continue or stop"
    ),
    Key(
        "ON_MISSING_CHECKPOINT",
        _choice("ask", "older", "restart"),
        "ask",
        "newest checkpoint not here: ask, older, restart",
    ),
    Key("RETRIES", _retries, 3, "how often a trainer that failed is tried again without getting further; 0: never"),
    Key("RETRY_BACKOFF", _seconds(0.0), 10.0, "seconds before the first such try; each one after waits twice as long"),
    Key("RETRY_BACKOFF_MAX", _seconds(0.0), 300.0, "seconds that none of them waits longer than"),
    Key("RETRY_ON", _endings, (), "endings that are tried again although they come again as a rule"),
    Key("NO_RETRY_ON", _endings, (), "endings that are never tried again, such as cuda_oom"),
    Key("STALL_START", _seconds(0.0), 1800.0, "seconds without any output at the start that are a stall; 0: never"),
    Key("STALL_LOAD", _seconds(0.0), 3600.0, "the same before the first step, and for the first few; 0: never"),
    Key("STALL_STEP", _seconds(0.0), 600.0, "least seconds without a step that are one; more is learnt; 0: never"),
    Key("STALL_EVAL", _seconds(0.0), 1800.0, "seconds without a sign of life in an evaluation; 0: never"),
    Key("STALL_SAVE", _seconds(0.0), 1800.0, "seconds in which nothing grows while it saves; 0: never"),
    Key("ON_STALL", _choice("warn", "restart"), "warn", "what is done then: warn or restart"),
    Key("ON_NAN", _choice(*_LOSS), "warn", "once the loss stays nan or inf: warn, stop, rollback"),
    Key("ON_DIVERGE", _choice(*_LOSS), "warn", "once it stays far above where it had been: warn, stop, rollback"),
    Key("ROLLBACKS", _retries, 2, "how often a run goes back to a healthy checkpoint, at most"),
    Key("HF_REPO", _word, "", "Hugging Face repository to sync to; empty: the commander's"),
    Key("HF_DRY_RUN", _flag, True, "true: only say what would be synced"),
    Key("HF_TOKEN", _secret, "", "handed to the trainer"),
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
                "unset it, or give it a value",
                exit_code=Exit.USAGE,
            )
    path, named = config, config is not None
    if path is None:
        named = bool(environ.get(CONFIG_VARIABLE))
        path = Path(environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)
    values = run_yaml.read(path, named, _SPELLINGS)
    source = f"{path} and the environment" if values else "the environment"
    settings: dict[str, Any] = {}
    for key in KEYS:
        text = environ.get(key.name, "")
        if text.strip():
            settings[key.field] = _parse(key, text, f"the environment: {key.name}")
        elif key.name in values:
            where, value = values[key.name]
            settings[key.field] = _parse(key, value, f"{path}: {where}")
        else:
            settings[key.field] = key.default
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
    settings["stop_grace_set"] = settings["stop_grace"] is not None
    if settings["stop_grace"] is None:
        settings["stop_grace"] = STOP_GRACE
    if settings["agent_state"] is None:
        from platformdirs import user_state_path  # imports much for a default that pods seldom need

        settings["agent_state"] = user_state_path("relay-agent")
    return Settings(source=source, **settings)


def _parse(key: Key, value: object, where: str) -> Any:
    try:
        return key.parse(value)
    except _Bad as bad:
        secret = key.parse is _secret or key.name.endswith("_CMD") or _holds_more(value)
        shown = f" (it is {str(value)[:80]!a})" if isinstance(value, str | bool | float) and not secret else ""
        raise RelayError("bad_config", f"{where} {bad}{shown}", f"it means: {key.help}", exit_code=Exit.USAGE) from None


def _holds_more(value: object) -> bool:
    """A user and password, or a query: what is in it may be a secret."""
    return isinstance(value, str) and any(sign in value for sign in "@?#")


def _host_label(hostname: str) -> str:
    label = re.sub(r"[^A-Za-z0-9._-]", "-", hostname.strip())[:128].lstrip("._-")
    return label or "relay-worker"
