"""A block of lines whose text is computed from the picture: headers, facts, bars of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from relaytui.dashboard.ink import Ink, Piece
from relaytui.dashboard.widgets.pieces import DIM, fit, strip_of

if TYPE_CHECKING:
    from relaytui.dashboard.app import DashboardApp

Line = Sequence[Piece]


def ink_of(widget: Widget) -> Ink:
    return cast("DashboardApp", widget.app).ink


class Based(Widget):
    """Looks its own background up once a paint; Textual walks all ancestors at every line otherwise."""

    DEFAULT_CSS = ""
    _base: Style | None = None

    @property
    def base(self) -> Style:
        return self._base if self._base is not None else self.rich_style

    def render_lines(self, crop: Region) -> list[Strip]:
        self._base = self.rich_style
        return super().render_lines(crop)


class Lines(Based):
    """`show` what `compose_lines` makes for a width; only lines that became different are painted."""

    DEFAULT_CSS = "Lines { height: 1; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._shown: list[list[Piece]] = []
        self._shown_at = 0  # cells
        self.stale = False

    def compose_lines(self, width: int) -> Sequence[Line]:
        """The lines as they should be now."""
        return ()

    def refresh_content(self) -> None:
        """Look again; paint what changed."""
        width = self.size.width
        if width <= 0:
            return
        before, shown = self._shown, self._look(width)
        for y in range(max(len(before), len(shown))):
            if y >= len(before) or y >= len(shown) or before[y] != shown[y]:
                self.refresh(Region(0, y, width, 1))

    def _look(self, width: int) -> list[list[Piece]]:
        self._shown = [fit(line, width) for line in self.compose_lines(width)]
        self._shown_at = width
        return self._shown

    def set_stale(self, stale: bool) -> None:
        if stale is not self.stale:
            self.stale = stale
            self.refresh()

    def render_lines(self, crop: Region) -> list[Strip]:
        if self._shown_at != (width := self.size.width):  # the first frame, which comes before any event
            self._look(width)
        return super().render_lines(crop)

    def on_resize(self) -> None:
        self.refresh_content()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        base = self.base
        if y >= len(self._shown):
            return Strip.blank(width, base)
        return strip_of(self._shown[y], ink_of(self), base, width=width, over=DIM if self.stale else None)
