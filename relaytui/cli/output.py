"""How answers are printed: aligned columns for people, JSON for programs, nothing else on stdout."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import orjson
from rich.cells import cell_len

from relaytui.wire.numbers import Number
from relaytui.wire.text import clean

GAP = "  "
BREAKS = "/,;="


def print_json(value: Any) -> None:
    """Rows, or plain values that hold rows, as indented UTF-8 JSON whatever the locale says."""
    data = orjson.dumps(value, default=msgspec.to_builtins, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def printable(path: Path) -> str:
    """A path as text that JSON can carry and a terminal shows as it is; names may hold any bytes."""
    return clean(os.fsencode(path).decode("utf-8", "replace"))


class Column(NamedTuple):
    """`weight` 0 always stays; of the others, the highest gives way first where the terminal is narrow.

    `optional`: left out where no row has anything in it and the terminal is narrow.
    `told`: where it gave way, what it says stands before the last column's text.
    `least`: text that goes on in the next line rather than be wider than there is room; numbers and names are whole.
    """

    title: str
    weight: int = 0
    least: int | None = None
    optional: bool = False
    told: bool = False


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Columns two blanks apart; widths are terminal cells. Text is cleaned again: a commander may be an older one."""
    for line in laid_out(columns, rows, terminal_width()):
        click.echo(line)


def laid_out(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    """The lines of a table in `width` cells, of any width where that is None."""
    lines = [tuple(column.title for column in columns), *(tuple(clean(cell, 1_000) for cell in row) for row in rows)]
    natural = [max(cell_len(line[i]) for line in lines) for i in range(len(columns))]
    least = [
        wide if column.least is None else min(wide, column.least) for column, wide in zip(columns, natural, strict=True)
    ]
    kept = list(range(len(columns)))

    def spare() -> int:
        return 0 if width is None else width - sum(least[i] for i in kept) - len(GAP) * (len(kept) - 1)

    if spare() < 0:
        kept = [i for i in kept if not columns[i].optional or any(line[i] != "-" for line in lines[1:])]
    while spare() < 0 and any(columns[i].weight for i in kept):
        kept.remove(max(kept, key=lambda i: (columns[i].weight, i)))
    if given := [i for i, column in enumerate(columns) if column.told and i not in kept]:
        for at, line in enumerate(lines[1:], 1):
            about = ", ".join(line[i] for i in given if line[i] != "-")
            lines[at] = (*line[:-1], f"{about}: {line[-1]}") if about else line
        natural[-1] = max(cell_len(line[-1]) for line in lines)
    widths = dict(zip(kept, (natural[i] if width is None else least[i] for i in kept), strict=True))
    left = max(0, spare())
    for i in kept:
        more = min(natural[i] - widths[i], left)
        widths[i], left = widths[i] + more, left - more
    for line in lines:
        cells = [_folded(line[i], widths[i]) for i in kept]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = (part + " " * (widths[i] - cell_len(part)) for i, part in zip(kept, parts, strict=True))
            yield GAP.join(padded).rstrip()


def _folded(text: str, width: int) -> list[str]:
    """Onto lines of at most `width` cells. Names and numbers stay whole; what is wider than a line goes on after one
    of `BREAKS`, or where it has to."""
    lines = [""]
    for word in text.split():
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
            continue
        while cell_len(word) > width:
            at = max(1, next(at for at in range(len(word), 0, -1) if at == 1 or cell_len(word[:at]) <= width))
            at = max((word.rfind(mark, 1, at) + 1 for mark in BREAKS), default=0) or at
            lines.append(word[:at])
            word = word[at:]
        lines.append(word)
    return [line for line in lines if line] or [""]


def terminal_width() -> int | None:
    """Cells of the terminal that reads stdout, or what COLUMNS says; None where it is a file or a pipe."""
    return shutil.get_terminal_size((0, 0)).columns or None


def number(value: Number | None) -> str:
    """Four significant digits, `nan` and `inf` by name, `-` where nothing was said."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.4g}"
