"""What one line said, and the pairs of a name and a number that all shapes are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from msgspec import Struct

MAX_METRICS = 64
MAX_STEP = 2**53

PLAIN = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_COMMA = r"[-+]?\d{1,9},(?:\d{1,2}(?:[eE][-+]?\d+)?|\d{4,17}(?:[eE][-+]?\d+)?|\d{3}[eE][-+]?\d+)(?![\d.]|,\d)"
NUMBER = rf"(?:{_COMMA}|[-+]?\d{{1,3}}(?:,\d{{3}}){{1,5}}(?:\.\d*)?(?![\d,])|{PLAIN})"
"""Also nan and infinity as any language spells them, thousands with commas, and a comma for the point, where it cannot
be one of thousands."""

_ALIASES = {
    alias: name
    for name, aliases in {
        "loss": (
            "train_loss", "train/loss", "training_loss", "training/loss", "train-loss", "loss/train", "lm_loss",
            "avr_loss", "avg_loss", "step_loss", "gpt_loss", "total_loss", "train_loss_step", "loss_step",
        ),
        "lr": (
            "learning_rate", "train/lr", "train/learning_rate", "training/lr", "train/lr-pg_0", "lr-pg_0", "actor/lr",
            "actor_lr", "lr-adamw",
        ),
        "reward": (
            "rewards/mean", "critic/rewards/mean", "rollout/raw_reward", "rollout/reward", "mean_reward", "reward_mean",
        ),
        "grad_norm": ("train/grad_norm", "training/grad_norm", "actor/grad_norm", "gradient_norm", "gnorm"),
    }.items()
    for alias in aliases
}  # fmt: skip
"""Names that mean the same with one trainer or another."""

_OWN = r"(?:train(?:ing)?|val(?:id(?:ation)?)?|eval(?:uation)?|test|lm|total|avg|mean)"
_NAMED = (
    rf"(?:{_OWN}[ _/])?(?:loss|accuracy|acc)|train/loss|lr|learning[_ ]rate|reward|grad(?:ient)?[_ ]norm|ppl|perplexity"
)
"""Names that may stand before their number with nothing but a space between."""
_PAIR = re.compile(
    rf"(?<![\w/.\-])(?:(?P<name>(?:{_OWN}[ ])?[A-Za-z][\w/.@\-]{{0,79}}(?:\([^()\s]{{1,16}}\))?"
    r"|learning rate|grad(?:ient)? norm)"
    rf"\s{{0,8}}[=:]\s{{0,16}}['\"\[]?|(?P<named>{_NAMED})\s{{1,8}})"
    rf"(?:(?:np\.|numpy\.)?(?:float|int)\d{{1,2}}\(|tensor\()?(?P<value>{NUMBER})(?![\w.:#]|/\d)",
    re.IGNORECASE,
)
PROSE = re.compile(
    rf"[`{{“”]|(?<!\d)(?<!nan)(?<!inf)[\"'](?!{PLAIN}[\"'])|(?:^|[|,;:)\]\-]\s{{0,4}}|\s{{2}})"
    r"(?:prompts?|samples?|responses?|completions?|outputs?|inputs?|answers?|questions?|instruction|generated|text|"
    r"messages?|config|args|example|user|assistant|system|human)\s*[=:>]",
    re.IGNORECASE,
)
"""From here on it is somebody's words, and no field of the line."""
SPEAKERS = re.compile(
    r"(?<![\w/.\-])(?:samples?|prompts?|responses?|completions?|answers?|questions?|assistant|user|human|generated|"
    r"examples?|instructions?|reply|think|said|says|q|a)(?![\w/.\-])",
    re.IGNORECASE,
)
"""Whose words follow, in what stands before a step."""
_EVALUATED = re.compile(r"(?:eval|val|valid|validation|evaluation|test)(?:[_/ \-]|core)|validation_", re.IGNORECASE)
_SCALED = re.compile(r"(.+)\((1e-?\d{1,3})\)")
_NOT_METRICS = frozenset((
    "v_num", "version", "pid", "rank", "local_rank", "world_size", "eta", "ip", "port", "line",
    "train/step", "train/global_step", "training/global_step",
))  # fmt: skip


class Epoch(NamedTuple):
    """Step and total of a line count within this epoch, numbered as it was printed; None: an earlier line tells.

    `base`: the number of the first one, None where that differs.
    """

    number: int | None
    of: int | None = None
    base: Literal[0, 1] | None = None


class Sight(Struct, frozen=True, gc=False):  # made for each step that is printed, and in no cycle
    """What one line said. Without a step it is what goes with the step that the trainer is at."""

    step: int | None
    total: int | None
    metrics: dict[str, float]
    within: Epoch | None = None
    unit: Literal["step", "epoch"] = "step"
    bar: bool = False
    """A bar: it comes again and again, and may be of anything that is counted."""
    awaits: bool = False
    """Of a trainer that prints its metrics and then its bar: the next state of that has the step."""
    sure: bool = False
    """Nobody had to guess what it means."""


def number(text: str) -> float:
    """Of a match of NUMBER."""
    if "," not in text:
        return float(text)
    before, _, behind = text.partition(",")
    if "," in behind or "." in behind or (len(behind) == 3 and before.lstrip("+-") != "0"):
        return float(text.replace(",", ""))
    return float(f"{before}.{behind}")


@lru_cache(maxsize=1024)
def is_evaluated(name: str) -> bool:
    """Whether a metric is of another loop than the training's."""
    return _EVALUATED.match(name) is not None


def named(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Metrics by the names that they have here; of two that mean the same the one that is called so, then the first."""
    found: dict[str, float] = {}
    own: set[str] = set()
    for spelled, value in pairs:
        name = spelled.strip()
        if name.isupper() or name.istitle():
            name = name.lower()
        if "(" in name and (scaled := _SCALED.fullmatch(name)):
            name, value = scaled[1], value * float(scaled[2])
        if " " in name:
            name = re.sub(r"\s+", "_", name)
        means = _ALIASES.get(name) or _ALIASES.get(name.lower(), name)
        if not means or means in _NOT_METRICS or len(means) > 128 or not means.isprintable():
            continue
        if means in found and (means in own or name != means):
            continue
        if name == means:
            own.add(means)
        if means in found or len(found) < MAX_METRICS:
            found[means] = value
    return found


def pairs(text: str) -> list[tuple[str, float]]:
    """All `name=value`, `name: value` and the like in fields of a line."""
    return [(match["name"] or match["named"], number(match["value"])) for match in _PAIR.finditer(text)]


def begins_with_pair(text: str) -> bool:
    return _PAIR.match(text) is not None


def whole(value: float | None, least: int = 0) -> int | None:
    """A count that a line gave as a number; None where it is none."""
    if value is None or not least <= value <= MAX_STEP:
        return None
    count = int(value)
    return count if count == value else None


def evaluated(metrics: Mapping[str, float]) -> bool:
    """Whether these, and there are some, tell of an evaluation alone. An epoch tells nothing of its own."""
    found = False
    for name in metrics:
        if name != "epoch":
            if not is_evaluated(name):
                return False
            found = True
    return found
