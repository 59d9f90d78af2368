"""Which of many lines may say something, found in a fraction of the time that reading them takes.

Trainers print few kinds of line again and again, so a line is known by its form (`forms`): itself with every digit made
a 0. Where one is printed that is new all the time, lines are looked through by words instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import repeat

from relay_agent.reading.forms import ZEROS
from relay_agent.reading.shapes import WORDS

MAX_FORMS, MAX_FORM = 2_048, 400
"""Forms that are known at a time, and characters of one."""
FEW = 16
"""Lines that are not worth a form."""
MAX_NEW = 32
"""New forms in a lot of lines; where there are more, …"""
PAUSE = 32
"""… as many lots are looked through by words."""
_WORDS = tuple(word.encode() for word in WORDS if word.isascii())


class Worthy:
    def __init__(self) -> None:
        self._forms: dict[bytes, bool] = {}
        self._pause = 0

    def flags(self, lines: Sequence[str], form: bytes = b"") -> Iterator[bool]:
        """Of each line whether one of WORDS stands in it. `form`: theirs, where it is known."""
        if len(lines) >= FEW and not self._pause:
            if not form and (text := "\n".join(lines)).isascii():
                form = text.encode().translate(ZEROS)
            # With their ends: `split` takes twice as long.
            if form and (flags := self._by_forms(BytesIO(form + b"\n").readlines())) is not None:
                return flags
        self._pause = max(0, self._pause - 1)
        return by_words(lines, "\n".join(lines))

    def _by_forms(self, keys: list[bytes]) -> Iterator[bool] | None:
        """None where too many are new."""
        forms = self._forms
        try:
            return iter(list(map(forms.__getitem__, keys)))
        except KeyError:
            new = {key for key in keys if key not in forms}
        if len(new) > MAX_NEW or max(map(len, new)) > MAX_FORM:
            self._pause = PAUSE + 1
            return None
        if len(forms) + len(new) > MAX_FORMS:
            forms.clear()
            new = set(keys)
        for key in new:
            forms[key] = any(word in key for word in _WORDS)
        return map(forms.__getitem__, keys)


def by_words(lines: Sequence[str], text: str) -> Iterator[bool]:
    """`text`: all of them in one, where each word is looked for once."""
    match [word for word in WORDS if word in text]:
        case []:
            return repeat(False, len(lines))
        case [one]:
            return (one in line for line in lines)
        case [one, two]:
            return (one in line or two in line for line in lines)
        case [one, two, three]:
            return (one in line or two in line or three in line for line in lines)
        case words:
            return (any(word in line for word in words) for line in lines)
