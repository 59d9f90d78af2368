"""The line in which one types what rows or lines must contain."""

from __future__ import annotations

from textual.widgets import Input


class FilterInput(Input):
    """One line at the bottom; enter keeps the filter, escape clears it."""

    def __init__(self) -> None:
        super().__init__(placeholder="show only what contains …", id="filter", compact=True)
