"""From what the trainer prints to reports: numbered log lines, steps, and a word on a resume that did not take."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

from msgspec.structs import replace

from relay_agent.output.health import Health
from relay_agent.output.lines import Lines, Lot
from relay_agent.output.progress import Progress, Told
from relay_agent.output.standing import well
from relay_agent.reading.sight import Sight
from relay_agent.secret_words import scrub
from relay_agent.spool.lane import Mark
from relay_agent.watchdog.diverging import Bad, LossTrend
from relaytui.wire.clock import Clock
from relaytui.wire.numbers import Number, pack_all
from relaytui.wire.reports import Gap, Log, Step, TelemetryReport

LINES_A_REPORT = 500
CHARACTERS_A_REPORT = 64 << 10
PIECE = 48 << 10
"""Bytes that are made lines of at a time: more would not fit into a processor's cache, nor into memory held already."""
REMEMBERED = 4_096
"""Steps whose metrics are remembered, at most, so that what a line told is not told again from a file."""
RECENT = 16
"""Lines."""


class Follower:
    """Eats bytes, hands reports to `report`, `note`s how far that was, and then calls `wake`, once a piece."""

    def __init__(
        self,
        progress: Progress,
        clock: Clock,
        report: Callable[[TelemetryReport], None],
        note: Callable[[Mark], None],
        wake: Callable[[], None],
    ) -> None:
        self.progress = progress
        self.last_line = ""
        """The last thing the trainer said, for the post-mortem."""
        self.loss: float | None = None
        self.health = Health()
        self.trend = LossTrend()
        self.recent: deque[str] = deque(maxlen=RECENT)
        """The last lines that were shown, for whoever takes them out."""
        self.on_first_step: Callable[[int, bool], None] | None = None
        """With the step, and whether it was told before."""
        self.on_nonfinite: Callable[[int], None] | None = None
        """Once for each stretch of steps whose loss is no number."""
        self.on_bad: Callable[[Bad], None] | None = None
        """Once the loss is bad, and stays so; `trend` says since when."""
        self.waits = asyncio.Event()
        """A later `tick` has something to tell."""
        self._clock = clock
        self._hand_on = report
        self._note = note
        self._muted = self._deaf = False
        self._offset = 0  # bytes read
        self._wake = wake
        self._lines = Lines()
        self._n = 1
        self._read = ""
        self._beside = -1  # the last step that a file told of
        self._told: dict[int, dict[str, float]] = {}

    @property
    def heard(self) -> int:
        """Bytes that the trainer has printed, as far as they came here."""
        return self._offset

    def feed(self, data: bytes) -> None:
        now = self._clock.boot()
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            self._offset += len(piece)
            self._take(self._lines.feed(piece, now), now)

    def replay(self, data: bytes) -> None:
        """What an earlier agent read and told: only what one knows from it is taken up."""
        self._muted = True
        self.feed(data)
        self._muted = False

    def go_on(self, mark: Mark) -> None:
        """After `replay`: from `mark` on everything is told."""
        self._lines.skip()
        self._offset, self._n = mark
        self.progress.forget_pace()

    def begin_log(self, line: int) -> None:
        """Of another trainer of the same attempt: its bytes count anew, its lines from `line` on."""
        self._n = line
        self._note(Mark(0, line))

    def skip(self, lines: int, size: int) -> None:
        """`lines` ends of lines, `size` bytes, were not read; they are in the log."""
        self._offset += size
        begun, now = self._lines.finish(), self._clock.boot()
        self._take(begun, now)
        self._lines.skip()
        lines -= 1 if begun else 0  # the first end belongs to what was begun
        if lines > 0:
            self._hand_on(Gap(self._clock.wall(), self._n, lines))
            self._n += lines
        self._take([], now)

    def hear_no_more(self) -> None:
        """What was printed last may not have come here, so that nobody knows how the loss was at the end."""
        self._deaf = True

    def well(self, step: int) -> bool:
        """Whether a checkpoint of that step was saved while the loss was well, by all that was printed until now."""
        if self._deaf and step >= self.progress.step:
            return False
        return well(step, self.health, self.trend, self.progress, self._lines.standing, self._clock.boot())

    def known(self, name: str, step: int) -> float | None:
        """A metric as it was told last up to a step."""
        at = max((each for each, metrics in self._told.items() if each <= step and name in metrics), default=None)
        return None if at is None else self._told[at][name]

    def tick(self) -> None:
        """Show the state of a bar that was held back."""
        if self._lines.waiting:
            now = self._clock.boot()
            self._take(self._lines.tick(now), now)
        if not self._lines.waiting:
            self.waits.clear()

    def finish(self) -> None:
        now = self._clock.boot()
        self._take(self._lines.finish(), now)
        if (told := self.progress.flush(now)) is not None:
            self._tell_step(told)

    def read_beside(self, sights: Sequence[Sight]) -> None:
        """What files of the trainer's own say, in order; of a step that was passed already only what is new."""
        for sight in sights:
            step = sight.step
            if step is None:
                continue
            metrics = self._new(step, sight.metrics)
            sight = replace(sight, metrics=metrics)
            self._beside = max(self._beside, step)
            if self.progress.first is not None and step <= self.progress.step:
                if sight.total is not None:
                    self.progress.know_total(sight.total)
                if metrics:
                    self._report_step(step, self.progress.total, metrics, None)
            elif (told := self.progress.take(sight, self._clock.boot())) is not None:
                self._tell_step(told)
        if sights:
            self._wake()

    def _take(self, lots: list[Lot], now: float) -> None:
        if lots:
            self._tell(lots, now)
        if self._lines.waiting:
            self.waits.set()
        if not self._muted:
            self._note(Mark(self._offset - self._lines.held, self._n))
            self._wake()

    def _tell(self, lots: list[Lot], now: float) -> None:
        wall = self._clock.wall()
        shown = list(chain.from_iterable(lot.lines for lot in lots if lot.shown))
        size = sum(len(lot.form) or sum(map(len, lot.lines)) for lot in lots if lot.shown)
        for lines in _portions(shown, size):
            if not self._muted:
                self._hand_on(Log(wall, self._n, lines))
            self._n += len(lines)
        self.recent.extend(shown[-RECENT:])
        self.last_line = scrub(next((text for text in reversed(shown) if text.strip()), self.last_line))
        for lot in lots:
            if not lot.whole:
                continue
            for text in self.progress.worthy(lot.lines, lot.form):
                if text == self._read:  # the state of a bar that is now its line
                    continue
                self._read = text
                told = self.progress.see(text, now, lot.nested)
                if told is not None:
                    self._tell_step(told)

    def _tell_step(self, told: Told) -> None:
        step, metrics = told.step, told.metrics
        if self.on_first_step is not None and self.progress.first is not None:
            self.on_first_step(step, self._muted)
            self.on_first_step = None
        self.loss = metrics.get("loss", self.loss)
        if self.health.see(step, metrics) and self.on_nonfinite is not None and not self._muted:
            self.on_nonfinite(step)
        bad = self.trend.see(step, metrics, self.health.sick)
        if bad is not None and self.on_bad is not None and not self._muted:
            self.on_bad(bad)
        if step <= self._beside and metrics:
            metrics = self._new(step, metrics)
            if not metrics:
                return
        self._report_step(step, told.total, metrics, self.progress.rate)

    def _new(self, step: int, metrics: dict[str, float]) -> dict[str, float]:
        """Those of them that were not told of this step."""
        known = self._told.get(step, {})
        return {name: value for name, value in metrics.items() if not _same(known.get(name), value)}

    def _report_step(self, step: int, total: int | None, metrics: dict[str, float], rate: float | None) -> None:
        if metrics:
            before = self._told.setdefault(step, metrics)
            if before is not metrics:
                self._told[step] = before | metrics
            if len(self._told) > REMEMBERED:
                self._told = dict(islice(self._told.items(), REMEMBERED // 4, None))
        if self._muted:
            return
        numbers: dict[str, Number] = metrics  # type: ignore[assignment] # floats are such numbers
        if not math.isfinite(sum(metrics.values())):  # one that is not, or so large a sum
            numbers = pack_all(metrics)
        self._hand_on(Step(self._clock.wall(), step, total, numbers, rate))


def _same(one: float | None, other: float) -> bool:
    """Whether two spellings of a number are of the same: some trainers print four digits of it."""
    return one is not None and (math.isclose(one, other, rel_tol=1e-3) or (math.isnan(one) and math.isnan(other)))


def _portions(lines: list[str], size: int) -> Iterator[list[str]]:
    """Lines in lots that are small enough for one report. `size`: their characters, or more."""
    for start in range(0, len(lines), LINES_A_REPORT):
        lot = lines[start : start + LINES_A_REPORT]
        if size <= CHARACTERS_A_REPORT or sum(map(len, lot)) <= CHARACTERS_A_REPORT:
            yield lot
        else:
            yield from _small(lot)


def _small(lines: list[str]) -> Iterator[list[str]]:
    start = characters = 0
    for end, line in enumerate(lines):
        if end > start and characters + len(line) > CHARACTERS_A_REPORT:
            yield lines[start:end]
            start, characters = end, 0
        characters += len(line)
    yield lines[start:]
