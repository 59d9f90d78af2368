"""What a stored checkpoint's archive holds, by the manifest that is stored beside it."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from relaytui.client.api import CommanderClient
from relaytui.wire.artifacts import ArtifactKind, ArtifactRow
from relaytui.wire.errors import RelayError

MAX_MANIFEST = 64 << 20
"""Bytes."""


class Listed(Struct, frozen=True):
    size: Annotated[int, Meta(ge=0, le=2**62)]


class Contents(Struct, frozen=True):
    """The part of a manifest that says it."""

    files: list[Listed]


async def contents_of(client: CommanderClient, row: ArtifactRow) -> tuple[int, int] | None:
    """Bytes of its files, and how many they are, the manifest among them; None where nothing says so that is what its
    hash says."""
    try:
        rows = (await client.artifacts(row.run_id)).artifacts
        beside = next(each for each in rows if each.kind is ArtifactKind.FILE and each.sha256 == row.manifest_sha256)
        if beside.size > MAX_MANIFEST:
            return None
        data = b"".join([piece async for piece in client.download(beside)])
        if hashlib.sha256(data).hexdigest() != row.manifest_sha256:
            return None
        files = msgspec.json.decode(data, type=Contents).files
    except (StopIteration, RelayError, msgspec.DecodeError, RecursionError):
        return None
    return sum(file.size for file in files) + len(data), len(files) + 1
