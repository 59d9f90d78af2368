"""From what the trainer prints to reports: numbered log lines, steps, and a word on a resume that did not take."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator

from relay_agent.health import Health
from relay_agent.output import Lines, Piece
from relay_agent.progress import Progress
from relay_agent.spool import Mark
from relay_agent.watchdog.diverging import Bad, LossTrend
from relaytui.wire.clock import Clock
from relaytui.wire.numbers import pack_all
from relaytui.wire.reports import Gap, Log, Step, TelemetryReport

LINES_A_REPORT = 500
CHARACTERS_A_REPORT = 64 << 10
RECENT = 16
"""Lines."""


class Follower:
    """Eats bytes, hands reports to `report`, `note`s how far that was, and then calls `wake`, once a chunk."""

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
        self._clock = clock
        self._hand_on = report
        self._note = note
        self._muted = False
        self._offset = 0  # bytes read
        self._wake = wake
        self._lines = Lines()
        self._n = 1
        self._read = ""

    @property
    def heard(self) -> int:
        """Bytes that the trainer has printed, as far as they came here."""
        return self._offset

    def feed(self, data: bytes) -> None:
        self._offset += len(data)
        self._take(self._lines.feed(data, self._clock.boot()))

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

    def skip(self, lines: int, size: int) -> None:
        """`lines` ends of lines, `size` bytes, were not read; they are in the log."""
        self._offset += size
        begun = self._lines.finish()
        self._take(begun)
        self._lines.skip()
        lines -= 1 if begun else 0  # the first end belongs to what was begun
        if lines > 0:
            self._report(Gap(self._clock.wall(), self._n, lines))
            self._n += lines
        self._take([])

    def tick(self) -> None:
        """Show the state of a bar that was held back."""
        if self._lines.waiting:
            self._take(self._lines.tick(self._clock.boot()))

    def finish(self) -> None:
        self._take(self._lines.finish())

    def _take(self, pieces: list[Piece]) -> None:
        if pieces:
            self._tell(pieces)
        if not self._muted:
            self._note(Mark(self._offset - self._lines.held, self._n))
            self._wake()

    def _report(self, report: TelemetryReport) -> None:
        if not self._muted:
            self._hand_on(report)

    def _tell(self, pieces: list[Piece]) -> None:
        now, wall = self._clock.boot(), self._clock.wall()
        shown = [piece.text for piece in pieces if piece.shown]
        for lines in _portions(shown):
            self._report(Log(wall, self._n, lines))
            self._n += len(lines)
        self.recent.extend(shown[-RECENT:])
        self.last_line = next((text for text in reversed(shown) if text.strip()), self.last_line)
        for piece in pieces:
            if piece.text == self._read:  # the state of a bar that is now its line
                continue
            self._read = piece.text
            sight = self.progress.see(piece.text, now)
            if sight is None:
                continue
            if self.on_first_step is not None:
                self.on_first_step(sight.step, self._muted)
                self.on_first_step = None
            self.loss = sight.metrics.get("loss", self.loss)
            if self.health.see(sight.step, sight.metrics) and self.on_nonfinite is not None and not self._muted:
                self.on_nonfinite(sight.step)
            bad = self.trend.see(sight.step, sight.metrics, self.health.sick)
            if bad is not None and self.on_bad is not None and not self._muted:
                self.on_bad(bad)
            rate = self.progress.rate
            self._report(
                Step(
                    wall,
                    sight.step,
                    sight.total,
                    pack_all(sight.metrics),
                    rate if rate is not None and math.isfinite(rate) else None,
                )
            )


def _portions(lines: list[str]) -> Iterator[list[str]]:
    """Lines in lots that are small enough for one report."""
    start = characters = 0
    for end, line in enumerate(lines):
        if end > start and (end - start >= LINES_A_REPORT or characters + len(line) > CHARACTERS_A_REPORT):
            yield lines[start:end]
            start, characters = end, 0
        characters += len(line)
    if start < len(lines):
        yield lines[start:]
