"""What a trainer is doing, as far as its lines tell."""

from __future__ import annotations

import re
from enum import StrEnum


class Phase(StrEnum):
    """One of these at any time; each has a budget of its own."""

    STARTING = "starting"  # it has not printed a byte
    LOADING = "loading"  # it prints, and has not made a step
    TRAINING = "training"  # steps come
    EVALUATING = "evaluating"
    SAVING = "saving"


MAX_LENGTH = 2_000
"""Longer lines are samples and dumps."""

_EVALUATES = re.compile(
    r"(?<![\w./\-])(?:eval(?:uat(?:e|es|ing|ion))?|validat(?:e|es|ing|ion)|val)(?![\w./\-])"
    r"|['\"]eval[_/]|评估|验证|評価|検証",
    re.IGNORECASE,
)
_SAVES = re.compile(
    r"(?<![\w./\-])(?:sav(?:e|ing)|writing|staging|uploading)\b.{0,40}?"
    r"\b(?:checkpoint|checkpoints|ckpt|shards|state|weights|model|snapshot)\b|保存",
    re.IGNORECASE,
)
_SAVED = re.compile(r"(?<![\w./\-])(?:success\w*|saved|finished)\b.{0,40}?\b(?:sav\w+|checkpoint)", re.IGNORECASE)
_STEP = re.compile(r"(?<![\w/.])(?:step|iter|iteration)s?\b\W{0,3}\d", re.IGNORECASE)
_COUNT = re.compile(
    r"(?<![\d./])(?P<n>\d{1,16}(?:\.\d{1,6})?)(?P<unit>[kKMGT]?)i?B?\s{0,8}/\s{0,8}"
    r"(?P<total>\d{1,16}(?:\.\d{1,6})?[kKMGT]?i?B?)(?![\d./\w])"
)
_HINTS = ("val", "sav", "writing", "staging", "uploading")
"""One of these stands in every line of ASCII that names a phase: most lines name none, and are not searched."""
_UNITS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def named_in(line: str) -> Phase | None:
    """EVALUATING or SAVING where the line says that this is what goes on."""
    if len(line) > MAX_LENGTH or (line.isascii() and not any(map(line.lower().__contains__, _HINTS))):
        return None
    if _EVALUATES.search(line):
        return Phase.EVALUATING
    if _SAVES.search(line) and not _SAVED.search(line):
        return Phase.SAVING
    return None


def tells_a_step(line: str) -> bool:
    return len(line) <= MAX_LENGTH and _STEP.search(line) is not None


def counts_in(line: str) -> list[tuple[str, float]]:
    """How far the bars of a line are: (total as written, count), as `("10", 3.0)` of `3/10`. Dates are no bars."""
    if "/" not in line or len(line) > MAX_LENGTH:
        return []
    return [(match["total"], float(match["n"]) * _UNITS[match["unit"]]) for match in _COUNT.finditer(line)]
