"""Progress in a trainer's plain lines: step, total and metrics, from recognised shapes only.

Text that merely mentions a loss (a prompt, a sample, a configuration) must not become one, so a line counts only when
it names its step in one of the shapes of `SHAPES` and says something about it: a total or a metric.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

MAX_LENGTH = 2_000
"""Longer lines are samples and dumps."""
MAX_METRICS = 64
MAX_STEP = 2**53

_NUMBER = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_PLAIN = ("loss", "train_loss", "train/loss", "lr", "learning_rate", "reward", "grad_norm")
"""Names that may stand before their number with nothing but a space between."""
_ALIASES = {
    "learning_rate": "lr",
    "train/lr": "lr",
    "train_loss": "loss",
    "train/loss": "loss",
    "rewards/mean": "reward",
}

_STEP_WORD = r"(?:global[_ ]?step|train[_ ]?step|steps?|iter(?:ation)?)"
_START = r"(?:^|[\]:,|\-–>)]\s*|\s{2,})"
"""What may stand before the word: nothing, or the end of a log prefix."""

_PAIR = re.compile(
    rf"(?<![\w/.])(?P<name>[A-Za-z][\w/.\-]{{0,63}})\s*[=:]\s*['\"]?(?P<value>{_NUMBER})(?![\w.])['\"]?", re.IGNORECASE
)
_NAMED = re.compile(
    rf"(?<![\w/.])(?P<name>{'|'.join(map(re.escape, _PLAIN))})\s+(?P<value>{_NUMBER})(?![\w.])", re.IGNORECASE
)
_QUOTED = re.compile(
    rf"['\"](?P<name>[A-Za-z][^'\"\\]{{0,127}})['\"]\s*:\s*['\"]?(?P<value>{_NUMBER})['\"]?(?=\s*[,}}])", re.IGNORECASE
)
_EVALUATED = re.compile(r"(?:eval|val|valid|validation|test)[_/]", re.IGNORECASE)
"""Metrics of another loop than the training's."""
_EVALUATES = re.compile(r"(?<![\w./\-])(?:eval|evaluat(?:e|ing|ion)|validat(?:e|ing|ion))(?![\w./\-])", re.IGNORECASE)
_BLANKS = re.compile(r"\s{2,}")
_HINT = re.compile(r"step|iter", re.IGNORECASE)


class Sight(NamedTuple):
    """What one line said."""

    step: int
    total: int | None
    metrics: dict[str, float]


def _metrics(text: str, *patterns: re.Pattern[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for pattern in patterns:
        for match in pattern.finditer(text):
            name = match["name"].lower() if match["name"].isupper() or match["name"].istitle() else match["name"]
            name = _ALIASES.get(name, name)
            if len(found) < MAX_METRICS:
                found.setdefault(name, float(match["value"]))
    return found


def _line(match: re.Match[str], text: str) -> Sight | None:
    """`step 120/400 loss 2.3 lr 1e-3`, `step=5 loss=nan`, `step: 5, loss: inf`, `Step [5/9], Loss: 0.3`."""
    if _EVALUATES.search(text[: match.end("step")]):
        return None
    total = int(match["total"]) if match["total"] else None
    rest = text[match.end() :]
    metrics = _metrics(rest, _PAIR, _NAMED)
    if total is not None and not metrics and rest.strip(" .,;:]|\t"):
        return None  # `step 1/3: downloading …` is no progress of training
    return Sight(int(match["step"]), total, metrics)


def _mapping(match: re.Match[str], text: str) -> Sight | None:
    """`{'loss': 2.1, 'step': 3}` as Python or JSON print it, NaN and quoted numbers included."""
    metrics = _metrics(match.group(), _QUOTED)
    step = next((metrics.pop(key) for key in ("step", "global_step", "current_steps") if key in metrics), None)
    total = next((metrics.pop(key) for key in ("total", "max_steps", "total_steps") if key in metrics), None)
    if step is None:
        before = _BEFORE_MAPPING.search(text[: match.start()])
        step = float(before["step"]) if before else None
    if step is None or step != step or not 0 <= step <= MAX_STEP or step != int(step):
        return None
    return Sight(int(step), int(total) if total and 0 < total <= MAX_STEP else None, metrics)


_BEFORE_MAPPING = re.compile(rf"{_STEP_WORD}\s+(?P<step>\d{{1,16}})\s*:?\s*$", re.IGNORECASE)

SHAPES: tuple[tuple[str, re.Pattern[str], Callable[[re.Match[str], str], Sight | None]], ...] = (
    ("mapping", re.compile(r"\{\s*['\"][^{}]{1,2000}\}"), _mapping),
    (
        "line",
        re.compile(
            rf"{_START}{_STEP_WORD}\s*[=:]?\s*\[?\s*(?P<step>\d{{1,16}})(?:\s*/\s*(?P<total>\d{{1,16}}))?(?![\w.]*\w)\]?",
            re.IGNORECASE,
        ),
        _line,
    ),
)
"""Recognised shapes, most telling first. A trainer's own adapter adds to these."""


def read(text: str) -> Sight | None:
    """What a line says about progress; None for nearly all lines."""
    if len(text) > MAX_LENGTH or not _HINT.search(text):
        return None
    text = _BLANKS.sub("  ", text)  # so that no shape can be made to search long runs of blanks again and again
    for _, pattern, understand in SHAPES:
        for match in pattern.finditer(text):
            sight = understand(match, text)
            if sight and sight.step <= MAX_STEP and (sight.total is not None or sight.metrics):
                if sight.total is not None and not 0 < sight.total <= MAX_STEP:
                    sight = sight._replace(total=None)
                return sight
    return None


@dataclass
class _Count:
    """Sightings that named one and the same total."""

    last: int
    trains: bool = False  # one of them told of the training
    advances: int = 0  # since it last went back
    again: bool = False  # it went back: a loop that is run through more than once

    @property
    def established(self) -> bool:
        return self.advances >= 2

    def see(self, step: int) -> None:
        if step < self.last:
            self.advances, self.again = 0, True
        elif step > self.last:
            self.advances += 1
        self.last = step


class _Seen(NamedTuple):
    """Sightings within a grain, as one: when the first and the last came, and the last step."""

    began: float
    at: float
    step: int


WINDOW, SIGHTINGS = 10.0, 10
"""Seconds and sightings that a rate is measured over: both at least, where there are as many."""
GRAIN = 0.25
SHORTEST = 0.5
"""Seconds from which on a rate says anything."""
MAX_COUNTS = 64


class Progress:
    """The progress of one attempt. Times are seconds of any clock that does not go back.

    A trainer may count other things than its steps (an evaluation: `step 10/10 loss 2.0`). The first total that comes
    with what training tells is the training's; another one is taken over only where the steps go on towards it, or
    begin anew once the first is reached.
    """

    def __init__(self, step: int = 0, total: int | None = None) -> None:
        self.step = step
        self.total = total
        self.first: int | None = None
        """The first step seen: where the trainer really began."""
        self.rate: float | None = None
        self.start = step
        self.stride = 0
        """The fewest steps from one line to the next, 0 where there were no two."""
        self._known_total = total is not None
        self._counts: dict[int, _Count] = {}  # by total
        self._other: set[int] = set()  # totals of something else
        self._seen: deque[_Seen] = deque()

    def complete(self, step: int) -> bool:
        """Whether `step` is the last one, for all that is known. That is one below the total for who counts from 0, and
        only a start from the beginning shows who counts from 1. Who prints every tenth step may end between two lines.
        """
        if self.total is None:
            return True
        if self.first is None and step == 0:
            return False
        from_one = self.start == 0 and self.first is not None and self.first > 0
        from_zero = self.first in (0, self.start)
        stride = max(1, self.stride)
        return step >= self.total - (not from_one) or step + stride > self.total - from_zero

    def see(self, text: str, now: float) -> Sight | None:
        """Read one line; what it says, with the total known so far."""
        sight = read(text)
        if sight is None or not self._is_ours(sight):
            return None
        if self.first is None:
            self.first = sight.step
        elif sight.step > self.step:
            self.stride = min(self.stride or MAX_STEP, sight.step - self.step)
        self._pace(sight.step, now)
        self.step = sight.step
        return sight._replace(total=self.total)

    def _is_ours(self, sight: Sight) -> bool:
        """Whether it is about the steps of the training; takes over its total."""
        if sight.metrics and all(map(_EVALUATED.match, sight.metrics)):
            return sight.total is None
        if sight.total is None or self._known_total:
            return True
        count = self._counts.get(sight.total)
        if count is None:
            if len(self._counts) >= MAX_COUNTS:
                return False
            count = self._counts[sight.total] = _Count(sight.step)
        count.see(sight.step)
        count.trains |= bool(sight.metrics)
        if sight.total == self.total:
            return True
        if self.total is not None and not self._goes_on(sight.step, sight.total, count, self._counts[self.total]):
            self._other.add(sight.total)
            return False
        self.total = sight.total
        return True

    def _goes_on(self, step: int, total: int, count: _Count, main: _Count) -> bool:
        """Whether the training counts towards this total from here on."""
        assert self.total is not None
        if not (count.trains and main.trains):
            return count.trains  # lines with nothing but two numbers may be about anything
        if total < self.total or total in self._other:
            return False
        return (
            self.complete(self.step)
            or step == self.step + 1
            or (main.established and (main.again or step >= self.step))
        )

    def forget_pace(self) -> None:
        """What was seen came all at once, and not as it was printed."""
        self.rate = None
        self._seen.clear()

    def _pace(self, step: int, now: float) -> None:
        """Steps since the beginning of a window by its seconds; a step that goes back starts it anew.

        Buffers hand on many lines at once: only how far the steps came in much longer than that tells anything.
        """
        if step < self.step:
            self.forget_pace()
        seen = self._seen
        if seen and now - seen[-1].began <= GRAIN:
            seen[-1] = _Seen(seen[-1].began, now, step)
        elif not seen or step > seen[-1].step:
            seen.append(_Seen(now, now, step))
        while len(seen) > SIGHTINGS and now - seen[1].at >= WINDOW:
            seen.popleft()
        if step > seen[0].step and now - seen[0].at >= SHORTEST:
            self.rate = (step - seen[0].step) / (now - seen[0].at)
