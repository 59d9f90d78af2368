"""The one table for live data: keyed rows, its own header, columns that give way, and repaints of changed rows only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from relaytui.dashboard.actions import Place, widget_bindings
from relaytui.dashboard.format import DASH
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.widgets.lines import Based, ink_of
from relaytui.dashboard.widgets.pieces import DIM, Cell, fit, folded, named, strip_of, width_of

HEADER = 1
EXTRA = 8
"""Columns of this priority and above are shown only where the others have room for what they say."""
COMFORT = 12
"""Cells above its least that a column may claim before such columns are shown."""


class Column(Struct, frozen=True):
    """`width` cells, up to `grow` more where its content needs them, down to `least` where it does not.

    Columns grow in the order of `priority`; where room is short, the highest gives way first.
    """

    key: str
    title: str
    width: int
    priority: int = 0
    grow: int = 0
    right: bool = False
    least: int | None = None
    optional: bool = False
    """Whether it is left out while no row has anything in it."""
    name: bool = False
    """Whether it holds names, which differ at their ends: what does not fit gives way in the middle."""


class Row(Struct, frozen=True):
    """`cells` in the order of all columns, also of those that gave way."""

    key: str
    cells: tuple[Cell, ...]


class _Placed(Struct, frozen=True):
    column: Column
    index: int
    x: int
    width: int


def place_columns(columns: Sequence[Column], needs: Sequence[int], width: int, gap: int) -> list[_Placed]:
    """Which columns fit, in their order, and where; `needs` says how wide the content of each is.

    The most important one is always there, cut if it must be.
    """
    kept = [i for i, column in enumerate(columns) if needs[i] or not column.optional]
    base = [
        column.width if column.least is None else min(column.width, max(column.least, need))
        for column, need in zip(columns, needs, strict=True)
    ]

    def wanted(i: int) -> int:
        return max(base[i], min(needs[i], columns[i].width + columns[i].grow)) if columns[i].grow else base[i]

    def needed() -> int:
        # Columns of little weight do not stay at the price of cutting what the others say; none stays at that of a
        # number, which would be another one.
        extras = any(columns[i].priority >= EXTRA for i in kept)
        room = {i: COMFORT if extras and columns[i].priority < EXTRA else 0 for i in kept}
        comfort = {i: wanted(i) if columns[i].right else base[i] + room[i] for i in kept}
        return sum(min(wanted(i), comfort[i]) for i in kept) + gap * max(0, len(kept) - 1)

    while len(kept) > 1 and needed() > width:
        kept.remove(max(kept, key=lambda i: (columns[i].priority, i)))
    widths = {i: min(base[i], width) for i in kept}
    spare = width - sum(widths.values()) - gap * max(0, len(kept) - 1)
    # Numbers first, then names, which are told apart by all of their letters; words take what is left.
    for i in sorted(kept, key=lambda i: (not columns[i].right, not columns[i].name, columns[i].priority, i)):
        more = max(0, min(wanted(i) - widths[i], spare))
        widths[i] += more
        spare -= more
    placed, x = [], 0
    for i in kept:
        placed.append(_Placed(columns[i], i, x, widths[i]))
        x += widths[i] + gap
    return placed


class Table(Based, ScrollView, can_focus=True):
    """Shows rows in the order given; ordering and filtering are the caller's. The selection follows a row's key."""

    BINDINGS: ClassVar[list[BindingType]] = [*widget_bindings(Place.LIST)]
    DEFAULT_CSS = """
    Table { height: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }
    """

    cursor_key: reactive[str | None] = reactive(None, repaint=False)

    class Moved(Message):
        """The selection is on another row, or on none."""

        def __init__(self, table: Table, key: str | None) -> None:
            super().__init__()
            self.table = table
            self.key = key

        @property
        def control(self) -> Table:
            return self.table

    class Opened(Message):
        """A row was clicked twice."""

        def __init__(self, table: Table, key: str) -> None:
            super().__init__()
            self.table = table
            self.key = key

        @property
        def control(self) -> Table:
            return self.table

    class AtEnd(Message):
        """The selection, or what is seen, is at the last row."""

        def __init__(self, table: Table) -> None:
            super().__init__()
            self.table = table

        @property
        def control(self) -> Table:
            return self.table

    class HeaderClicked(Message):
        def __init__(self, table: Table, column: str) -> None:
            super().__init__()
            self.table = table
            self.column = column

        @property
        def control(self) -> Table:
            return self.table

    def __init__(self, columns: Sequence[Column], *, id: str | None = None, selects: bool = True) -> None:
        super().__init__(id=id)
        self._columns = tuple(columns)
        self._selects = selects
        self.rows: list[Row] = []
        self._at: dict[str, int] = {}
        self._strips: dict[tuple[str, bool], Strip] = {}
        self._placed: list[_Placed] = []
        self._placed_for: tuple[int, tuple[int, ...]] = (-1, ())
        self._needs: tuple[int, ...] = tuple(0 if column.optional else column.width for column in self._columns)
        self._notice: tuple[tuple[Piece, ...], ...] = ()
        self._sorted_by: tuple[str, bool] | None = None
        self.stale = False
        self.follows = False
        """Whether a selection of the first row stays with the first row: of what comes in on top, newest first."""

    # -- what is shown --------------------------------------------------------------------------------------------

    def show(self, rows: list[Row], *, notice: Sequence[Sequence[Piece]] = ()) -> None:
        """Show these rows; `notice` is what to say when there are none."""
        shape_changed = len(rows) != len(self.rows)
        moved = shape_changed or any(new.key != old.key for new, old in zip(rows, self.rows, strict=True))
        before = self.rows
        cursor_before = self.cursor_index
        self.rows = rows
        if moved:
            known = {row.key: row for row in before}
            self._at = {row.key: i for i, row in enumerate(rows)}
            changed = {row.key for row in rows if known.get(row.key) is not row and known.get(row.key) != row}
            gone = known.keys() - self._at.keys()
            for key in changed | gone:
                self._forget(key)
            self._keep_selection(cursor_before)
            needs = tuple(self._need(i, column, rows) for i, column in enumerate(self._columns))
            # Where the same rows are only ordered otherwise no column moves.
            same = not shape_changed and not gone
            self._needs = tuple(map(max, needs, self._needs)) if same else needs
            if shape_changed:
                self.virtual_size = Size(0, len(rows) + HEADER)
            self.refresh()
        else:
            top = self.scroll_offset.y
            bottom = top + self.size.height
            self._make_room([new for new, old in zip(rows, before, strict=True) if new is not old])
            for i, (new, old) in enumerate(zip(rows, before, strict=True)):
                if new is not old and new != old:
                    self._forget(new.key)
                    if top <= i < bottom:
                        self.refresh_lines(i + HEADER, 1)
        said = tuple(tuple(line) for line in notice)
        if said != self._notice:
            self._notice = said
            if not rows:
                self.refresh()

    @property
    def shown(self) -> list[str]:
        """The columns that there is room for; the first is always there."""
        return [place.column.key for place in self._layout()]

    def _need(self, index: int, column: Column, rows: Sequence[Row]) -> int:
        """How many cells the widest content takes, of a column that minds; 0: of an optional one that says nothing."""
        if column.optional and all(row.cells[index][0].text == DASH for row in rows):
            return 0
        if not column.grow and column.least is None:
            return column.width
        return max((sum(width_of(text) for text, _ in row.cells[index]) for row in rows), default=column.width)

    def _make_room(self, changed: list[Row]) -> None:
        """What grew is not cut; what shrank keeps its room, so that columns stand still."""
        if changed:
            needs = (max(have, self._need(i, self._columns[i], changed)) for i, have in enumerate(self._needs))
            if (grown := tuple(needs)) != self._needs:
                self._needs = grown
                self.refresh()

    def set_sorted(self, column: str, reverse: bool) -> None:
        if self._sorted_by != (column, reverse):
            self._sorted_by = (column, reverse)
            self.refresh_lines(self.scroll_offset.y, 1)

    def set_stale(self, stale: bool) -> None:
        if stale is not self.stale:
            self.stale = stale
            self._strips.clear()
            self.refresh()

    def _forget(self, key: str) -> None:
        self._strips.pop((key, False), None)
        self._strips.pop((key, True), None)

    # -- selection ------------------------------------------------------------------------------------------------

    @property
    def cursor_index(self) -> int | None:
        return self._at.get(self.cursor_key) if self.cursor_key is not None else None

    def _keep_selection(self, index_before: int | None) -> None:
        """After rows changed: the same key, or else the row in its place."""
        if self.follows and index_before == 0 and self.rows:
            self.cursor_key = self.rows[0].key
        if not self._selects or self.cursor_key in self._at:
            return
        self.cursor_key = self.rows[min(index_before or 0, len(self.rows) - 1)].key if self.rows else None

    def watch_cursor_key(self, before: str | None, after: str | None) -> None:
        for key in (before, after):
            if key is not None and key in self._at:
                self.refresh_lines(self._at[key] + HEADER, 1)
        self.post_message(self.Moved(self, after))

    def select(self, key: str) -> None:
        if key in self._at:
            self.cursor_key = key
            self._reveal(self._at[key])

    def _reveal(self, index: int) -> None:
        page = max(1, self.scrollable_content_region.height - HEADER)
        top = self.scroll_offset.y
        if index < top:
            self.scroll_to(y=index, animate=False)
        elif index >= top + page:
            self.scroll_to(y=index - page + 1, animate=False)

    def _go(self, index: int) -> None:
        if not self.rows:
            return
        index = max(0, min(index, len(self.rows) - 1))
        if self._selects:
            self.cursor_key = self.rows[index].key
            self._reveal(index)
        else:
            self.scroll_to(y=index, animate=False)
        if index == len(self.rows) - 1:
            self.post_message(self.AtEnd(self))

    def _from(self) -> int:
        return self.cursor_index or 0 if self._selects else self.scroll_offset.y

    def action_move(self, by: int) -> None:
        self._go(self._from() + by)

    def action_page(self, by: int) -> None:
        self._go(self._from() + by * max(1, self.size.height - HEADER - 1))

    def action_first(self) -> None:
        self._go(0)

    def action_last(self) -> None:
        self._go(len(self.rows) - 1)

    def on_click(self, event: events.Click) -> None:
        if event.y < HEADER:
            for placed in self._layout():
                if placed.x <= event.x - 1 <= placed.x + placed.width:
                    self.post_message(self.HeaderClicked(self, placed.column.key))
                    return
            return
        index = event.y - HEADER + self.scroll_offset.y
        if self._selects and 0 <= index < len(self.rows):
            key = self.rows[index].key
            self.cursor_key = key
            if event.chain == 2:
                self.post_message(self.Opened(self, key))

    def on_focus(self) -> None:
        self._strips.clear()
        self.refresh()

    def on_blur(self) -> None:
        self._strips.clear()
        self.refresh()

    # -- drawing --------------------------------------------------------------------------------------------------

    def on_resize(self) -> None:
        self.virtual_size = Size(0, len(self.rows) + HEADER)
        self._strips.clear()
        if (index := self.cursor_index) is not None:
            self._reveal(index)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips.clear()

    def _layout(self) -> list[_Placed]:
        width = self.scrollable_content_region.width
        if (width, self._needs) != self._placed_for:
            self._placed_for = (width, self._needs)
            self._placed = place_columns(self._columns, self._needs, max(1, width - 2), 2 if width >= 50 else 1)
            self._strips.clear()
        return self._placed

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        base = self.base
        placed = self._layout()
        if y < HEADER:
            return self._header(placed, base, width)
        index = y - HEADER + self.scroll_offset.y
        if not self.rows:
            said = self._notice_lines(width - 2)
            if 0 <= y - HEADER - 1 < len(said):
                return strip_of(fit([Piece("  "), *said[y - HEADER - 1]], width), ink_of(self), base, width=width)
            return Strip.blank(width, base)
        if index >= len(self.rows):
            return Strip.blank(width, base)
        row = self.rows[index]
        selected = self._selects and row.key == self.cursor_key
        strip = self._strips.get((row.key, selected))
        if strip is None:
            strip = self._strips[row.key, selected] = self._draw(row, selected, placed, base, width)
        return strip

    def _notice_lines(self, width: int) -> list[Sequence[Piece]]:
        """What is wider goes on in the next line; a shell's comment as one, as it may be pasted."""
        lines: list[Sequence[Piece]] = []
        for line in self._notice:
            if sum(width_of(text) for text, _ in line) <= width:
                lines.append(line)
            elif line[0].text.startswith("# "):
                mark = Piece("# ", line[0].ink)
                rest = [line[0]._replace(text=line[0].text[2:]), *line[1:]]
                lines += [[mark, *each] for each in folded(rest, width - 2)]
            else:
                lines += folded(line, width)
        return lines

    def _header(self, placed: list[_Placed], base: Style, width: int) -> Strip:
        pieces = [Piece(" ")]
        for i, place in enumerate(placed):
            column = place.column
            title = column.title
            ink = "muted"
            if self._sorted_by is not None and self._sorted_by[0] == column.key:
                mark = "▾" if self._sorted_by[1] else "▴"
                title = f"{title}{mark}" if width_of(title) < place.width else title[:-1] + mark
                ink = "strong"
            if i:
                pieces.append(Piece(" " * (place.x - placed[i - 1].x - placed[i - 1].width)))
            pieces.extend(fit([Piece(title, ink)], place.width, right=column.right))
        return strip_of(pieces, ink_of(self), base, width=width)

    def _draw(self, row: Row, selected: bool, placed: list[_Placed], base: Style, width: int) -> Strip:
        ink = ink_of(self)
        focused = selected and self.has_focus
        pieces = [Piece("▌" if focused else "▏" if selected else " ", "title")]
        for i, place in enumerate(placed):
            if i:
                pieces.append(Piece(" " * (place.x - placed[i - 1].x - placed[i - 1].width)))
            cell = row.cells[place.index]
            if place.column.name:
                cell = named(cell, place.width)
            pieces.extend(fit(cell, place.width, right=place.column.right))
        over = DIM if self.stale else None
        if focused or (selected and not ink.plain):
            over = ink.cursor + over if over is not None else ink.cursor
        return strip_of(pieces, ink, base, width=width, over=over)
