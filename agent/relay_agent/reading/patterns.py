"""Patterns of one's own in run.yaml: regular expressions whose named groups say what a line means.

A pattern can need exponential time for a line that nearly fits. Those that repeat what repeats are refused at the
start; any other is stopped when it has taken MAX_SECONDS of the processor for one line, and is not asked again.
"""

from __future__ import annotations

import importlib
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from relay_agent.reading.sight import NUMBER, Sight, named, number, whole
from relaytui.wire.text import clean

MAX_PATTERNS = 16
MAX_PATTERN = 1_000
"""Characters."""
MAX_LINE = 2_000
"""Of longer lines a pattern is shown so many characters."""
MAX_SECONDS = 0.1
GROUP = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_NUMBER = re.compile(rf"\s*({NUMBER})\s*%?\s*\Z", re.IGNORECASE)


class BadPattern(ValueError):  # noqa: N818 - like others of its kind
    """What is wrong with it."""


class _Overtime(Exception):  # noqa: N818 - no error, an interruption
    pass


class Pattern:
    """One of them. `step`, `total` and `epoch` are what they say; every other group is a metric of its name."""

    def __init__(self, text: str, trouble: Callable[[str], None] | None = None) -> None:
        self.text = text
        self._regex = _compiled(text)
        self._trouble = trouble
        self._off = False

    def read(self, line: str) -> Sight | None:
        if self._off:
            return None
        try:
            with _bounded():
                match = self._regex.search(line[:MAX_LINE])
        except _Overtime:
            self._off = True
            if self._trouble is not None:
                self._trouble(
                    f"a pattern of PATTERNS took too long for a line and is not asked again: {clean(self.text, 100)}"
                )
            return None
        if match is None:
            return None
        values: dict[str, float] = {}
        for name, text in match.groupdict().items():
            if text is not None and (value := _NUMBER.match(text)):
                values[name] = number(value[1])
        counted = "step" in values
        step, total = whole(values.pop("step", None)), whole(values.pop("total", None), 1)
        metrics = named(values.items())
        if counted and step is None:
            return None
        return Sight(step, total, metrics, sure=True) if metrics or (step is not None) else None


def patterns(texts: Sequence[str], trouble: Callable[[str], None] | None = None) -> tuple[Pattern, ...]:
    return tuple(Pattern(text, trouble) for text in texts)


def check(text: str) -> str:
    """The pattern as it was; BadPattern where it is none that can be asked of every line."""
    _compiled(text)
    return text


def _compiled(text: str) -> re.Pattern[str]:
    if not text.strip():
        raise BadPattern("is empty")
    if len(text) > MAX_PATTERN:
        raise BadPattern(f"is longer than {MAX_PATTERN} characters")
    try:
        regex = re.compile(text)
    except re.error as error:
        raise BadPattern(f"is no regular expression: {error.msg}{_at(error)}") from None
    except (RecursionError, OverflowError):
        raise BadPattern("is no regular expression that can be used: it is too deep, or repeats too often") from None
    if not regex.groupindex:
        raise BadPattern("has no named group, such as (?P<step>\\d+) or (?P<loss>\\S+)")
    odd = next((name for name in regex.groupindex if not GROUP.fullmatch(name)), None)
    if odd is not None:
        raise BadPattern("has a group whose name is no plain word of at most 64 letters, digits and underscores")
    if _nests(text):
        raise BadPattern("repeats something that repeats, such as (a+)+, which some lines would take for ever with")
    return regex


def _at(error: re.error) -> str:
    return "" if error.pos is None else f", at character {error.pos + 1}"


def _nests(text: str) -> bool:
    """Whether a repeat without bound holds another one."""
    parser: Any = importlib.import_module("re._parser")
    try:
        return any(_endless(item) and any(map(_endless, _within(item[1][2]))) for item in _within(parser.parse(text)))
    except RecursionError:
        return True


_LONG = 30
"""Repeats that may be as many are as good as endless."""


def _endless(item: tuple[Any, Any]) -> bool:
    return str(item[0]) in ("MAX_REPEAT", "MIN_REPEAT") and int(item[1][1]) > _LONG


def _within(tree: Any) -> Iterator[tuple[Any, Any]]:
    """All items of a parsed expression, outer ones first."""
    for item in tree:
        yield item
        argument = item[1]
        parts = argument if isinstance(argument, tuple | list) else (argument,)
        for part in parts:
            if hasattr(part, "data") and hasattr(part, "state"):
                yield from _within(part)
            elif isinstance(part, list):
                for branch in part:
                    if hasattr(branch, "data") and hasattr(branch, "state"):
                        yield from _within(branch)


# -- a bound on the work -------------------------------------------------------------------------------------------

_armed = False


def _ring(number: int, frame: FrameType | None) -> None:
    if _armed:
        raise _Overtime


@contextmanager
def _bounded() -> Iterator[None]:
    """_Overtime once what is done within took MAX_SECONDS of the processor. Elsewhere than in the main thread, where no
    signal comes, there is no bound."""
    global _armed
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGVTALRM) is not _ring:
        signal.signal(signal.SIGVTALRM, _ring)
    _armed = True
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS)
        yield
    finally:
        _armed = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
