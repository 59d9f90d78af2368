"""Pickles, walked by their opcodes: nothing is built, imported or called, whatever they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from relay_agent.checkpoints.formats.span import Span
from relay_agent.checkpoints.tree import Check, Torn, never

LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")
"""How torch.save began before 1.6: several pickles and then raw bytes. Nothing cheap tells whether all are there."""
FULL = 4 << 20
"""Bytes up to which every opcode is looked at: about a second."""
_WINDOW = 1 << 16
_POLL = 4096


def check(span: Span, poll: Check = never) -> None:
    """Torn where it is cut off. A large one is only asked for its last byte."""
    if span.head(len(LEGACY)) == LEGACY:
        return
    if span.tail(1) != b".":
        raise Torn("it is a pickle that is cut off")
    if span.size <= FULL:
        for _ in opcodes(span, poll):
            pass


def opcodes(span: Span, poll: Check = never) -> Iterator[tuple[str, Any]]:
    """Name and argument of each opcode. Torn where it does not end with its last byte."""
    import pickletools  # half a megabyte that most agents need never

    reader: Any = _Reader(span)
    count = 0
    try:
        for opcode, argument, _ in pickletools.genops(reader):
            count += 1
            if count % _POLL == 0:
                poll()
            yield opcode.name, argument
    except (ValueError, IndexError, OverflowError, KeyError) as error:  # what genops says of bytes that are no pickle
        raise Torn("it is a pickle that is cut off or damaged") from error
    if reader.at != span.size:
        raise Torn("it is a pickle with something behind it")


class _Reader:
    """As a file for genops, which asks for as many bytes as the pickle says: never more than there are."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._window = b""
        self._base = 0
        self.at = 0

    def tell(self) -> int:
        return self.at

    def read(self, count: int = -1) -> bytes:
        left = self._span.size - self.at
        count = left if count < 0 else min(count, left)
        inside = self.at - self._base
        if inside < 0 or inside + count > len(self._window):
            self._base, inside = self.at, 0
            self._window = self._span.read(self.at, min(max(count, _WINDOW), left))
        self.at += count
        return self._window[inside : inside + count]

    def readline(self) -> bytes:
        start = self.at
        line = self.read(_WINDOW)
        end = line.find(b"\n") + 1
        if not end and len(line) == _WINDOW:
            raise ValueError("a line in a pickle is too long")
        self.at = start + (end or len(line))
        return line[: end or len(line)]
