"""HDF5 files (Keras weights): the first bytes say where the file ends, and the library refuses one that is shorter."""

from __future__ import annotations

from relay_agent.checkpoints.formats.span import Span
from relay_agent.checkpoints.tree import Torn

MAGIC = b"\x89HDF\r\n\x1a\n"
_END_AT = {0: 40, 1: 44, 2: 28, 3: 28}
"""Where the end-of-file address stands, by the version of the superblock, with addresses of eight bytes."""


def check(span: Span) -> None:
    """Torn where it is shorter than it says. One of a version or a width of addresses not known here passes."""
    head = span.head(64)
    if len(head) < 48:
        raise Torn("it is cut off in its header")
    version = head[8]
    if version in _END_AT and head[13 if version < 2 else 9] == 8:
        at = _END_AT[version]
        end = int.from_bytes(head[at : at + 8], "little")
        if end > span.size:
            raise Torn(f"{end - span.size} of its bytes are missing")
