"""Rows of the result: a median over rounds, the yardstick of the same rounds, and whether the goal was met."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Goal:
    """Bounds on the value (in the row's unit) and on its ratio to the yardstick. All that are given must hold."""

    at_least: float | None = None
    at_most: float | None = None
    ratio_at_least: float | None = None
    ratio_at_most: float | None = None

    def words(self) -> str:
        parts = [
            f"{sign} {figure(bound)}{suffix}"
            for sign, bound, suffix in (
                ("≥", self.at_least, ""),
                ("≤", self.at_most, ""),
                ("≥", self.ratio_at_least, "×"),
                ("≤", self.ratio_at_most, "×"),
            )
            if bound is not None
        ]
        return " and ".join(parts)

    def met(self, value: float, ratio: float | None) -> bool:
        """A bound on a ratio that was not measured is not met; nor is any by NaN."""
        number = float("nan") if ratio is None else ratio
        return all(
            (
                self.at_least is None or value >= self.at_least,
                self.at_most is None or value <= self.at_most,
                self.ratio_at_least is None or number >= self.ratio_at_least,
                self.ratio_at_most is None or number <= self.ratio_at_most,
            )
        )


@dataclass(frozen=True)
class Yardstick:
    """What a row is measured beside: one value a round, in the row's unit."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True)
class Row:
    name: str
    value: float
    unit: str
    against: str
    """The yardstick's name and median; empty where there is none."""
    ratio: float | None
    """Median over rounds of value / yardstick, both from the same round."""
    goal: str
    met: bool | None
    """None where there is no goal."""


def measured(
    name: str, unit: str, values: Sequence[float], yardstick: Yardstick | None = None, goal: Goal | None = None
) -> Row:
    """The row of one figure from one value a round."""
    value = statistics.median(values)
    ratio = None
    against = ""
    if yardstick is not None:
        ratio = statistics.median(mine / theirs for mine, theirs in zip(values, yardstick.values, strict=True))
        against = f"{yardstick.name} {figure(statistics.median(yardstick.values))}"
    return Row(
        name=name,
        value=rounded(value),
        unit=unit,
        against=against,
        ratio=None if ratio is None else rounded(ratio),
        goal="" if goal is None else goal.words(),
        met=None if goal is None else goal.met(value, ratio),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that at least `share` of them do not exceed."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    rank = -(-len(ordered) * share // 1)  # the ceiling
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]


def rounded(value: float) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{value:.4g}")


def figure(value: float) -> str:
    """A number for people: 105,300 or 0.42."""
    value = rounded(value)
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:g}"


def as_object(rows: Sequence[Row]) -> dict[str, Any]:
    """What `--json` prints."""
    return {"rows": [asdict(row) for row in rows]}


def as_table(rows: Sequence[Row]) -> str:
    """What is printed for people: one row a figure, a missed goal said in capitals."""
    head = ("name", "value", "unit", "beside", "ratio", "goal", "met")
    body = [
        (
            row.name,
            figure(row.value),
            row.unit,
            row.against or "-",
            "-" if row.ratio is None else f"{figure(row.ratio)}×",
            row.goal or "-",
            {True: "yes", False: "MISSED", None: "-"}[row.met],
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in (head, *body)) for column in range(len(head))]
    numeric = {1, 4}

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(head), "  ".join("-" * width for width in widths), *(line(cells) for cells in body)])
