"""Text from pods, made harmless: no control sequence, no invisible character, no unbounded line.

Applied when text comes in (commander) and again when it is drawn (dashboard). Cheap for ordinary text:
`str.isprintable` is false for every control, format, surrogate and unassigned character.
"""

from __future__ import annotations

import re
import unicodedata

MAX_LINE = 4000
"""Longest line kept on the wire, in characters. The raw log on the volume keeps everything."""

MAX_COMBINING = 4
"""Characters without a width of their own that are kept after one base character; more is only ever an attack."""
_FILLERS = frozenset("\u115f\u1160\u3164\uffa0")
"""Letters by their category that show nothing."""

# An escape sequence of any family: CSI, the string families (OSC, DCS, SOS, PM, APC) up to their end, or two bytes.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)


def clean(text: str, limit: int = MAX_LINE) -> str:
    """One line of untrusted text as it may be stored and shown; longer ones end in `…`."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isascii() and text.isprintable():
        return text
    text = _ESCAPES.sub("", text).expandtabs(8)
    kept: list[str] = []
    combining = 0
    for char in text:
        if not char.isprintable() or char in _FILLERS:
            continue
        combining = combining + 1 if _joins(char) else 0
        if combining <= MAX_COMBINING:
            kept.append(char)
    cleaned = "".join(kept)
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"


def _joins(char: str) -> bool:
    """Whether it is drawn onto the character before it: marks of any class, and inner letters of Hangul."""
    return unicodedata.category(char) in ("Mn", "Me") or "\u1160" <= char <= "\u11ff" or "\ud7b0" <= char <= "\ud7fb"
