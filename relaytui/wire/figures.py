"""Numbers as people write them in the environment, in run.yaml and on the command line, read in one way everywhere.

Plain ASCII digits. What one reader takes for this and another for that (`0777`, `1_000`, `1:30`, `0x10`, digits of
other scripts) is refused: a guess would train for another number of steps than was meant, without a word.
"""

from __future__ import annotations

import math
import re

_WHOLE = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,17})\Z")
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?\Z")
_DIGIT = re.compile(r"\d")


def plain_number(text: str) -> float:
    """ValueError where it is no plain, finite number."""
    if not _NUMBER.match(text) or not math.isfinite(number := float(text)):
        raise ValueError("no plain number")
    return number


def plain_whole(text: str) -> int:
    """ValueError where it is no plain whole number of up to 18 digits."""
    if not _WHOLE.match(text):
        raise ValueError("no plain whole number")
    return int(text)


def meant_as_number(text: str) -> bool:
    """Whether somebody may have meant a number by what is no plain one: how to write it is worth a word then."""
    return bool(_DIGIT.match(text.lstrip("+-"))) and len(text) <= 40
