"""What a trainer's lines say together: metrics and the bar that has their step, a count and the epoch it is of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import compress

from msgspec.structs import replace

from relay_agent.reading import bars, mappings, shapes
from relay_agent.reading.forms import Forms
from relay_agent.reading.patterns import Pattern
from relay_agent.reading.prefixes import body
from relay_agent.reading.sight import MAX_METRICS, MAX_STEP, Epoch, Sight
from relay_agent.reading.tables import Table
from relay_agent.reading.worthy import Worthy

_DIGIT = re.compile(r"\d")
WAITS = 40
"""Lines and states of bars that metrics wait for the bar that has their step, before they go with the last one."""


class Reader:
    """Of one attempt, which began at step `start`. Steps come out as counted from the beginning of the training."""

    def __init__(self, start: int = 0, patterns: Sequence[Pattern] = ()) -> None:
        self._start = start
        self._patterns = tuple(patterns)
        self._table = Table()
        self._forms = Forms()
        self._worthy = Worthy()
        self._columns: tuple[str, ...] = ()  # of Ultralytics' rows
        self._epoch: Epoch | None = None  # of lines that count within one
        self._in_epoch = -1  # the last count there
        self._base: int | None = None
        self._of_epoch: int | None = None  # steps of a whole epoch
        self._awaited: dict[str, float] = {}
        self._waited = 0
        self._bar: tuple[int, int | None] | None = None  # the last state of one without description
        self._joined: int | None = None  # the total of that whose metrics came with it
        self._stepped = False

    def worthy(self, lines: Sequence[str], form: bytes = b"") -> Iterator[str]:
        """Those of some lines that `see` may understand: few as a rule. Ask for the next one once it has seen the last:
        while it waits for some line, any other counts. `form`: theirs, where it is known."""
        rest, flags = iter(lines), self._worthy.flags(lines, form)
        few = compress(rest, flags)
        while True:
            if self._patterns or self._awaited or self._table.names:
                text = next(rest, None)
                next(flags, None)
            else:
                text = next(few, None)
            if text is None:
                return
            yield text

    def see(self, text: str, nested: bool = False) -> Sight | None:
        """What is known with this line. A sight without step goes with the step that the trainer is at."""
        for pattern in self._patterns:
            if (sight := pattern.read(text)) is not None:
                return self._place(sight)
        sight = self._forms.known(text)
        if sight is None:
            if len(text) > shapes.MAX_LENGTH:
                return None
            sight = self._read(text)
        if sight is None or (nested and sight.bar and sight.within is None and not sight.metrics):
            return self._wait()  # a bar below another one is of something smaller
        return self._place(sight)

    @property
    def waits(self) -> bool:
        """Metrics wait for the bar that has their step."""
        return bool(self._awaited)

    def flush(self) -> Sight | None:
        """Metrics whose bar never came."""
        metrics, self._awaited, self._waited = self._awaited, {}, 0
        if not metrics or self._bar is None:
            return None
        return Sight(self._bar[0], self._bar[1], metrics, bar=True)

    def _read(self, text: str) -> Sight | None:
        if "poch" in text:
            words = body(text)
            if (epoch := bars.epoch_line(words)) is not None:
                self._epoch, self._in_epoch = Epoch(epoch[0], epoch[1], 1), -1
                return None
            if (columns := bars.ultralytics_columns(words)) is not None:
                self._columns = columns
                return None
        if self._columns and (sight := bars.ultralytics(shapes.plain(text), self._columns)) is not None:
            return sight
        if (sight := self._forms.read(text)) is not None:
            return sight
        if self._table.names and (sight := self._table.row(body(text))) is not None:
            return sight
        if ("tep" in text or "ter" in text) and not _DIGIT.search(text) and self._table.head(body(text)):
            return None
        if "{" in text and (metrics := mappings.evaluation(body(text))) is not None:
            return Sight(None, None, metrics)
        return None

    def _wait(self) -> Sight | None:
        if self._awaited:
            self._waited += 1
            if self._waited > WAITS:
                return self.flush()
        return None

    def _place(self, sight: Sight) -> Sight | None:
        """With the step that counts from the beginning, and with the metrics that waited for it."""
        if sight.unit == "epoch":
            return None if self._stepped else sight
        if sight.within is not None:
            return self._count(sight, sight.within)
        if sight.step is None:
            return self._hold(sight)
        if sight.bar:
            return self._join(sight)
        self._stepped = True
        return sight

    def _hold(self, sight: Sight) -> Sight | None:
        if not sight.awaits:
            return sight
        if len(self._awaited) < 2 * MAX_METRICS:
            self._awaited |= sight.metrics
        self._waited = 0
        return None

    def _join(self, sight: Sight) -> Sight | None:
        step, total = sight.step, sight.total
        assert step is not None
        other = self._joined is not None and total != self._joined
        if self._awaited and not other and not sight.metrics:
            if self._bar is not None and self._bar[1] == total and step < self._bar[0]:
                return None  # it began anew
            self._joined = total
            sight = replace(sight, metrics=self._awaited)
            self._awaited, self._waited = {}, 0
        elif (step, total) == self._bar and not sight.metrics:
            return None  # drawn again
        if not other:
            self._bar = step, total
        self._stepped = True
        return sight

    def _count(self, sight: Sight, within: Epoch) -> Sight | None:
        step, total = sight.step, sight.total
        assert step is not None
        if total is None:
            return None
        if within.number is None:
            if self._epoch is None:
                return None  # no epoch was begun: an evaluation, or a prediction
            if step < self._in_epoch:
                self._epoch = None
                return None
            within, self._in_epoch = self._epoch, step
        number = within.number
        assert number is not None
        if self._base is None:
            self._base = within.base if within.base is not None else self._nearest(number, step, total)
        if self._of_epoch is None or total > self._of_epoch:
            self._of_epoch = total
        at = (number - self._base) * self._of_epoch + step
        if not 0 <= at <= MAX_STEP:
            return None
        of = within.of * self._of_epoch if within.of else None
        self._stepped = True
        return replace(sight, step=at, total=of if of is None or 0 < of <= MAX_STEP else None, within=None)

    def _nearest(self, number: int, step: int, total: int) -> int:
        """Whether epochs count from 0 or from 1, as one can tell from where the attempt began."""
        if number == 0:
            return 0
        return min((0, 1), key=lambda base: abs((number - base) * total + step - self._start))
