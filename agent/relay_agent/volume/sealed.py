"""JSON objects that say whether they are as they were written: `{…,"sum":SHA-256 of all that stands before it}`."""

from __future__ import annotations

import hashlib

_SUM = b',"sum":"'


class Altered(Exception):  # noqa: N818 - it says what was found
    """It is not as it was written."""

    def __init__(self) -> None:
        super().__init__("it is not as it was written: its sum differs")


def seal(data: bytes) -> bytes:
    """A JSON object that is not empty, with its sum."""
    body = data[:-1]
    return body + _SUM + _sum(body) + b'"}'


def opened(data: bytes) -> bytes | None:
    """What was sealed; None where nothing in it is a seal, as before there were any. Altered."""
    body, found, said = data.rpartition(_SUM)
    if not found:
        return None
    if said.rstrip(b"\n") != _sum(body) + b'"}':
        raise Altered
    return body + b"}"


def _sum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
