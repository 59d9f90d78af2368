"""What a trainer prints, as lines: any bytes, any length, `\\n` and `\\r`, never an exception.

A bar that redraws itself with `\\r` is one line that changes: what it shows is passed on at most every
`BAR_EVERY` seconds.
"""

from __future__ import annotations

from typing import NamedTuple

from relaytui.wire.text import MAX_LINE, are_clean, are_long, clean, counted

BAR_EVERY = 0.5
"""Seconds between two states of a bar."""
LINE_BYTES = MAX_LINE * 4
"""Bytes of one line that are kept; the rest is counted. UTF-8 needs at most four a character."""


class Piece(NamedTuple):
    """One line, or one state of a bar; `shown` is False for states that only progress is read from."""

    text: str
    shown: bool


class Lines:
    """Bytes as they come → pieces. `now` is any clock of seconds that does not go back."""

    def __init__(self) -> None:
        self._part = b""  # an unfinished line, at most LINE_BYTES
        self._over = 0  # bytes of it that were not kept
        self._return = False  # the last byte was a \r: a \n next belongs to it
        self._bar = False  # the unfinished line redraws one before it
        self._bar_at = -BAR_EVERY
        self._held: str | None = None  # state of a bar that came too soon after the last
        self._shown = ""  # state of the bar as shown

    def feed(self, data: bytes, now: float) -> list[Piece]:
        if self._return:
            if data[:1] == b"\n":
                data = b"\n" + data[1:]
            elif data:
                data = b"\r" + data
            self._return = not data
        if data.endswith(b"\r"):
            data, self._return = data[:-1], True
        pieces: list[Piece] = []
        data = data.replace(b"\r\n", b"\n")
        first, _, rest = data.partition(b"\n")
        if len(first) == len(data):
            self._line(data, pieces, now)
        else:
            self._line(first, pieces, now)
            self._end(pieces)
            whole, _, rest = rest.rpartition(b"\n") if b"\n" in rest else (None, b"", rest)
            if whole is not None and not self._plain(whole, pieces):
                for line in whole.split(b"\n"):
                    self._line(line, pieces, now)
                    self._end(pieces)
            self._line(rest, pieces, now)
        pieces.extend(self.tick(now))
        return pieces

    @staticmethod
    def _plain(block: bytes, pieces: list[Piece]) -> bool:
        """Whole lines with nothing special about them, all at once; False where there is something."""
        if b"\r" in block:
            return False
        text = block.decode("utf-8", "replace")
        lines = text.split("\n")
        if are_long(lines):
            return False
        if are_clean(lines):
            pieces.extend([Piece(line, True) for line in lines])
        else:
            pieces.extend([Piece(clean(line), True) for line in lines])
        return True

    def tick(self, now: float) -> list[Piece]:
        """The state of a bar that was held back, once it is due."""
        if self._held is None or now - self._bar_at < BAR_EVERY:
            return []
        return self._show(self._held, now)

    @property
    def waiting(self) -> bool:
        """Whether a later `tick` has something to show."""
        return self._held is not None

    @property
    def held(self) -> int:
        """Bytes of the line that is not whole yet."""
        return len(self._part) + self._over + self._return

    def finish(self) -> list[Piece]:
        """The last line, where the trainer did not end it."""
        pieces: list[Piece] = []
        self._return = False
        if self._part or self._over or self._held is not None:
            self._end(pieces)
        return [piece for piece in pieces if piece.text]

    def skip(self) -> None:
        """Bytes are left out from here on: what was begun is not continued."""
        self.__init__()  # type: ignore[misc]

    def _line(self, data: bytes, pieces: list[Piece], now: float) -> None:
        """More of the current line; a \\r in it starts the line anew and makes what stood there a state of a bar."""
        if b"\r" not in data:
            self._add(data)
            if self._bar and self._part.strip():
                self._hold(pieces)
            return
        first, *states = data.split(b"\r")
        self._add(first)
        for state in states:
            if self._part.strip():
                self._bar = True
                self._hold(pieces)
            self._bar = True
            self._part, self._over = b"", 0
            self._add(state)
        if self._part.strip():
            self._hold(pieces)

    def _add(self, data: bytes) -> None:
        room = LINE_BYTES - len(self._part)
        self._over += max(0, len(data) - room)
        self._part += data[:room]

    def _hold(self, pieces: list[Piece]) -> None:
        text = self._text()
        if text and text != self._shown:
            self._held = text
            pieces.append(Piece(text, shown=False))

    def _show(self, text: str, now: float) -> list[Piece]:
        self._held, self._shown, self._bar_at = None, text, now
        return [Piece(text, shown=True)]

    def _end(self, pieces: list[Piece]) -> None:
        text = self._text()
        if self._bar and not text.strip():
            text = self._held or ""  # the bar was blanked or just ended: its last state is the line
        if not (self._bar and (text == self._shown or not text)):
            pieces.append(Piece(text, shown=True))
        self._part, self._over, self._bar, self._held, self._shown = b"", 0, False, None, ""

    def _text(self) -> str:
        part = self._part
        if not self._over:
            return clean(part.decode("utf-8", "replace"))
        more = f" …(+{counted(self._over, 'byte')})"
        return clean(part.decode("utf-8", "replace"), MAX_LINE - len(more)) + more
