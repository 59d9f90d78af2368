"""Cleaning text from pods: the same as character by character."""

from __future__ import annotations

import random
import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from relaytui.wire.text import MAX_COMBINING, MAX_LINE, are_clean, clean

ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
PIECES = [
    *"ab m[]0;?\\/~_^PX \t\r\n\x07\x1b\x9b\x9d\x90\x98\x9c\x9e\x9f\x80\x00\x7f\xa0\xad",
    *"é日한\u0301\u20dd\ufe0f\U000e0100\U0001f680\u200d\u200b\u2028\u115f\u1160\u1161\u11ff\ud7b0\ud7fb\u3164\uffa0",
    *"\ud800\U00020000\U0001d167\U00011001\U0010ffff\ufffe",
    "\x1b[31m",
    "\x1b]8;;http://x\x1b\\",
    "\u0301" * 5,
]
BEGINNINGS = {"\x1b", *map(chr, range(0x80, 0xA0))}
"""Of sequences: what comes after one is not by itself."""


def joins(char: str) -> bool:
    return unicodedata.category(char) in ("Mn", "Me") or "\u1160" <= char <= "\u11ff" or "\ud7b0" <= char <= "\ud7fb"


def cleaned(text: str, limit: int) -> str:
    """What `clean` means, one character after the other."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    kept: list[str] = []
    combining = 0
    for char in ESCAPES.sub("", text).expandtabs(8):
        if not char.isprintable() or char in "\u115f\u1160\u3164\uffa0":
            continue
        combining = combining + 1 if joins(char) else 0
        if combining <= MAX_COMBINING:
            kept.append(char)
    whole = "".join(kept)
    return whole if len(whole) <= limit else whole[: limit - 1] + "…"


def test_random_text_is_cleaned_as_character_by_character() -> None:
    dice = random.Random(1)
    for n in range(10_000):
        if n % 3:
            text = "".join(dice.choices(PIECES, k=dice.randrange(60)))
        else:
            text = "".join(chr(dice.randrange(0x110000 if n % 2 else 0x3000)) for _ in range(dice.randrange(40)))
        limit = dice.choice([MAX_LINE, 1, 5, 20, 40])
        assert clean(text, limit) == cleaned(text, limit), ascii((text, limit))


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40).map("".join), st.integers(1, 90))
def test_any_text_is_cleaned_as_character_by_character(text: str, limit: int) -> None:
    assert clean(text, limit) == cleaned(text, limit)
    if are_clean([text, text]):
        assert clean(text) == text


def test_every_character_is_cleaned_as_by_itself() -> None:
    for start in range(0, 0x110000, 1_000):
        chars = map(chr, range(start, min(start + 1_000, 0x110000)))
        # What is not printable goes, by itself or many times; it is most of them.
        text = "".join(
            f"x{char * (MAX_COMBINING + 1 if char.isprintable() else 1)}" for char in chars if char not in BEGINNINGS
        )
        assert clean(text, len(text)) == cleaned(text, len(text)), hex(start)


def test_lines_are_clean_or_not_in_one_look() -> None:
    assert are_clean([])
    assert are_clean(["plain", "", "損失 2.5", "é"])
    assert not are_clean(["plain", "a\tb"])
    assert not are_clean(["a" + "\u0301" * 9])
    assert not are_clean(["x" * (MAX_LINE + 1)])
