"""The one log: a ring of lines, followed until one scrolls up, with what is missing or new said in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.cache import LRUCache
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from relaytui.client.logbuffer import Entry, LogBuffer
from relaytui.dashboard.actions import Place, widget_bindings
from relaytui.dashboard.format import clock_time
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.widgets.lines import Based, ink_of
from relaytui.dashboard.widgets.pieces import DIM, cut, fit, spread, strip_of, width_of
from relaytui.wire.text import clean, counted

HEADER = 1
TIMES_FROM = 64
"""Narrower than this, the lines get the room that the times would take."""
_ERRORS = ("error", "traceback", "exception", "fatal", "oom", "killed", " nan", "segfault")
_WARNS = ("warn", "deprecated", "retry")


@dataclass(frozen=True, slots=True)
class _Row:
    """A line on the screen: part of an entry from character `start`, or (None) a mark of the attempt `epoch`."""

    entry: Entry | None
    epoch: int
    start: int = 0
    end: int | None = None
    missing: int = 0
    unread: bool = False  # missing here, but the commander has them


class LogView(Based, ScrollView, can_focus=True):
    BINDINGS: ClassVar[list[BindingType]] = [*widget_bindings(Place.LOG)]
    DEFAULT_CSS = """
    LogView { height: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }
    """

    class WantsOlder(Message):
        """The oldest line is in sight, and more are asked for."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._buffer = LogBuffer()
        self._rows: list[_Row] = []
        self._seen = (0, 0, 0)  # the buffer's appended, dropped, generation
        self._last: Entry | None = None
        self._matches = 0
        self._strips: LRUCache[tuple[_Row, int], Strip] = LRUCache(1_024)
        self.following = True
        self.wrapping = False
        self.filter = ""
        self.new_below = 0
        self.stale = False
        self.notice: tuple[Piece, ...] = ()
        self._width = 0

    # -- content --------------------------------------------------------------------------------------------------

    def follow_buffer(self, buffer: LogBuffer) -> None:
        if buffer is not self._buffer:
            self._buffer = buffer
            self.refresh_log(anew=True)

    def refresh_log(self, *, anew: bool = False) -> None:
        """Take in what the buffer got since the last look."""
        buffer = self._buffer
        now = (buffer.appended, buffer.dropped, buffer.generation)
        if now == self._seen and not anew:
            return
        appended = now[0] - self._seen[0]
        if anew or now[2] != self._seen[2] or appended > len(buffer.entries):
            self._read_anew()
        else:
            fresh = buffer.entries[len(buffer.entries) - appended :] if appended else []
            rows_before = len(self._rows)
            self._append(fresh)
            if not self.following:
                self.new_below += len(self._rows) - rows_before
            if now[1] != self._seen[1]:
                self._drop_old()
        self._seen = now
        self._sized()

    def _read_anew(self) -> None:
        """Filter, wrapping, width or the middle of the buffer changed. What was on top stays on top."""
        anchor = self._anchor()
        self._rows = []
        self._last = None
        self._matches = 0
        self._strips.clear()
        self._append(self._buffer.entries)
        if not self.following and anchor is not None:
            at = next((i for i, row in enumerate(self._rows) if row.entry is not None and row.entry.key >= anchor), 0)
            self.virtual_size = Size(0, len(self._rows) + HEADER)
            self.scroll_to(y=at, animate=False)

    def _anchor(self) -> tuple[int, int] | None:
        for row in self._rows[self.scroll_offset.y :]:
            if row.entry is not None:
                return row.entry.key
        return None

    def _append(self, entries: list[Entry]) -> None:
        wanted = self.filter.casefold()
        room = self._room()
        for entry in entries:
            if entry.missing:
                if not wanted:
                    self._rows.append(_Row(None, entry.epoch, missing=entry.missing))
                self._last = Entry(entry.epoch, entry.n + entry.missing - 1, 0.0, "")
                continue
            last = self._last
            self._last = entry
            if wanted and wanted not in entry.text.casefold():
                continue
            self._matches += 1
            if not wanted:
                if last is None or last.epoch != entry.epoch:
                    self._rows.append(_Row(None, entry.epoch))
                    if entry.n > 1:
                        self._rows.append(_Row(None, entry.epoch, missing=entry.n - 1, unread=True))
                elif entry.n > last.n + 1:
                    self._rows.append(_Row(None, entry.epoch, missing=entry.n - last.n - 1, unread=True))
            if not self.wrapping or width_of(entry.text) <= room:
                self._rows.append(_Row(entry, entry.epoch))
            else:
                self._rows.extend(
                    _Row(entry, entry.epoch, start, end) for start, end in _wrapped(clean(entry.text), room)
                )

    def _drop_old(self) -> None:
        """Rows of entries that the ring gave up; the view stays where it is looking."""
        if not self._buffer.entries:
            return
        first = self._buffer.entries[0].key
        count = 0
        for row in self._rows:
            if (row.entry is not None and row.entry.key >= first) or (row.entry is None and row.epoch > first[0]):
                break
            count += 1
        if count:
            del self._rows[:count]
            if not self.following:
                self.scroll_to(y=max(0, self.scroll_offset.y - count), animate=False)

    def _sized(self) -> None:
        before = self.virtual_size.height
        self.virtual_size = Size(0, len(self._rows) + HEADER)
        if self.following:
            self.new_below = 0
            if self.virtual_size.height != before or self.scroll_y != self.max_scroll_y:
                self._stick()
                self.call_after_refresh(self._stick)  # a scrollbar that appears changes how much fits
        self.refresh()

    def _stick(self) -> None:
        if self.following and self.scroll_y != self.max_scroll_y:
            self.scroll_to(y=self.max_scroll_y, animate=False)

    # -- moving ---------------------------------------------------------------------------------------------------

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if round(new_value) >= self.max_scroll_y:
            if not self.following:
                self.following = True
                self.new_below = 0
                self.refresh()
        elif new_value < old_value and self.following:
            self.following = False
            self.new_below = 0
            self.refresh()

    def action_scroll(self, by: int) -> None:
        self.scroll_to(y=max(0, self.scroll_offset.y + by), animate=False)

    def action_page(self, by: int) -> None:
        self.action_scroll(by * max(1, self.size.height - HEADER - 1))

    def action_first(self) -> None:
        if self.scroll_offset.y == 0:
            self.post_message(self.WantsOlder())
        elif self._rows:
            self.following = False
            self.scroll_to(y=0, animate=False)

    def action_follow(self) -> None:
        self.following = True
        self.new_below = 0
        self.scroll_to(y=self.max_scroll_y, animate=False)
        self.refresh()

    def action_wrap(self) -> None:
        self.wrapping = not self.wrapping
        self.refresh_log(anew=True)

    def set_filter(self, text: str) -> None:
        if text != self.filter:
            self.filter = text
            self.refresh_log(anew=True)

    def set_stale(self, stale: bool) -> None:
        if stale is not self.stale:
            self.stale = stale
            self._strips.clear()
            self.refresh()

    def on_click(self, event: events.Click) -> None:
        if event.y < HEADER and not self.following:
            self.action_follow()

    # -- drawing --------------------------------------------------------------------------------------------------

    def on_resize(self) -> None:
        width = self.scrollable_content_region.width
        if width != self._width:
            self._width = width
            self.refresh_log(anew=True)
        else:
            self._sized()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips.clear()

    def _room(self) -> int:
        """Cells for the text of a line."""
        width = self._width or 80
        return max(1, width - 2 - (9 if width >= TIMES_FROM else 0))

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        base = self.base
        ink = ink_of(self)
        if y < HEADER:
            return strip_of(self._title(width), ink, base, width=width)
        if not self._rows:
            said = self._empty() if y == HEADER + 1 else ()
            return strip_of([Piece("  "), *said], ink, base, width=width)
        index = y - HEADER + self.scroll_offset.y
        if index >= len(self._rows):
            return Strip.blank(width, base)
        row = self._rows[index]
        strip = self._strips.get((row, width))
        if strip is None:
            strip = strip_of(self._pieces(row, width), ink, base, width=width, over=DIM if self.stale else None)
            self._strips.set((row, width), strip)
        return strip

    def _empty(self) -> tuple[Piece, ...]:
        if self.filter and len(self._buffer):
            return (
                Piece(f"none of {counted(len(self._buffer), 'line')} contains ", "muted"),
                Piece(cut(self.filter, 30)),
                Piece(" · esc shows all", "muted"),
            )
        return self.notice

    def _title(self, width: int) -> list[Piece]:
        left = [Piece(" "), Piece("log", "tab" if self.has_focus else "strong"), Piece("  ")]
        if self.filter:
            left.append(Piece(f"{self._matches:,} of {counted(len(self._buffer), 'line')} with ", "muted"))
            left.append(Piece(cut(self.filter, 24), "key"))
        elif self._rows:
            left.append(Piece(counted(len(self._buffer), "line"), "muted"))
        if self.wrapping:
            left.append(Piece("  wrapped", "muted"))
        if not self._rows:
            right: list[Piece] = []
        elif self.following:
            right = [Piece("following ", "good")]
        elif self.new_below:
            right = [
                Piece(f" {self.new_below:,} new below ", "badge"),
                Piece(" end ", "key"),
                Piece("follows ", "muted"),
            ]
        else:
            right = [Piece("held  ", "warn"), Piece("end ", "key"), Piece("follows ", "muted")]
        return spread(left, right, width)

    def _pieces(self, row: _Row, width: int) -> list[Piece]:
        entry = row.entry
        if entry is None:
            if row.missing:
                word = "not loaded" if row.unread else "gave way"
                said = f" ⋯ {counted(row.missing, 'line')} {word} "
            else:
                said = f" ── epoch {row.epoch} "
            return fit(
                [Piece(said + ("─" * max(0, width - width_of(said) - 1) if not row.missing else ""), "log-mark")], width
            )
        text = clean(entry.text)
        pieces = [Piece(" ")]
        if width >= TIMES_FROM:
            pieces.append(Piece(clock_time(entry.t) + " " if row.start == 0 else " " * 9, "muted"))
        pieces.append(Piece(text[row.start : row.end], _line_ink(text)))
        return fit(pieces, width)


def _line_ink(text: str) -> str:
    low = text[:200].casefold()
    if any(word in low for word in _ERRORS):
        return "log-error"
    if any(word in low for word in _WARNS):
        return "log-warn"
    return "text"


def _wrapped(text: str, room: int) -> list[tuple[int, int]]:
    """Where a text is broken so that each part fits `room` cells."""
    parts, start, used = [], 0, 0
    for i, char in enumerate(text):
        wide = 1 if char.isascii() else width_of(char)
        if used + wide > room and i > start:
            parts.append((start, i))
            start, used = i, 0
        used += wide
    parts.append((start, len(text)))
    return parts
