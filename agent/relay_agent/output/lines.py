"""What a trainer prints, as lines: any bytes, any length, however they were cut, never an exception.

A terminal would show bars that redraw themselves by `\\r`, by backspaces, or by going up some rows; here each is one
line that changes, and what it shows is passed on at most every `BAR_EVERY` seconds. Progress is read from states that
are whole, which does not depend on where a read cut them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from relay_agent.reading.forms import of_plain
from relay_agent.secret_words import scrub
from relaytui.wire.text import MAX_LINE, are_clean, are_long, clean, counted

BAR_EVERY = 0.5
"""Seconds between two states of a bar."""
QUIET = 0.5
"""Seconds after which a state that nothing ended is taken for whole: most bars begin with what ends them."""
LINE_BYTES = MAX_LINE * 4
"""Bytes of one line that are kept; the rest is counted. UTF-8 needs at most four a character."""
MAX_ROWS = 32
"""Rows that a block of bars is remembered to have."""

_SIGNS = re.compile(rb"[\r\n]|\x08+|\x1b\[[0-9]{0,4}[AF]")
"""What moves the cursor to where something else stands: of the sequences for that, those that bars use."""
_UP = re.compile(rb"\x1b\[[0-9]{0,4}[AF]")
_HALF = re.compile(rb"(?:\r|\x1b(?:\[[0-9]{0,4})?)\Z")
"""What may be the first half of a sign."""


class Lot(NamedTuple):
    """Lines, or one state of a bar.

    `shown`: for people. `whole`: it ended, so that it may be understood. `nested`: a bar below another one. `form`: of
    many lines, where they are plain (`reading/forms`).
    """

    lines: Sequence[str]
    shown: bool
    whole: bool
    nested: bool = False
    form: bytes = b""


class Lines:
    """Bytes as they come → lots. `now` is any clock of seconds that does not go back."""

    def __init__(self) -> None:
        self._part = b""  # an unfinished line, at most LINE_BYTES
        self._over = 0  # bytes of it that were not kept
        self._half = b""  # half a sign, maybe
        self._fresh = False  # the unfinished line says more than what was passed on as whole
        self._bar = False  # it redraws what stood there before
        self._up = 0  # rows that the cursor is above the lowest one
        self._held: dict[int, str] = {}  # by row from below: what came too soon after the last that was shown
        self._shown: dict[int, str] = {}
        self._bar_at = -BAR_EVERY
        self._fed_at = 0.0

    def feed(self, data: bytes, now: float) -> list[Lot]:
        lots: list[Lot] = []
        if not data:
            return lots
        self._fed_at = now
        data = self._half + data
        self._half = b""
        if b"\r" in data or b"\x1b" in data:
            if half := _HALF.search(data, max(0, len(data) - 8)):
                data, self._half = data[: half.start()], half[0]
            data = data.replace(b"\r\n", b"\n")
        if self._bar or self._held or self._shown or _moves(data):
            self._draw(data, lots)
        else:
            self._lines(data, lots)
        if self._bar and self._fresh:
            self._hold(self._text())
        if self._held:
            lots += self._due(now)
        return lots

    def tick(self, now: float) -> list[Lot]:
        """What is due by now: a state that was held back, and one that nothing ended for a while."""
        lots: list[Lot] = []
        if self._unread and now - self._fed_at >= QUIET:
            self._state(lots)
        due = self._due(now)
        whole = {tuple(lot.lines) for lot in lots}
        return [lot for lot in lots if lot.lines not in [other.lines for other in due]] + [
            lot._replace(whole=tuple(lot.lines) in whole) for lot in due
        ]

    @property
    def waiting(self) -> bool:
        """Whether a later `tick` has something to tell."""
        return bool(self._held) or self._unread

    @property
    def _unread(self) -> bool:
        return self._fresh and (self._bar or self._half == b"\r")

    @property
    def standing(self) -> str:
        """What stands where the cursor is and was not passed on as whole: nothing ended it yet."""
        return self._text() if self._fresh else ""

    @property
    def held(self) -> int:
        """Bytes of the line that is not whole yet."""
        return len(self._part) + self._over + len(self._half)

    def finish(self) -> list[Lot]:
        """The last line, where the trainer did not end it."""
        lots: list[Lot] = []
        self._half = b""
        rows = [self._held[row] for row in sorted(self._held, reverse=True) if row != self._up]
        lots += [Lot((text,), shown=True, whole=False) for text in rows]
        if self._part or self._over or self._up in self._held:
            self._held = {0: self._held[self._up]} if self._up in self._held else {}
            self._shown = {0: self._shown[self._up]} if self._up in self._shown else {}
            self._up = 0
            self._end(lots)
        return [lot for lot in lots if any(lot.lines)]

    def skip(self) -> None:
        """Bytes are left out from here on: what was begun is not continued."""
        self.__init__()  # type: ignore[misc]

    # -- lines ---------------------------------------------------------------------------------------------------

    def _lines(self, data: bytes, lots: list[Lot]) -> None:
        """Nothing in it moves the cursor back."""
        if self._part:
            first, end, data = data.partition(b"\n")
            self._add(first)
            if not end:
                return
            self._end(lots)
        block, end, rest = data.rpartition(b"\n")
        if end:
            lines = block.decode("utf-8", "replace").split("\n")
            if (form := of_plain(block)) and not (_may_be_long(block) and are_long(lines)):
                lots.append(Lot(lines, shown=True, whole=True, form=form))
            elif are_clean(lines):
                lots.append(Lot(lines, shown=True, whole=True))
            elif not are_long(lines):
                lots.append(Lot([clean(line) for line in lines], shown=True, whole=True))
            else:
                for line in block.split(b"\n"):
                    self._add(line)
                    self._end(lots)
        self._add(rest)

    def _add(self, data: bytes) -> None:
        if data:
            room = LINE_BYTES - len(self._part)
            self._over += max(0, len(data) - room)
            self._part += data[:room]
            self._fresh = True

    def _end(self, lots: list[Lot]) -> None:
        """The lowest row ends for good."""
        text = self._text()
        if self._bar and not text.strip():  # the bar was blanked or just ended: its last state is the line
            text, self._fresh = self._held.get(0, ""), False
        if text or not self._bar:
            again = self._bar and text == self._shown.get(0)
            if self._fresh or not again:
                lots.append(Lot((text,), shown=not again, whole=self._fresh or not self._bar))
        if self._bar or self._shown or self._held:
            self._held.pop(0, None)
            self._shown[0] = text
            self._held = {row + 1: held for row, held in self._held.items() if row < MAX_ROWS}
            self._shown = {row + 1: shown for row, shown in self._shown.items() if row < MAX_ROWS}
        self._part, self._over, self._bar, self._fresh = b"", 0, False, False

    def _text(self) -> str:
        text = self._part.decode("utf-8", "replace")
        if len(text) > MAX_LINE:
            text = scrub(text)  # before it is cut in the middle of something
        if not self._over:
            return clean(text)
        more = f" …(+{counted(self._over, 'byte')})"
        return clean(text, MAX_LINE - len(more)) + more

    # -- bars ----------------------------------------------------------------------------------------------------

    def _draw(self, data: bytes, lots: list[Lot]) -> None:
        at = 0
        for sign in _SIGNS.finditer(data):
            self._add(data[at : sign.start()])
            at = sign.end()
            what = data[sign.start()]
            if what == 0x0A:
                self._down(lots)
            elif what == 0x0D:
                self._state(lots)
                self._part, self._over, self._bar = b"", 0, True
            elif what == 0x08:
                self._state(lots)
                self._part, self._over, self._bar = self._part[: sign.start() - sign.end()], 0, True
            else:
                self._state(lots, nested=True)
                rows = int(sign[0][2:-1] or b"1")
                self._up = min(self._up + rows, MAX_ROWS)
                self._part, self._over, self._bar, self._fresh = b"", 0, True, False
        self._add(data[at:])

    def _down(self, lots: list[Lot]) -> None:
        if not self._up:
            self._end(lots)
            return
        self._state(lots)  # a row that stands above another is drawn again
        self._up -= 1
        self._part, self._over, self._bar, self._fresh = b"", 0, True, False

    def _state(self, lots: list[Lot], nested: bool = False) -> None:
        """What stands in this row is whole, and will be written over."""
        if not self._fresh:
            return
        self._fresh = False
        text = self._text()
        if text.strip():
            lots.append(Lot((text,), shown=False, whole=True, nested=nested))
            self._hold(text)

    def _hold(self, text: str) -> None:
        if text.strip() and text != self._shown.get(self._up):
            self._held[self._up] = text

    def _due(self, now: float) -> list[Lot]:
        if not self._held or now - self._bar_at < BAR_EVERY:
            return []
        self._bar_at = now
        lots = [Lot((self._held[row],), shown=True, whole=False) for row in sorted(self._held, reverse=True)]
        self._shown |= self._held
        self._held = {}
        return lots


def _may_be_long(block: bytes) -> bool:
    """Whether a line of it may have more than MAX_LINE bytes: such a one fills one of these stretches."""
    stretch = MAX_LINE // 2
    return any(block.find(b"\n", at, at + stretch) < 0 for at in range(0, len(block) - stretch, stretch))


def _moves(data: bytes) -> bool:
    """Whether anything in it but the ends of lines is a sign."""
    return b"\r" in data or b"\x08" in data or (b"\x1b" in data and _UP.search(data) is not None)
