"""The forms of line that a trainer prints again and again, so that each is understood once and then only read off.

A form is a line with every digit made a 0. Shapes look at digits only as such, so two lines of one form mean the same,
with their numbers in the same places. Where these are is found by their values, tried on further lines, and tried again
now and then; what cannot be told so goes through the shapes each time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import itemgetter

import msgspec

from relay_agent.reading import shapes
from relay_agent.reading.sight import NUMBER, Sight, number, whole

MAX_FORMS, MAX_FORM = 256, 1_000
"""Forms that are known at a time, and characters of one."""
TRIALS = 2
"""Lines that a form must be right on before it is believed."""
AGAIN = 256
"""Lines of a form from one such trial to the next later on."""

ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
"""What makes of a line its form."""
_TOKENS = re.compile(rf"(?<![\w.]){NUMBER}|(?<=[A-Za-z:=,(\['\"/]){NUMBER}", re.IGNORECASE)
_COUNTS = re.compile(
    rb"(?:step|iter|epoch)\w{0,8}['\"]?\s{0,4}[=:#\[]{0,2}\s{0,4}-?0|0\s?/\s{0,8}0|%\||0it ", re.IGNORECASE
)
"""What a line says nothing of may be because of its numbers: then another of its form is looked at, too."""


class _Form:
    """One of them: where its numbers stand."""

    def __init__(self, like: Sight, spans: Sequence[tuple[int, int]], commas: bool) -> None:
        """`spans`, two at least, of the step and the total of `like`, where it has them, and of its metrics."""
        self.trials = TRIALS
        """That it has to pass yet before it is believed."""
        self.reads = 0
        self._counted, self._of = like.step is not None, like.total is not None
        self._bar = like.bar
        self._rest = (None, like.unit, like.bar, like.awaits)
        self._names = tuple(like.metrics)
        self._texts = itemgetter(*(slice(*span) for span in spans))
        self._numbers = _one_by_one if commas else _at_once

    def read(self, text: str) -> Sight | None:
        """What a line of this form says; None where its numbers make it one that only its shape understands."""
        texts = self._texts(text)
        try:
            numbers = self._numbers(texts)
        except ValueError:
            self._numbers = _one_by_one
            numbers = _one_by_one(texts)
        step = total = None
        if self._of and ((total := whole(numbers.pop(self._counted), 1)) is None):
            return None
        if self._counted and (step := whole(numbers.pop(0))) is None:
            return None
        if self._bar and total is not None and step is not None and step > total:
            return None
        metrics = dict(zip(self._names, numbers))  # noqa: B905 - as many as the form has, and to check it takes time
        return Sight(step, total, metrics, *self._rest)


_json_numbers = msgspec.json.Decoder(list[float]).decode


def _at_once(texts: Sequence[str]) -> list[float]:
    """In a third of the time that `float` takes for each; ValueError where one is written otherwise than in JSON. None
    has a comma."""
    return _json_numbers(f"[{','.join(texts)}]")


def _one_by_one(texts: Sequence[str]) -> list[float]:
    return [number(text) for text in texts]


class Forms:
    """Of one trainer."""

    def __init__(self) -> None:
        self._forms: dict[bytes, _Form | None] = {}  # None: its lines say nothing

    def known(self, text: str) -> Sight | None:
        """As `shapes.read`, where the line has a form that is believed; else None, which says nothing."""
        form = self._forms.get(_key(text)) if text.isascii() else None
        if form is None or form.trials:
            return None
        form.reads += 1
        return form.read(text) if form.reads % AGAIN else None

    def read(self, text: str) -> Sight | None:
        """As `shapes.read`; learns the form."""
        if not text.isascii() or len(text) > MAX_FORM:
            return shapes.read(text)
        key = _key(text)
        if key not in self._forms:
            return self._learn(key, text)
        form = self._forms[key]
        if form is None:
            return None
        sight = shapes.read(text)
        if sight == form.read(text):
            form.trials = max(0, form.trials - 1)
        else:
            del self._forms[key]
        return sight

    def _learn(self, key: bytes, text: str) -> Sight | None:
        sight = shapes.read(text)
        form = None if sight is None else _form(text, sight)
        if form is not None or (sight is None and not _COUNTS.search(key)):
            if len(self._forms) >= MAX_FORMS:
                self._forms.clear()
            self._forms[key] = form
        return sight


def _key(text: str) -> bytes:
    return text.encode().translate(ZEROS)


def _form(text: str, sight: Sight) -> _Form | None:
    """None where one cannot tell which number of the line is which."""
    if sight.within is not None or sight.sure or any(map(str.isdigit, "".join(sight.metrics))):
        return None
    numbers = [(number(token[0]), token.span()) for token in _TOKENS.finditer(text)]
    spans: list[tuple[int, int]] = []
    behind = 0
    for value in (sight.step, sight.total, *sight.metrics.values()):  # most stand in the order in which they were read
        if value is None:
            continue
        found = [span for each, span in numbers if each == value]
        if not found:
            return None
        spans.append(next((span for span in found if span[0] >= behind), found[0]))
        behind = spans[-1][1]
    commas = any("," in text[start:end] for start, end in spans)
    return _Form(sight, spans, commas) if len(spans) > 1 else None
