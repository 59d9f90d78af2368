"""How answers are printed: aligned columns for people, JSON for programs, nothing else on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import orjson
from rich.cells import cell_len

from relaytui.wire.numbers import Number
from relaytui.wire.text import clean


def print_json(value: Any) -> None:
    """Rows, or plain values that hold rows, as indented UTF-8 JSON whatever the locale says."""
    data = orjson.dumps(value, default=msgspec.to_builtins, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def printable(path: Path) -> str:
    """A path as text that JSON can carry and a terminal shows as it is; names may hold any bytes."""
    return clean(os.fsencode(path).decode("utf-8", "replace"))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns two blanks apart; widths are terminal cells. Text is cleaned again: a commander may be an older one."""
    lines = [tuple(header), *(tuple(clean(cell, 200) for cell in row) for row in rows)]
    widths = [max(cell_len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def ago(seconds: float) -> str:
    """A span in the largest unit that says enough: `8s`, `12m`, `3h`, `2d`."""
    span = max(0, int(seconds))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if span >= 2 * size or (unit == "m" and span >= 120):
            return f"{span // size}{unit}"
    return f"{span}s"


def number(value: Number | None) -> str:
    """Four significant digits, `nan` and `inf` by name, `-` where nothing was said."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.4g}"
