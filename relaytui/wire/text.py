"""Text from pods, made harmless: no control sequence, no invisible character, no unbounded line.

Applied when text comes in (commander) and again when it is drawn (dashboard). Cheap for ordinary text, coloured lines
and any script included, because it is done in the event loop: `str.isprintable` is false for every control, format,
surrogate and unassigned character, and regular expressions look for the rest.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from operator import itemgetter
from typing import NamedTuple

MAX_LINE = 4000
"""Longest line kept on the wire, in characters. The raw log on the volume keeps everything."""

MAX_COMBINING = 4
"""Characters without a width of their own that are kept after one base character; more is only ever an attack."""
_FILLERS = "\u115f\u1160\u3164\uffa0"
"""Letters by their category that show nothing."""
_WITH_MARKS = (range(0x10000), range(0x10000, 0x20000), range(0xE0000, 0xE1000))
"""Where Unicode has characters that join: the planes between hold ideographs only."""

_PLAIN = bytes(range(0x20, 0x7F))
"""What is printable of ASCII: taking it out of bytes and looking at what is left is faster than `str.isprintable`."""

_KEPT = itemgetter(1)
"""The group that stays of a match; a template in words would be parsed each time."""

# An escape sequence of any family: CSI, the string families (OSC, DCS, SOS, PM, APC) up to their end, or two bytes.
# Each begins with one class of characters, which the engine skips to at once.
_ESCAPES = re.compile(
    r"[\x1b\x90\x98\x9b\x9d-\x9f](?:"
    r"(?:(?<=\x1b)\[|(?<=\x9b))[0-?]*[ -/]*[@-~]?"
    r"|(?:(?<=\x1b)[\]PX^_]|(?<=[\x90\x98\x9d-\x9f]))[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|[ -/]*[0-~]?)"
)


_NO_CHARACTERS = re.compile(r"[\ud800-\udfff]")


def clean(text: str, limit: int = MAX_LINE) -> str:
    """One line of untrusted text as it may be stored and shown; longer ones end in `…`."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if not text.isprintable():
        text = _ESCAPES.sub("", text).expandtabs(8)
        if not text.isprintable():
            text = "".join(filter(str.isprintable, text))
    if not text.isascii():
        odd = _odd()
        if odd.any.search(text):
            piles = odd.piles if odd.high.search(text) else odd.low_piles
            text = piles.sub(_KEPT, odd.fillers.sub("", text))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def sayable(text: str) -> str:
    """Text that can be encoded: of a path in it each byte that is no character is a `\ufffd`."""
    return _NO_CHARACTERS.sub("\ufffd", text)


def counted(count: int, noun: str, many: str = "") -> str:
    """`1 file`, `2 files`, `1,000 files`; `many` where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def are_clean(lines: Sequence[str]) -> bool:
    """Whether `clean` would change none of them, in one look; False may be said of clean ones that are odd."""
    text = "".join(lines)
    if len(text) > MAX_LINE and are_long(lines):
        return False
    if text.isascii():
        return not text.encode().translate(None, _PLAIN)
    return text.isprintable() and not _odd().any.search("".join(line for line in lines if not line.isascii()))


def are_long(lines: Sequence[str]) -> bool:
    return max(map(len, lines), default=0) > MAX_LINE


class _Odd(NamedTuple):
    any: re.Pattern[str]
    """What may be a filler or join, without a look beyond the first plane."""
    fillers: re.Pattern[str]
    high: re.Pattern[str]
    """What joins beyond the first plane."""
    piles: re.Pattern[str]
    """More that join than may, those that may as its group."""
    low_piles: re.Pattern[str]
    """The same within the first plane: a plain class, so found fast."""


@cache
def _odd() -> _Odd:
    """Made when text first needs it: a few hundredths of a second."""
    low, *high = (_class_of(char for char in map(chr, codes) if _joins(char)) for codes in _WITH_MARKS)
    # A class beyond the first plane is searched range by range: only for characters that are there.
    beyond = rf"[\U00010000-\U0010ffff](?<=[{''.join(high)}])"
    return _Odd(
        re.compile(rf"[{low}{_FILLERS}\U00010000-\U0010ffff]"),
        re.compile(f"[{_FILLERS}]"),
        re.compile(beyond),
        _piles(f"(?:[{low}]|{beyond})"),
        _piles(f"[{low}]"),
    )


def _piles(joins: str) -> re.Pattern[str]:
    # One before the repeat: what begins with a class is skipped to at once.
    return re.compile(f"({joins}{joins}{{{MAX_COMBINING - 1}}}){joins}+")


def _joins(char: str) -> bool:
    """Whether it is drawn onto the character before it: marks of any class, and inner letters of Hangul."""
    return unicodedata.category(char) in ("Mn", "Me") or "\u1160" <= char <= "\u11ff" or "\ud7b0" <= char <= "\ud7fb"


def _class_of(chars: Iterable[str]) -> str:
    """Ascending characters as ranges of a class of a regular expression; none of them is special there."""
    ranges: list[list[str]] = []
    for char in chars:
        if ranges and ord(char) == ord(ranges[-1][1]) + 1:
            ranges[-1][1] = char
        else:
            ranges.append([char, char])
    return "".join(f"{first}-{last}" for first, last in ranges)


def resume_ignored(began: int | None, handed: int) -> str:
    """Of a trainer that did not go on from the checkpoint that it was handed; empty where it did (None)."""
    if began is None:
        return ""
    return f"the resume did not take: step {began} after it was handed {handed}"


WITHIN = 1
"""Steps that may seem to be missing where a trainer's lines and its checkpoints count from different ends."""


def in_none(reached: int, newest: int | None, within: int = WITHIN) -> str:
    """Which steps are in no checkpoint, from the newest one's to the last that was told of; empty where none is, or no
    more than `within` after one."""
    missing = reached - (newest or 0)
    if missing <= (0 if newest is None else within):
        return ""
    which = f"steps {(newest or 0) + 1}-{reached} are" if missing > 1 else f"step {reached} is"
    return (
        f"{which} in no checkpoint" if newest is None else f"its newest checkpoint is of step {newest}; {which} in none"
    )
