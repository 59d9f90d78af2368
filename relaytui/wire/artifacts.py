"""The artifact store at the commander: what an upload says of itself, and the rows that are shown of what is stored.

A pod's requests carry the worker's token and say which lease it holds: in `BeginUpload`, and in three headers
(`RUN_HEADER`, `EPOCH_HEADER`, `LEASE_HEADER`) of all others. Each request asks anew whether that lease is still the
live one: an upload is known by its id to those who held the run before, too. The commander itself writes the events
`artifact.stored`, `artifact.deleted`, `artifact.damaged` and `artifact.mended`; what a pod calls so is filed as
`agent.…`.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from relaytui.wire.bounds import Sha256, Token
from relaytui.wire.ids import Count, Epoch, Id

OFFSET_HEADER = "Upload-Offset"
"""Of a chunk: where it begins. Of answers about an upload, refusals too: up to where its bytes are on the disk."""
RUN_HEADER = "X-Relay-Run"
EPOCH_HEADER = "X-Relay-Epoch"
LEASE_HEADER = "X-Relay-Lease"
MAX_CHUNK = 32 << 20
"""Bytes of one chunk, at most."""
UPLOAD_PATTERN = r"[0-9a-f]{32}"
_UPLOAD = re.compile(rf"{UPLOAD_PATTERN}\Z")


class ArtifactKind(StrEnum):
    CHECKPOINT = "checkpoint"  # a published checkpoint as one archive (tar.zst)
    FILE = "file"  # a small file of the run, as it is


class BeginUpload(Struct, frozen=True):
    """`sha256` and `size` are of the bytes that will be sent; `manifest_sha256` of the checkpoint's manifest in them.

    Without a `sha256` it is a checkpoint's archive that is made while it is sent: `size` is what that has at most, the
    end (`FinishUpload`) says the rest, and one that the run has of the same manifest need not be sent again.

    `token` is that of the lease; an operator has none and gives none. `final`: it is what the run ends with; the newest
    such stays whatever else gives way.
    """

    run_id: Id
    kind: ArtifactKind
    name: Id
    sha256: Sha256 | None
    size: Count
    epoch: Epoch = 0
    token: Token | None = None
    step: Count | None = None
    manifest_sha256: Sha256 | None = None
    final: bool = False


class ArtifactRow(Struct, frozen=True, omit_defaults=True):
    """One thing that is stored whole. Rows with one `sha256` share what is on the disk."""

    id: int
    run_id: str
    kind: ArtifactKind
    name: str
    sha256: str
    size: int
    stored_at: float
    by: str  # worker or operator
    epoch: int = 0  # of the attempt that it was uploaded in
    step: int | None = None
    manifest_sha256: str | None = None
    final: bool = False
    verified_at: float | None = None  # last read and hashed again, and found whole
    damaged: str = ""  # what is wrong with it; empty: nothing is known to be


class Began(Struct, frozen=True, omit_defaults=True):
    """`stored`: the bytes were there already, and `artifact` is its row; else they are to be sent from `offset` on."""

    upload: str = ""
    offset: int = 0
    stored: bool = False
    artifact: ArtifactRow | None = None


class FinishUpload(Struct, frozen=True):
    """What was sent, whole, by who sent it."""

    sha256: Sha256
    size: Count


class Offset(Struct, frozen=True):
    """Up to where the upload's bytes are on the disk, whatever happens to the commander."""

    offset: int


class Stored(Struct, frozen=True):
    artifact: ArtifactRow


class Artifacts(Struct, frozen=True):
    """Oldest first. `bytes`: what all runs have here, shared content counted once, and what uploads have announced."""

    now: float
    artifacts: list[ArtifactRow]
    bytes: int
    quota: int


class Verified(Struct, frozen=True):
    """`over`: all of it was read, and the row says what was found; else it is read up to `hashed`: ask again."""

    artifact: ArtifactRow
    hashed: int
    over: bool


class Deleted(Struct, frozen=True):
    artifact: ArtifactRow


def is_upload(text: str) -> bool:
    return _UPLOAD.match(text) is not None
