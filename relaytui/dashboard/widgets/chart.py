"""A line chart in braille dots, two by four to a cell: the extremes of every column, gaps where there is nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from textual.strip import Strip

from relaytui.client.curve import Curve, Line
from relaytui.dashboard.format import count, number
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.widgets.lines import Based, ink_of
from relaytui.dashboard.widgets.pieces import DIM, cut, fit, spread, strip_of, width_of

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_MIN_PLOT = 4
"""Cells in each direction below which nothing can be read off a plot."""


@dataclass(frozen=True)
class Frame:
    """What part of the plane is drawn."""

    low_step: int
    high_step: int
    low: float
    high: float


def frame_of(lines: Sequence[Line]) -> Frame | None:
    """All finite points, a flat line in the middle; None where there are none."""
    steps = [step for line in lines for step in (line.steps[0], line.steps[-1]) if line.steps]
    values = [value for line in lines for value in line.values if math.isfinite(value)]
    if not steps or not values:
        return None
    low, high = min(values), max(values)
    if high - low < 1e-12 * max(1.0, abs(high)):
        pad = abs(high) * 0.1 or 1.0
        low, high = low - pad, high + pad
    low_step, high_step = min(steps), max(steps)
    return Frame(low_step, max(high_step, low_step + 1), low, high)


def plot(line: Line, frame: Frame, columns: int, rows: int) -> dict[tuple[int, int], int]:
    """Dots of one line as {(cell x, cell y): bits}, in a plot of that many cells."""
    wide, high = columns * 2, rows * 4
    cells: dict[tuple[int, int], int] = {}

    def column_of(step: int) -> int:
        return min(wide - 1, max(0, round((step - frame.low_step) / (frame.high_step - frame.low_step) * (wide - 1))))

    def row_of(value: float) -> int:
        # Halves: the distance of two finite numbers may be more than a float holds.
        part = (frame.high / 2 - value / 2) / (frame.high / 2 - frame.low / 2)
        return min(high - 1, max(0, round(part * (high - 1))))

    def stroke(x: int, top: int, bottom: int) -> None:
        for y in range(top, bottom + 1):
            key = (x // 2, y // 4)
            cells[key] = cells.get(key, 0) | _DOTS[x % 2][y % 4]

    # Lowest and highest per column of dots, so that no spike is lost however many points there are.
    buckets: list[tuple[int, float, float, float, float]] = []  # x, first, last, low, high
    broken: set[int] = set()  # columns after which the line does not go on
    for step, value in zip(line.steps, line.values, strict=True):
        x = column_of(step)
        if not math.isfinite(value):
            if buckets:
                broken.add(buckets[-1][0])
            continue
        if buckets and buckets[-1][0] == x:
            _, first, _, low, top = buckets[-1]
            buckets[-1] = (x, first, value, min(low, value), max(top, value))
        else:
            buckets.append((x, value, value, value, value))
    previous: tuple[int, float] | None = None
    for x, first, last, low, top in buckets:
        if previous is not None and previous[0] not in broken:
            px, pvalue = previous
            start, end = row_of(pvalue), row_of(first)
            for between in range(px + 1, x):
                y = round(start + (end - start) * (between - px) / (x - px))
                stroke(between, y, y)
            if x - px == 1 and abs(end - start) > 1:
                middle = (start + end) // 2
                stroke(px, min(start, middle), max(start, middle))
                stroke(x, min(middle, end), max(middle, end))
        stroke(x, row_of(top), row_of(low))
        previous = (x, last)
    return cells


class Chart(Based):
    """Draws a curve: the newest attempt in front, what earlier ones did behind it, faint."""

    DEFAULT_CSS = "Chart { height: 1fr; }"

    def __init__(self, title: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._title = title
        self._curve: Curve | None = None
        self._seen: tuple[int, int] = (-1, -1)
        self._drawn: list[list[Piece]] = []
        self.stale = False

    def show(self, curve: Curve) -> None:
        """Draw this curve; nothing is done where it is as it was."""
        seen = (id(curve), curve.version)
        if seen == self._seen:
            return
        self._seen, self._curve = seen, curve
        self._redraw()

    def set_stale(self, stale: bool) -> None:
        if stale is not self.stale:
            self.stale = stale
            self.refresh()

    def on_resize(self) -> None:
        self._redraw()

    def _redraw(self) -> None:
        self._drawn = self._draw(self.size.width, self.size.height)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        pieces = self._drawn[y] if y < len(self._drawn) else [Piece(" " * width)]
        return strip_of(pieces, ink_of(self), self.base, width=width, over=DIM if self.stale else None)

    def _draw(self, width: int, height: int) -> list[list[Piece]]:
        lines = sorted(self._curve.lines.items()) if self._curve is not None else []
        shown = [(epoch, line) for epoch, line in lines if line.steps]
        frame = frame_of([line for _, line in shown])
        title = [Piece(" "), Piece(self._title, "strong")]
        if frame is None:
            said = "no numbers yet: they appear with the first step" if not shown else "no finite value so far"
            return [
                fit(title, width),
                fit([Piece("")], width),
                fit([Piece(f"  {cut(said, max(1, width - 3))}", "muted")], width),
            ]
        values = [value for value in shown[-1][1].values if math.isfinite(value)]
        lowest = min(values, default=math.nan)
        last = shown[-1][1].values[-1]
        right = [
            Piece(number(last) if math.isfinite(last) else "nan", "strong" if math.isfinite(last) else "bad"),
            Piece(f"  lowest {number(lowest)} ", "muted"),
        ]
        labels = [number(frame.high), number(frame.low)]
        gutter = max(width_of(label) for label in labels) + 1
        columns, rows = width - gutter - 2, height - 2
        if columns < _MIN_PLOT or rows < 2:
            return [spread(title, right, width)]
        drawn = [spread(title, right, width)]
        old: dict[tuple[int, int], int] = {}
        for _, line in shown[:-1]:
            for key, bits in plot(line, frame, columns, rows).items():
                old[key] = old.get(key, 0) | bits
        new = plot(shown[-1][1], frame, columns, rows)
        for y in range(rows):
            label = labels[0] if y == 0 else labels[1] if y == rows - 1 else ""
            pieces = [Piece(f"{label:>{gutter}}", "muted"), Piece("┤" if label else "│", "faint")]
            pieces.extend(_runs(old, new, y, columns))
            drawn.append(fit(pieces, width))
        drawn.append(fit(_steps_axis(frame, gutter, columns), width))
        return drawn


def _runs(old: dict[tuple[int, int], int], new: dict[tuple[int, int], int], y: int, columns: int) -> list[Piece]:
    """One row of the plot as stretches of one ink."""
    pieces: list[Piece] = []
    text, ink = "", ""
    for x in range(columns):
        bits = new.get((x, y), 0)
        now = "chart-line" if bits else "chart-old"
        bits |= old.get((x, y), 0) if not bits else 0
        if now != ink and text:
            pieces.append(Piece(text, ink))
            text = ""
        ink = now
        text += chr(0x2800 + bits) if bits else " "
    pieces.append(Piece(text, ink))
    return pieces


def _steps_axis(frame: Frame, gutter: int, columns: int) -> list[Piece]:
    first, last = count(frame.low_step), count(frame.high_step)
    pad = columns - len(first) - len(last)
    middle = count((frame.low_step + frame.high_step) // 2)
    if pad > len(middle) + 6:
        left = (columns - len(middle)) // 2 - len(first)
        body = f"{first}{' ' * left}{middle}{' ' * (columns - len(first) - left - len(middle) - len(last))}{last}"
    elif pad > 0:
        body = f"{first}{' ' * pad}{last}"
    else:
        body = last
    return [Piece(" " * (gutter + 1)), Piece(body, "muted")]
