"""Frames from agents, decoded in one pass; the JSON array of reports is also what gets stored."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from relaytui.wire.bounds import Token
from relaytui.wire.codec import refuse_twins
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
_envelope = msgspec.json.Decoder(Envelope)
_reports: msgspec.json.Decoder[list[AnyReport]] = msgspec.json.Decoder(
    Annotated[list[AnyReport], Meta(min_length=1, max_length=MAX_REPORTS)]
)
_encoder = msgspec.json.Encoder()
_ARRAY = b'"reports":['
_WRONG = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_frame(data: bytes) -> AgentMessage | Frame:
    """RelayError `bad_json` or `bad_field` says what is wrong."""
    frame = _array_last(data)
    if frame is not None:
        return frame
    try:
        message = _message.decode(data)
        if type(message) is not Envelope:
            if _encoder.encode(message) != data:  # as agents write it: what says each key once is what would be written
                refuse_twins(data)
            other: AgentMessage = message
            return other
        raw = bytes(message.reports)
        reports = _reports.decode(raw)
    except msgspec.ValidationError as error:
        raise RelayError("bad_field", clean(str(error), 300), "see docs/api.md", status=422) from None
    except _WRONG as error:
        raise RelayError("bad_json", f"not a JSON message: {clean(str(error), 200)}", "send JSON as text") from None
    return _frame(message, reports, raw)


def _array_last(data: bytes) -> Frame | None:
    """Reports as agents write them, with their array at the end: where it begins and ends is known without reading it.

    None for any other message, and for what is wrong. With no backslash before them the bytes looked for begin a name,
    so an envelope and an array that are whole JSON each are the message that came.
    """
    at = data.find(_ARRAY)
    if at < 1 or data[at - 1 : at] == b"\\" or not data.endswith(b"]}"):
        return None
    raw = data[at + len(_ARRAY) - 1 : -1]
    try:
        return _frame(_envelope.decode(data[:at] + _ARRAY + b"]}"), _reports.decode(raw), raw)
    except _WRONG:
        return None


def _frame(envelope: Envelope, reports: list[AnyReport], raw: bytes) -> Frame:
    return Frame(
        envelope.run_id, envelope.epoch, envelope.token, envelope.stream, envelope.first_seq, reports, raw
    )  # fmt: skip


def is_tidy(data: bytes) -> bool:
    """Whether no text in this JSON can need cleaning but for its length.

    In ASCII without an escape the only character that JSON lets through and a terminal should not see is DEL.
    """
    return data.isascii() and b"\\" not in data and b"\x7f" not in data
