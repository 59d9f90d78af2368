"""JSON read piece by piece: a file of any size costs one window of memory, and a cut or damaged one is found out.

NaN and Infinity are accepted, as the files of trainers hold them, and so are several values after one another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from relay_agent.checkpoints.formats.span import Span
from relay_agent.checkpoints.tree import Check, Torn, never

MAX_DEPTH = 64
MAX_TOKEN = 25_000_000
"""Bytes of one string; the metadata of an image model's weights holds strings of megabytes."""
FULL = 1 << 20
"""Bytes up to which a file is read whole without being asked to: a tokenizer of 30 MB lies in every checkpoint."""
_WINDOW = 1 << 16
_LONGEST_WORD = len("-Infinity")
_BLANK = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_TOKEN = re.compile(
    rb'[ \t\r\n]*+(?:("(?:[^"\\\x00-\x1f]++|\\[^\x00-\x1f])*+")([ \t\r\n]*+:)?+|'
    rb"(-?(?:[0-9][0-9.eE+-]*+|Infinity)|NaN|true|false|null)|([{}\[\],]))[ \t\r\n]*+"
)

_VALUE, _FIRST_VALUE, _KEY, _FIRST_KEY, _COMMA = range(5)

Path = list[bytes | None]
"""Where a value lies: per object or list around it the key as it is written, quotes and all; None in a list."""


def check(span: Span, deep: bool = False, poll: Check = never) -> None:
    """Torn where it is no JSON, or cut. A large one is only looked at from both ends, unless `deep`."""
    head, tail = span.head(256).removeprefix(_BOM).lstrip(_BLANK), span.tail(256).rstrip(_BLANK)
    if head[:1] not in (b"{", b"["):
        return  # a lone number or word: nothing tells whether there was more of it
    if tail[-1:] != (b"}" if head[:1] == b"{" else b"]"):
        raise Torn("its JSON is cut off")
    if deep or span.size <= FULL:
        for _ in scalars(span, poll):
            pass


def scalars(span: Span, poll: Check = never) -> Iterator[tuple[Path, bytes]]:
    """Every string, number and word in it as it is written, and where it lies. The path is one list that changes:
    copy what is to be kept. Torn where it is not JSON."""
    kinds = bytearray()  # of the objects and lists around
    path: Path = []
    want = _VALUE
    for match in _tokens(span, poll):
        kind = match.lastindex
        if kind == _IS_KEY and want in (_KEY, _FIRST_KEY):
            path[-1] = match[1]
            want = _VALUE
        elif kind in (_IS_STRING, _IS_WORD) and want in (_VALUE, _FIRST_VALUE):
            yield path, match[kind]
            want = _COMMA if kinds else _VALUE
        elif kind == _IS_MARK:
            want = _after(match[kind], want, kinds, path)
        else:
            raise Torn("it is no JSON")
    if kinds or want != _VALUE:
        raise Torn("its JSON is cut off")


def _after(mark: bytes, want: int, kinds: bytearray, path: Path) -> int:
    """What may follow a mark of punctuation."""
    if mark == b"," and want == _COMMA:
        return _KEY if kinds[-1:] == b"{" else _VALUE
    if mark in (b"{", b"[") and want in (_VALUE, _FIRST_VALUE):
        if len(kinds) >= MAX_DEPTH:
            raise Torn(f"its JSON is nested deeper than {MAX_DEPTH}")
        kinds += mark
        path.append(None)
        return _FIRST_KEY if mark == b"{" else _FIRST_VALUE
    if (mark == b"}" and want in (_FIRST_KEY, _COMMA) and kinds[-1:] == b"{") or (
        mark == b"]" and want in (_FIRST_VALUE, _COMMA) and kinds[-1:] == b"["
    ):
        kinds.pop()
        path.pop()
        return _COMMA if kinds else _VALUE
    raise Torn("it is no JSON")


_IS_STRING, _IS_KEY, _IS_WORD, _IS_MARK = 1, 2, 3, 4


def _tokens(span: Span, poll: Check) -> Iterator[re.Match[bytes]]:
    window, done, step = b"", 0, _WINDOW
    while True:
        at = 0
        ended = done == span.size
        # What ends at the end of the window may go on behind it: a string has its colon there, a number more digits.
        while (match := _TOKEN.match(window, at)) and (match.end() < len(window) or ended):
            at = match.end()
            yield match
        window = window[at:]
        if ended:
            break
        if at == 0 and window:
            rest = window.lstrip(_BLANK)
            if rest and rest[:1] != b'"' and match is None and len(rest) > _LONGEST_WORD:
                raise Torn("it is no JSON")
            step *= 2  # one long string: doubling reads it over twice at most
            if len(window) > MAX_TOKEN:
                raise Torn(f"its JSON has a value over {MAX_TOKEN} bytes")
        else:
            step = _WINDOW
        poll()
        count = min(step, span.size - done)
        more = span.read(done, count)
        window += more if done else more.removeprefix(_BOM)
        done += count
    if window.strip(_BLANK):
        raise Torn("it is no JSON, or cut off")
