"""Numbers and times as a person reads them, in few cells."""

from __future__ import annotations

import math
import time

from relaytui.client.words import age, ago, count, duration, size
from relaytui.dashboard.ink import Piece
from relaytui.wire.numbers import Number, unpack

__all__ = [
    "DASH", "age", "ago", "bar", "clock_time", "count", "duration", "number", "number_piece", "per_second", "percent",
    "size", "steps",
]  # fmt: skip

DASH = "–"


def clock_time(at: float) -> str:
    """Local time of day of a commander's timestamp; a timestamp no clock can say gives dashes."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "--:--:--"


def number(value: Number | None) -> str:
    """Four significant digits in at most eight cells."""
    if value is None:
        return DASH
    real = unpack(value)
    if not math.isfinite(real):
        return "nan" if math.isnan(real) else "inf" if real > 0 else "-inf"
    size = abs(real)
    if size == 0:
        return "0"
    if size >= 100_000 or size < 0.0001:
        return f"{real:.1e}"
    if size >= 1_000:
        return f"{real:.0f}"
    if size >= 0.1:
        return f"{real:.{3 if size < 10 else 2 if size < 100 else 1}f}"
    return f"{real:.2g}"


def number_piece(value: Number | None) -> Piece:
    """A metric; one that is no number must be seen."""
    if value is None:
        return Piece(DASH, "faint")
    return Piece(number(value), "text" if math.isfinite(unpack(value)) else "bad")


def steps(step: int, total: int | None) -> str:
    if total is not None:
        return f"{count(step)}/{count(total)}"
    return count(step) if step else DASH  # nothing was heard of any yet


def per_second(rate: float | None) -> str:
    """`12.4/s`, `27/m`, `3/h`"""
    if rate is None or not math.isfinite(rate) or rate < 0:
        return DASH
    if rate == 0:
        return "0/s"
    for span, unit in ((1, "s"), (60, "m"), (3_600, "h")):
        scaled = rate * span
        if scaled >= 1 or unit == "h":
            return f"{scaled:.0f}/{unit}" if scaled >= 100 else f"{scaled:.3g}/{unit}"
    return DASH


def bar(step: int, total: int | None, width: int) -> tuple[Piece, ...]:
    """Progress in half cells; empty where no total is known."""
    if width <= 0:
        return ()
    if not total or total <= 0:
        return (Piece("┄" * width, "bar-rest"),)
    halves = int(min(1.0, max(0.0, step / total)) * width * 2)
    done = "━" * (halves // 2) + ("╸" if halves % 2 else "")
    return (Piece(done, "bar-done"), Piece("─" * (width - len(done)), "bar-rest"))


def percent(step: int, total: int | None) -> str:
    """Rounded down: 100 % is said only when it is."""
    if not total or total <= 0:
        return ""
    return f"{int(min(1.0, max(0.0, step / total)) * 100)}%"
