"""Whether a key stands twice in a JSON object: JSON's readers take the first, the last or none, and what two of them
read differently decides nothing here."""

from __future__ import annotations

import json
from array import array
from contextlib import suppress


class Twice(ValueError):  # noqa: N818 - how often it says it
    """A key stands twice in one object."""


def said_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """As `object_pairs_hook` of json.loads: the object. Twice where it is not all."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        key = next(name for name in found if names.count(name) > 1)
        raise Twice(f"it says {key[:100]!a} twice")
    return found


def check(data: bytes) -> None:
    """Twice where any object of the JSON document in it says a key twice. ValueError or RecursionError where it does
    not read."""

    def look(pairs: list[tuple[str, object]]) -> None:
        said_once(pairs)

    json.loads(data, object_pairs_hook=look)


class Keys:
    """Those of one object, as they are written, of which there may be hundreds of thousands: eight bytes for each."""

    def __init__(self) -> None:
        self._hashes = array("q")

    def add(self, written: bytes) -> None:
        """The key with its quotes."""
        key = written
        if b"\\" in written:
            with suppress(ValueError):
                key = b'"%b"' % str(json.loads(written)).encode("utf-8", "surrogatepass")
        self._hashes.append(hash(key))

    @property
    def twice(self) -> bool:
        """Whether one was added twice. Only those that share a bit with another are looked at as they are."""
        bits = max(64, 64 * len(self._hashes))
        taken, shared = bytearray(bits // 8), set()
        for each in self._hashes:
            byte, bit = divmod(each % bits, 8)
            if taken[byte] & 1 << bit:
                shared.add(each % bits)
            taken[byte] |= 1 << bit
        seen: set[int] = set()
        for each in self._hashes if shared else ():
            if each % bits in shared:
                if each in seen:
                    return True
                seen.add(each)
        return False
