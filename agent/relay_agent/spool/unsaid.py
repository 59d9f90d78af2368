"""What is secret does not get into a spool: there it would stay, and go to the commander from there."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from relay_agent.secret_words import hold, scrub_deep
from relay_agent.spool.segments import REPORT, pack, records
from relaytui.wire.codec import decode, encode
from relaytui.wire.errors import RelayError
from relaytui.wire.reports import AnyReport

_WORDS = frozenset({"lines", "message", "data", "error", "metrics"})
"""Fields that hold what somebody said. In the others are names, which have to stay what they are."""


def scrubbed(data: bytes) -> bytes:
    """Whole records, of which those that hold a secret are made anew."""
    if not hold(data):
        return data
    return b"".join(pack(record.kind, _told(record.kind, record.payload)) for record in records(data, 0, whole=True))


def _told(kind: bytes, payload: bytes) -> bytes:
    if kind != REPORT or not hold(payload):
        return payload
    try:
        report: Any = decode(payload, AnyReport)  # type: ignore[arg-type]  # a union is a type to msgspec
    except RelayError:
        return payload
    return encode(without_secrets(report))


def without_secrets(report: Struct) -> Struct:
    fields = [name for name in report.__struct_fields__ if name in _WORDS]
    return replace(report, **{name: scrub_deep(getattr(report, name)) for name in fields})
