"""The forms of line that a trainer prints again and again, so that each is understood once and then only read off.

A form is a line with every digit made a 0. Shapes look at digits only as such, so two lines of one form mean the same,
with their numbers in the same places. Where these are is found by their values, tried on further lines, and tried again
now and then; what cannot be told so goes through the shapes each time.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from operator import itemgetter

import msgspec

from relay_agent.reading import shapes
from relay_agent.reading.sight import MAX_STEP, NUMBER, Sight, number, whole

MAX_FORMS, MAX_FORM = 256, 1_000
"""Forms that are known at a time, and characters of one."""
TRIALS = 2
"""Lines that a form must be right on before it is believed."""
AGAIN = 256
"""Lines of a form from one such trial to the next later on."""

ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
"""What makes of a line its form."""
_ODD = bytes(set(range(256)) - {*b"\n", *range(0x20, 0x7F)})
_PLAIN_ZEROS = bytes.maketrans(b"123456789" + _ODD, b"0" * 9 + bytes(len(_ODD)))
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
        self._counts = self._counted + self._of
        self._unit, self._bar, self._awaits = like.unit, like.bar, like.awaits
        self._names = tuple(like.metrics)
        self._json = b"{%b}" % b",".join(json.dumps(name).replace("%", "%%").encode() + b":%b" for name in self._names)
        self._in_json = not commas  # its numbers are written as they are there
        self._texts = _taken_out(spans)

    def read(self, line: bytes) -> Sight | None:
        """What a line of this form says; None where its numbers make it one that only its shape understands."""
        texts = self._texts(line)
        if self._in_json:  # all at once, in half the time that it takes one by one
            try:
                metrics = _json_metrics(self._json % texts[self._counts :])
                step = int(texts[0]) if self._counted else None
                return self._sight(step, int(texts[self._counted]) if self._of else None, metrics)
            except ValueError:
                self._in_json = False
        numbers = [number(text.decode()) for text in texts]
        step = whole(numbers[0]) if self._counted else None
        total = whole(numbers[self._counted]) if self._of else None
        if (step is None) is self._counted or (total is None) is self._of:
            return None
        return self._sight(step, total, dict(zip(self._names, numbers[self._counts :], strict=True)))

    def _sight(self, step: int | None, total: int | None, metrics: dict[str, float]) -> Sight | None:
        if step is not None and not 0 <= step <= MAX_STEP:
            return None
        if total is not None and (not 0 < total <= MAX_STEP or (self._bar and step is not None and step > total)):
            return None
        return Sight(step, total, metrics, None, self._unit, self._bar, self._awaits)


def _taken_out(spans: Sequence[tuple[int, int]]) -> Callable[[bytes], tuple[bytes, ...]]:
    """Gives what stands in these places of a line."""
    layout, at = "", 0
    for start, end in spans:
        if start < at:  # in another order than they stand in, which takes longer
            return itemgetter(*(slice(*span) for span in spans))
        layout += f"{start - at}x{end - start}s"
        at = end
    return struct.Struct(layout).unpack_from


_json_metrics = msgspec.json.Decoder(dict[str, float]).decode


class Forms:
    """Of one trainer."""

    def __init__(self) -> None:
        self._forms: dict[bytes, _Form | None] = {}  # None: its lines say nothing

    def known(self, text: str) -> Sight | None:
        """As `shapes.read`, where the line has a form that is believed; else None, which says nothing."""
        if not text.isascii():
            return None
        line = text.encode()
        form = self._forms.get(line.translate(ZEROS))
        if form is None or form.trials:
            return None
        form.reads += 1
        return form.read(line) if form.reads % AGAIN else None

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
        if sight == form.read(text.encode()):
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


def of_plain(data: bytes) -> bytes:
    """The forms of lines, with their ends; empty where anything in them is not printable ASCII."""
    form = data.translate(_PLAIN_ZEROS)
    return b"" if b"\0" in form else form


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
