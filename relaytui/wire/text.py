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
"""Combining marks kept after one base character; more is only ever an attack on the terminal."""

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
        if unicodedata.combining(char):
            combining += 1
            if combining > MAX_COMBINING:
                continue
        else:
            combining = 0
        if char.isprintable():
            kept.append(char)
    cleaned = "".join(kept)
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"
