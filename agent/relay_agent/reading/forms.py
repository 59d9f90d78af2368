"""The forms of line that a trainer prints again and again, so that each is understood once and then only read off.

A form is a line with every digit made a 0. Shapes look at digits only as such, so two lines of one form mean the same,
with their numbers in the same places. Where these are is found by their values, tried on further lines, and tried again
now and then; what cannot be told so goes through the shapes each time.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from relay_agent.reading import shapes
from relay_agent.reading.sight import MAX_STEP, NUMBER, Sight, number

MAX_FORMS, MAX_FORM = 256, 1_000
"""Forms that are known at a time, and characters of one."""
TRIALS = 2
"""Lines that a form must be right on before it is believed."""
AGAIN = 256
"""Lines from one such trial to the next later on."""

_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_TOKENS = re.compile(rf"(?<![\w.]){NUMBER}|(?<=[A-Za-z:=,(\['\"/]){NUMBER}", re.IGNORECASE)
_COUNTS = re.compile(
    rb"(?:step|iter|epoch)\w{0,8}['\"]?\s{0,4}[=:#\[]{0,2}\s{0,4}-?0|0\s?/\s{0,8}0|%\||0it ", re.IGNORECASE
)
"""What a line says nothing of may be because of its numbers: then another of its form is looked at, too."""


class _Form(NamedTuple):
    key: bytes
    step: tuple[int, int] | None
    total: tuple[int, int] | None
    metrics: tuple[tuple[str, int, int], ...]
    like: Sight | None


class Forms:
    """Of one trainer."""

    def __init__(self) -> None:
        self._forms: dict[bytes, _Form] = {}
        self._tried: dict[bytes, int] = {}
        self._reads = 0

    def known(self, text: str) -> Sight | None:
        """As `shapes.read`, where the line has a form that is believed; else None, which says nothing."""
        if not text.isascii():
            return None
        form = self._forms.get(text.encode("ascii").translate(_ZEROS))
        if form is None or form.like is None or self._tried.get(form.key, 0) < TRIALS:
            return None
        self._reads += 1
        return _apply(form, form.like, text) if self._reads % AGAIN else None

    def read(self, text: str) -> Sight | None:
        """As `shapes.read`; learns the form."""
        if not text.isascii() or len(text) > MAX_FORM:
            return shapes.read(text)
        key = text.encode("ascii").translate(_ZEROS)
        form = self._forms.get(key)
        if form is None:
            return self._learn(key, text)
        if form.like is None:
            return None
        sight = shapes.read(text)
        if sight == _apply(form, form.like, text):
            self._tried[key] = self._tried.get(key, 0) + 1
        else:
            del self._forms[key]
        return sight

    def _learn(self, key: bytes, text: str) -> Sight | None:
        sight = shapes.read(text)
        form = _Form(key, None, None, (), None) if sight is None else _form(key, text, sight)
        if form is not None and (sight is not None or not _COUNTS.search(key)):
            if len(self._forms) >= MAX_FORMS:
                self._forms.clear()
                self._tried.clear()
            self._forms[key] = form
            self._tried[key] = 0
        return sight


def _form(key: bytes, text: str, sight: Sight) -> _Form | None:
    """None where one cannot tell which number of the line is which."""
    if sight.within is not None or sight.sure:
        return None
    numbers = [(number(token[0]), token.span()) for token in _TOKENS.finditer(text)]

    def place(value: float, behind: int = 0) -> tuple[int, int] | None:
        return next((span for each, span in numbers if each == value and span[0] >= behind), None)

    step = None if sight.step is None else place(sight.step)
    total = None if sight.total is None else place(sight.total, step[1] if step else 0)
    if (step is None) != (sight.step is None) or (total is None) != (sight.total is None):
        return None
    metrics, behind = [], (step[1] if step and not total else total[1] if total else 0)
    for name, value in sight.metrics.items():  # most stand in the order in which they were read
        found = place(value, behind) or place(value)
        if found is None or any(char.isdigit() for char in name):
            return None
        behind = found[1]
        metrics.append((name, *found))
    return _Form(key, step, total, tuple(metrics), sight)


def _apply(form: _Form, like: Sight, text: str) -> Sight | None:
    step = total = None
    if form.step is not None:
        step = int(number(text[form.step[0] : form.step[1]]))
        if step > MAX_STEP:
            return None
    if form.total is not None:
        total = int(number(text[form.total[0] : form.total[1]]))
        if not 0 < total <= MAX_STEP or (like.bar and step is not None and step > total):
            return shapes.read(text)
    if "," in text:
        metrics = {name: number(text[start:end]) for name, start, end in form.metrics}
    else:
        metrics = {name: float(text[start:end]) for name, start, end in form.metrics}
    return Sight(step, total, metrics, None, like.unit, like.bar, like.awaits)
