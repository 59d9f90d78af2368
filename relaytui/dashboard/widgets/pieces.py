"""From inked pieces to what Textual draws: cut, padded and coloured lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from relaytui.dashboard.ink import Ink, Piece
from relaytui.wire.text import clean

Cell = tuple[Piece, ...]
DIM = Style(dim=True)
LEAST_NAME = 5
"""Cells of a name under which it is cut as everything else."""


def width_of(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def cut(text: str, width: int) -> str:
    """At most `width` cells; what was longer ends in `…`."""
    if width_of(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 1 else "…"[:width]


def named(cell: Cell, width: int) -> Cell:
    """A cell that ends in a name, which gives way in its middle: names of one family differ at their ends."""
    if not cell or sum(width_of(text) for text, _ in cell) <= width:
        return cell
    *before, (name, ink) = cell
    room = width - sum(width_of(text) for text, _ in before)
    if room < LEAST_NAME:
        return cell
    end = name
    while width_of(end) > (room - 1) // 2:
        end = end[1:]
    return (*before, Piece(set_cell_size(name, room - 1 - width_of(end)).rstrip() + "…" + end, ink))


def safe(text: str) -> str:
    """The last gate before the terminal: whatever an oversight let this far is made harmless here."""
    return text if text.isprintable() else clean(text)


def fit(pieces: Iterable[Piece], width: int, *, right: bool = False) -> list[Piece]:
    """The pieces in exactly `width` cells."""
    kept: list[Piece] = []
    left = width
    for text, ink in pieces:
        if not text:
            continue
        text = safe(text)
        wide = width_of(text)
        if wide > left:
            if left > 0:
                text = cut(text, left)
                kept.append(Piece(text, ink))
                left -= width_of(text)
            elif kept:  # something is missing, and it must be seen to be
                last = kept[-1]
                if not last.text.endswith("…"):
                    room = width_of(last.text) - 1
                    kept[-1] = Piece(set_cell_size(last.text, room) + "…" if room >= 0 else "…", last.ink)
            break
        kept.append(Piece(text, ink))
        left -= wide
    if left > 0:
        pad = Piece(" " * left)
        if right:
            kept.insert(0, pad)
        else:
            kept.append(pad)
    return kept


def spread(left: Sequence[Piece], right: Sequence[Piece], width: int) -> list[Piece]:
    """One line with a left and a right part; the right one gives way first."""
    need = sum(width_of(text) for text, _ in left)
    have = sum(width_of(text) for text, _ in right)
    if not right or need + have + 2 > width:
        return fit(left, width)
    return [*fit(left, width - have), *right]


def folded(pieces: Sequence[Piece], width: int) -> list[list[Piece]]:
    """Words onto as many lines as they need."""
    lines: list[list[Piece]] = [[]]
    used = 0
    for text, ink in pieces:
        for word in text.split(" "):
            if not word:
                continue
            wide = width_of(word)
            if used and used + 1 + wide > width:
                lines.append([])
                used = 0
            if used:
                lines[-1].append(Piece(" "))
                used += 1
            lines[-1].append(Piece(word, ink))
            used += wide
    return lines


def shortened(piece: Piece, width: int, rows: int) -> list[list[Piece]]:
    """A sentence on at most `rows` lines. What gives way is its middle: it begins with what happened and ends with the
    cause. One line is cut as all are."""
    if rows < 2:
        return [[piece]]
    lines = folded([piece], width)
    words = piece.text.split()
    first = 0
    while first < len(words) and width_of(" ".join([*words[: first + 1], "…"])) <= width:
        first += 1
    for start in range(first + 1, len(words)):
        if len(lines) <= rows:
            break
        lines = folded([Piece(" ".join([*words[:first], "…", *words[start:]]), piece.ink)], width)
    return lines[:rows]


def strip_of(pieces: Iterable[Piece], ink: Ink, base: Style, *, width: int, over: Style | None = None) -> Strip:
    """A line as Textual draws it; `base` is the widget's background, `over` lies on top (cursor, dim)."""
    segments = []
    for text, token in pieces:
        if text:
            style = base + ink.style(token)
            segments.append(Segment(safe(text), style + over if over is not None else style))
    return Strip(segments).adjust_cell_length(width, base + over if over is not None else base)
