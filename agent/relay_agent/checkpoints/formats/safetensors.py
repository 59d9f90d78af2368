"""Weights in the safetensors form: eight bytes with the length of a JSON header, the header, the tensors.

The header names the bytes of every tensor. The library that loads them refuses a file that they do not cover exactly, a
longer one as well as a shorter one, and so does this. A file set to its full size before its bytes came has no header.
Of two tensors of one name it would load the last.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator

from relay_agent.checkpoints.formats.json_text import scalars
from relay_agent.checkpoints.formats.once import Keys
from relay_agent.checkpoints.formats.span import Span
from relay_agent.checkpoints.tree import Check, Torn, never

MAX_HEADER = 25_000_000
_LENGTH = 8
_TWICE = "its header names a tensor twice"


def check(span: Span, poll: Check = never) -> None:
    """Torn unless the tensors of the header fill the rest of the file. There is no deeper check: it holds no sums."""
    if span.size < _LENGTH + 2:
        raise Torn("it is cut off before its header")
    length = int.from_bytes(span.read(0, _LENGTH), "little")
    if not 2 <= length <= MAX_HEADER:
        raise Torn("it has no header of weights")
    if length > span.size - _LENGTH:
        raise Torn("it is cut off in its header")
    if span.read(_LENGTH, 1) != b"{":
        raise Torn("it has no header of weights")
    covered = _covered(span.part(_LENGTH, length), poll)
    missing = covered - (span.size - _LENGTH - length)
    if missing > 0:
        raise Torn(f"{missing} of its bytes are missing")
    if missing < 0:
        raise Torn(f"it is {-missing} bytes too long")


def _covered(header: Span, poll: Check) -> int:
    """Bytes that the tensors fill, from 0 on. Torn where they overlap or leave a gap."""
    starts, ends = array("Q"), array("Q")
    keys, tensor = Keys(), None
    for path, value in scalars(header, poll):
        if len(path) == 3 and path[1] == b'"data_offsets"':
            if not value.isdigit() or len(value) > 18:
                raise Torn("its header is damaged")
            if len(starts) == len(ends):
                if path[0] is tensor:
                    raise Torn(_TWICE)
                starts.append(int(value))
            else:
                ends.append(int(value))
                tensor = path[0]
                keys.add(tensor or b"")
    if keys.twice:
        raise Torn(_TWICE)
    if len(starts) != len(ends) or any(start > end for start, end in zip(starts, ends, strict=True)):
        raise Torn("its header is damaged")
    if not _follow(starts, ends):  # most writers list them as they lie
        # Where starts and ends in order are the same numbers, every byte lies in exactly one tensor.
        starts, ends = array("Q", sorted(starts)), array("Q", sorted(ends))
        if not _follow(starts, ends):
            raise Torn("its header does not cover all of it")
    return ends[-1] if ends else 0


def _follow(starts: array[int], ends: array[int]) -> bool:
    before = 0
    for start, end in zip(starts, ends, strict=True):
        if start != before:
            return False
        before = end
    return True


def index_names(span: Span, poll: Check = never) -> Iterator[str]:
    """Of an index of shards: each file that it says holds weights, once. Torn where it is damaged or names none."""
    if span.size > MAX_HEADER:
        raise Torn("its index is too large")
    seen: set[bytes] = set()
    keys, around = Keys(), None
    for path, value in scalars(span, poll):
        if len(path) != 2 or path[0] != b'"weight_map"':
            continue
        if around is not None and path[0] is not around:
            raise Torn("its index says twice where its weights are")
        around = path[0]
        keys.add(path[1] or b"")
        if value not in seen:
            seen.add(value)
            if value[:1] != b'"' or len(value) > 4096:
                raise Torn("its index is damaged")
            try:
                yield str(json.loads(value))
            except ValueError:
                raise Torn("its index is damaged") from None
    if keys.twice:
        raise Torn("its index names a tensor twice")
    if not seen:
        raise Torn("its index names no file")
