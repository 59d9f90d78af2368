"""The table of what is recognised in one line, most telling first."""

from __future__ import annotations

import re
from collections.abc import Callable

from relay_agent.reading import bars, fields, mappings
from relay_agent.reading.prefixes import body
from relay_agent.reading.sight import SPEAKERS, Sight

MAX_LENGTH = 4_000
"""Longer lines are samples and dumps."""

_BLANKS = re.compile(r"\s{2,}")
_CJK = re.compile(
    r"第\s*(\d+)\s*([/／])\s*(\d+)\s*(?:步|ステップ)|(?:训练|訓練|学習)?(?:轮次|輪次|エポック)\s*[:：]?\s*(?=\d)"
)
_CJK_WORDS = (
    ("训练损失", "loss"), ("損失", "loss"), ("损失", "loss"), ("学习率", "lr"), ("学習率", "lr"), ("步数", "step"),
    ("ステップ", "step"), ("，", ", "), ("：", ": "), ("＝", "="), ("、", ", "), ("／", "/"),
)  # fmt: skip


def _always(text: str) -> bool:
    return True


SHAPES: tuple[tuple[str, Callable[[str], bool], Callable[[str], Sight | None]], ...] = (
    ("mapping", lambda text: "{" in text, mappings.read),
    ("tqdm", lambda text: "%|" in text or "it [" in text, bars.tqdm),
    ("ultralytics", lambda text: "%" in text and "/" in text, bars.ultralytics),
    ("rich", lambda text: " • " in text, bars.rich),
    ("keras", lambda text: "/step" in text or "/epoch" in text or "ETA:" in text, bars.keras),
    ("start", _always, fields.at_start),
    ("brackets", lambda text: text.startswith("["), fields.brackets),
    ("epochs", lambda text: text[:1] in "eE[", fields.epochs),
    ("inside", lambda text: "tep" in text or "ter" in text or "STEP" in text or "ITER" in text, fields.inside),
)
"""Name, a cheap look at whether it could be, and the shape itself. A trainer's own line gets a row here, or a pattern
in its run.yaml."""


WORDS = ("{", "|", "tep", "oss", "poch", "iter", "it/s", "STEP", "━", "步", "轮", "損失", "エポック")
"""One of these stands in every line that says anything. Single signs, and those beyond ASCII, are found at once; any
other is a look at every letter."""


def read(text: str) -> Sight | None:
    """What a line says about progress; None for nearly all lines."""
    if len(text) > MAX_LENGTH or not any(word in text for word in WORDS):
        return None
    text = plain(text.strip())
    if "{" not in text and "%|" not in text and (sight := fields.at_start(text)) is not None:
        return sight  # most lines that say anything, and no prefix to look for
    words = body(text)
    if len(words) < len(text) and SPEAKERS.search(text, 0, len(text) - len(words)):
        return None
    text = words
    for _, could_be, understand in SHAPES:
        if could_be(text) and (sight := understand(text)) is not None:
            return sight
    return None


def plain(text: str) -> str:
    """As shapes read it: no long runs of blanks to search again and again, names and signs of the ASCII kind."""
    if "  " in text or "\t" in text:
        text = _BLANKS.sub("  ", text)
    if not text.isascii():
        text = _CJK.sub(lambda match: f"step {match[1]}/{match[3]} " if match[1] else "epoch ", text)
        for word, means in _CJK_WORDS:
            if word in text:
                text = text.replace(word, f"{means}" if means[0] in ",:=/" else f" {means} ")
        text = text.strip()
    return text
