"""Frames from agents, decoded: one pass for most, two for reports, whose JSON array is also what gets stored."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from relaytui.wire.bounds import Token
from relaytui.wire.errors import RelayError
from relaytui.wire.ids import Epoch, Id, Seq
from relaytui.wire.messages import MAX_REPORTS, Acquire, AgentMessage, Hello, Message, OrderAck, Register, Renew, Skip
from relaytui.wire.reports import AnyReport
from relaytui.wire.status import Stream
from relaytui.wire.text import clean


class Envelope(Message, frozen=True, tag="reports"):
    """`Reports` with its array still as bytes. A test holds the two to the same fields."""

    run_id: Id
    epoch: Epoch
    token: Token
    stream: Stream
    first_seq: Seq
    reports: msgspec.Raw


class Frame(NamedTuple):
    """Reports of one stream: as objects, and as the JSON array they came in."""

    run_id: str
    epoch: int
    token: str
    stream: Stream
    first_seq: int
    reports: list[AnyReport]
    raw: bytes


# Unions are not types to mypy, so the decoders are given theirs by hand.
_message: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    Hello | Acquire | Renew | Register | Envelope | Skip | OrderAck
)
_reports: msgspec.json.Decoder[list[AnyReport]] = msgspec.json.Decoder(
    Annotated[list[AnyReport], Meta(min_length=1, max_length=MAX_REPORTS)]
)


def read_frame(data: bytes) -> AgentMessage | Frame:
    """RelayError `bad_json` or `bad_field` says what is wrong."""
    try:
        message = _message.decode(data)
        if type(message) is not Envelope:
            other: AgentMessage = message
            return other
        raw = bytes(message.reports)
        reports = _reports.decode(raw)
    except msgspec.ValidationError as error:
        raise RelayError("bad_field", clean(str(error), 300), "see docs/api.md", status=422) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RelayError("bad_json", f"not a JSON message: {clean(str(error), 200)}", "send JSON as text") from None
    return Frame(message.run_id, message.epoch, message.token, message.stream, message.first_seq, reports, raw)


def is_tidy(data: bytes) -> bool:
    """Whether no text in this JSON can need cleaning but for its length.

    In ASCII without an escape the only character that JSON lets through and a terminal should not see is DEL.
    """
    return data.isascii() and b"\\" not in data and b"\x7f" not in data
