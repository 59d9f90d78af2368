"""Rows below a heading: `| step | loss | lr |` and `| 120 | 0.3512 | 3e-4 |`, with pipes, commas, tabs or blanks."""

from __future__ import annotations

import re

from relay_agent.reading.sight import MAX_STEP, NUMBER, Sight, evaluated, named, number

MAX_OTHER = 500
"""Lines that are no rows, after which a heading is forgotten."""
MAX_COLUMNS = 32

_STEPS = ("step", "steps", "global_step", "global step", "iter", "iteration", "train_step")
_KNOWN = re.compile(r"(?:\w+[ _/])?loss|lr|learning[ _]rate|reward|grad[ _]norm|accuracy|acc|ppl", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z][\w /.%()\-]{0,40}")
_VALUE = re.compile(NUMBER, re.IGNORECASE)
_PIPES = str.maketrans("│┃║", "|||")
_BLANKS = re.compile(r"\s{2,}|\t")


class Table:
    """The table that a trainer prints, if it prints one."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        """Of its columns, once there is one."""
        self._by = ""
        self._step = 0
        self._others = 0

    def head(self, text: str) -> bool:
        """Whether it is a heading."""
        for by, cells in _ways(text):
            if not 2 <= len(cells) <= MAX_COLUMNS or not all(map(_NAME.fullmatch, cells)):
                continue
            lower = [cell.lower() for cell in cells]
            step = next((at for at, name in enumerate(lower) if name in _STEPS), None)
            if step is not None and any(map(_KNOWN.fullmatch, lower)):
                self.names, self._by, self._step, self._others = tuple(cells), by, step, 0
                return True
        return False

    def row(self, text: str) -> Sight | None:
        cells = _cells(text, self._by)
        if len(cells) != len(self.names) or not _VALUE.fullmatch(cells[self._step]):
            self._others += 1
            if self._others > MAX_OTHER:
                self.names = ()
            return None
        step = number(cells[self._step])
        if step != step or not 0 <= step <= MAX_STEP or step != int(step):
            return None
        metrics = named(
            (name, number(cell))
            for at, (name, cell) in enumerate(zip(self.names, cells, strict=True))
            if at != self._step and _VALUE.fullmatch(cell)
        )
        if not metrics or (evaluated(metrics) and "loss" not in metrics):
            return None
        self._others = 0
        return Sight(int(step), None, metrics)


def _ways(text: str) -> list[tuple[str, list[str]]]:
    return [(by, _cells(text, by)) for by in ("|", ",", " ") if by == " " or by in text or "│" in text or "┃" in text]


def _cells(text: str, by: str) -> list[str]:
    text = text.strip()
    if by == "|":
        text = text.translate(_PIPES).strip("|")
        return [cell.strip() for cell in text.split("|")]
    if by == ",":
        return [cell.strip() for cell in text.split(",")]
    cells = _BLANKS.split(text)
    return cells if len(cells) > 1 else text.split()
