"""Checkpoints of torch.distributed.checkpoint: one or more `.distcp` files a rank and `.metadata`, written last.

`.metadata` is a pickle. It lists every piece that was saved as the name of a file, an offset and a length; the end of
the last piece in a file is the file's size. Every piece is a torch archive of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from relay_agent.checkpoints.formats.pickled import FULL, opcodes
from relay_agent.checkpoints.formats.span import Span
from relay_agent.checkpoints.tree import Check, Torn, never

METADATA = ".metadata"
SUFFIX = ".distcp"
MAX_BYTES = 1 << 30
_MAX_PIECES = 2_000_000
_WINDOW = 1 << 20
_OF_NAMES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_SUFFIX = SUFFIX.encode()
_LONGEST = 200
_CARRIED = _LONGEST + len(_SUFFIX)


@dataclass
class Needed:
    """One `.distcp` file: its size, where the metadata tells it, and its pieces as (offset, length)."""

    size: int | None = None
    pieces: list[tuple[int, int]] | None = None


def needed(span: Span, deep: bool = False, poll: Check = never) -> dict[str, Needed]:
    """What `.metadata` says has to lie beside it, by name. A large one tells only names, unless `deep`. Torn where it
    is cut off or damaged."""
    if span.size > MAX_BYTES:
        raise Torn("its metadata is too large")
    if span.tail(1) != b".":
        raise Torn("its metadata is cut off")
    return _walk(span, deep, poll) if deep or span.size <= FULL else _names(span, poll)


def _walk(span: Span, keep_pieces: bool, poll: Check) -> dict[str, Needed]:
    files: dict[str, Needed] = {}
    memo: dict[int, str] = {}  # only what names a file
    stored = 0  # how many things were put in the memo without a number
    last = name = ""
    numbers: list[int] = []
    pieces = 0
    for opcode, argument in opcodes(span, poll):
        if opcode == "MEMOIZE":
            if last:
                memo[stored] = last
            stored += 1
            continue
        if opcode in ("PUT", "BINPUT", "LONG_BINPUT"):
            if last:
                memo[argument] = last
            continue
        last = ""
        found = ""
        if isinstance(argument, str):
            if argument.endswith(SUFFIX):
                last = found = argument
        elif opcode in ("GET", "BINGET", "LONG_BINGET"):
            found = memo.get(argument, "")
        elif name and isinstance(argument, int) and not isinstance(argument, bool) and opcode in _INTEGERS:
            numbers.append(argument)
            if len(numbers) == 2:
                pieces += 1
                if pieces > _MAX_PIECES:
                    raise Torn("its metadata lists too many pieces")
                _add(files[name], numbers[0], numbers[1], keep_pieces)
                name = ""
        if found:
            files.setdefault(found, Needed())
            name, numbers = found, []
    return files


_INTEGERS = frozenset(("INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4"))


def _add(file: Needed, offset: int, length: int, keep: bool) -> None:
    if offset < 0 or length < 0:
        raise Torn("its metadata is damaged")
    file.size = max(file.size or 0, offset + length)
    if keep:
        if file.pieces is None:
            file.pieces = []
        file.pieces.append((offset, length))


def _names(span: Span, poll: Check) -> dict[str, Needed]:
    """The names alone, by looking for them: opcode by opcode it would take minutes."""
    files: dict[str, Needed] = {}
    done, window = 0, b""
    while done < span.size:
        poll()
        count = min(_WINDOW, span.size - done)
        window = window[-_CARRIED:]
        at = max(0, len(window) - len(_SUFFIX) + 1)  # what ended before was seen before
        window += span.read(done, count)
        done += count
        at = window.find(_SUFFIX, at)
        while at >= 0:
            stem = window[max(0, at - _LONGEST) : at]
            name = stem[len(stem.rstrip(_OF_NAMES)) :] + _SUFFIX
            if name[0] == len(name) - 1:  # the length that a pickle puts before a short string is a letter, too
                name = name[1:]
            if name != _SUFFIX:
                files.setdefault(name.decode(), Needed())
            at = window.find(_SUFFIX, at + 1)
    return files
