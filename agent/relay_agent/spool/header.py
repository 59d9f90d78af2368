"""The first record of each spool file: whose it is."""

from __future__ import annotations

from relay_agent.spool.segments import HEADER, Damaged, Segment, pack
from relaytui.wire.codec import encode, parse
from relaytui.wire.errors import RelayError
from relaytui.wire.status import Stream

VERSION = 1


def header(run_id: str, epoch: int, stream: Stream) -> bytes:
    return pack(HEADER, encode([VERSION, run_id, epoch, stream]))


def foreign(segment: Segment, run_id: str, epoch: int, stream: Stream) -> str | None:
    """Why a file is none of this stream's; None where it is."""
    try:
        record = next(segment.records(0, 4096), None)
        if record is None:
            return None
        version, *rest = parse(record.payload) if record.kind == HEADER else [None]
    except (Damaged, OSError, RelayError, ValueError, TypeError):
        return None if segment.first is not None else "it is not readable"
    if version != VERSION:
        return "another version of Relay wrote it"
    return None if rest == [run_id, epoch, stream] else "it is another attempt's"
