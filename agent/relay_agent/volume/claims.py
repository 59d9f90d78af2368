"""A claim as it lies on the volume: with the run it is of and a sum of its bytes, so that one that was altered, or
copied here from elsewhere, says nothing.

`{"version":1,"run_id":…,"epoch":…,…,"sum":SHA-256 of all that stands before it}`. Those without version, run and sum,
from before there were any, read as they are.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from relay_agent.volume.sealed import Altered, opened, seal
from relaytui.wire.ids import Epoch, Id

VERSION = 1


class Claim(Struct, frozen=True):
    """One epoch's claim. `base` names the checkpoint it resumes from, None for a cold start. Everybody on the volume
    reads it: `incarnation` is what is shown of one (`relaytui.wire.ids.shown`), never what the wire has."""

    epoch: Epoch
    worker: str
    incarnation: str
    base: Id | None
    config_hash: str
    at: float  # seconds since 1970; shown, never compared


class _Old(Claim, frozen=True, forbid_unknown_fields=True):
    """Nothing but that: what has a field more has lost its sum."""


class _Head(Struct, frozen=True):
    version: int
    run_id: Id


class Spoilt(Exception):  # noqa: N818 - it says what was found
    """It says nothing, and this is why."""


def encode(claim: Claim, run_id: str) -> bytes:
    """Its file."""
    head = msgspec.json.encode(_Head(VERSION, run_id))[:-1]
    return seal(head + b"," + msgspec.json.encode(claim)[1:]) + b"\n"


def decode(data: bytes, run_id: str, epoch: int) -> Claim:
    """The claim of that epoch of that run, or Spoilt."""
    try:
        body = opened(data)
        if body is None:
            claim: Claim = msgspec.json.decode(data, type=_Old)
        else:
            head = msgspec.json.decode(body, type=_Head)
            if head.version != VERSION:
                raise Spoilt(f"it has version {head.version}, this agent reads {VERSION}")
            if head.run_id != run_id:
                raise Spoilt(f"it is of the run {head.run_id}")
            claim = msgspec.json.decode(body, type=Claim)
    except Altered as altered:
        raise Spoilt(str(altered)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Spoilt(f"it does not read: {error}" if data else "it is empty") from None
    if claim.epoch != epoch:
        raise Spoilt(f"it is of epoch {claim.epoch}")
    return Claim(claim.epoch, claim.worker, claim.incarnation, claim.base, claim.config_hash, claim.at)
