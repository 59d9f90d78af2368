"""Routes of large objects: which are wanted, their bytes in one piece or in parts, and the word that they are whole."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.hub.faults import QUOTA
from tests.hub.serving import Route, answer, chunks, json_body, record_of
from tests.hub.store import HubError, Repo

if TYPE_CHECKING:
    from tests.hub.server import TestHub

BATCH = "/{owner}/{name}.git/info/lfs/objects/batch"
MAX_OBJECTS = 1000


@dataclass
class Upload:
    """What the address of an upload stands for. Whoever has the address needs no token."""

    repo: Repo
    oid: str
    size: int
    part_size: int | None = None
    parts: dict[int, tuple[Path, str]] = field(default_factory=dict)  # number from 1 -> its file, its ETag


class Uploads:
    """Addresses that were given out."""

    def __init__(self) -> None:
        self._open: dict[str, Upload] = {}

    def open(self, upload: Upload) -> str:
        ticket = uuid.uuid4().hex
        self._open[ticket] = upload
        return ticket

    def get(self, hub: TestHub, request: web.Request) -> Upload:
        if "Authorization" in request.headers and request.method == "PUT":
            raise HubError(400, "InvalidArgument: Only one auth mechanism allowed")
        upload = self._open.get(request.match_info["ticket"])
        if upload is None or upload.oid != request.match_info["oid"]:
            raise HubError(403, "SignatureDoesNotMatch")
        if hub.store.repos.get((upload.repo.kind, upload.repo.id)) is not upload.repo:
            raise HubError(404, "NoSuchBucket")
        return upload


async def batch(hub: TestHub, request: web.Request) -> web.Response:
    repo, _ = hub.writable(request)
    asked = await json_body(request)
    objects = asked.get("objects")
    if asked.get("operation") != "upload" or not isinstance(objects, list) or len(objects) > MAX_OBJECTS:
        raise HubError(422, "Only uploads, and of at most 1000 objects")
    wanted = {str(each["oid"]): int(each["size"]) for each in objects}
    new = {oid: size for oid, size in wanted.items() if oid not in repo.objects}
    _check_quota(hub, repo, sum(new.values()))
    multipart = "multipart" in asked.get("transfers", ["basic"])
    rows = [_row(hub, repo, oid, size, new, multipart) for oid, size in wanted.items()]
    return answer({"transfer": "basic", "objects": rows})


def _row(hub: TestHub, repo: Repo, oid: str, size: int, new: dict[str, int], multipart: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"oid": oid, "size": size, "authenticated": True}
    if oid not in new:
        if repo.objects[oid] != size:
            row["error"] = {"code": 422, "message": f"the object {oid} is stored with {repo.objects[oid]} bytes"}
        return row
    in_parts = hub.part_size is not None and size > hub.part_size and multipart
    part_size = hub.part_size if in_parts else None
    ticket = hub.uploads.open(Upload(repo, oid, size, part_size))
    upload: dict[str, Any] = {"href": f"{hub.elsewhere}/lfs/put/{oid}/{ticket}"}
    if part_size is not None:
        numbers = range(1, math.ceil(size / part_size) + 1)
        upload = {"href": f"{hub.url}/lfs/complete/{oid}/{ticket}"}
        upload["header"] = {str(number): f"{hub.elsewhere}/lfs/part/{oid}/{ticket}/{number}" for number in numbers}
        upload["header"]["chunk_size"] = str(part_size)
    kinds = "" if repo.kind == "model" else f"{repo.kind}s/"
    verify = {"href": f"{hub.url}/{kinds}{repo.id}.git/info/lfs/objects/verify"}
    return row | {"actions": {"upload": upload, "verify": verify}}


def _check_quota(hub: TestHub, repo: Repo, more: int) -> None:
    if hub.quota is None or not repo.private or more == 0:
        return
    theirs = [each for each in hub.store.repos.values() if each.private and each.owner == repo.owner]
    if sum(each.stored_bytes() for each in theirs) + more > hub.quota:
        raise HubError(403, QUOTA)


async def put(hub: TestHub, request: web.Request) -> web.Response:
    upload = hub.uploads.get(hub, request)
    record_of(request).stored = upload.oid in upload.repo.objects
    async with hub.content.receive() as incoming:
        await incoming.take(chunks(request))
        _check_whole(upload, incoming.size, incoming.sha256)
        incoming.keep()
        _stored(hub, upload)
    return answer({}, headers={"ETag": f'"{upload.oid}"'})


async def part(hub: TestHub, request: web.Request) -> web.Response:
    upload = hub.uploads.get(hub, request)
    number = int(request.match_info["number"])
    assert upload.part_size is not None
    record_of(request).stored = upload.oid in upload.repo.objects or number in upload.parts
    expected = min(upload.part_size, upload.size - (number - 1) * upload.part_size)
    async with hub.content.receive() as incoming:
        await incoming.take(chunks(request))
        if incoming.size != expected:
            raise HubError(400, f"IncompleteBody: part {number} has {incoming.size} bytes, not {expected}")
        incoming.kept = True
        tag = f'"{incoming.sha256[:32]}"'
        upload.parts[number] = incoming.path, tag
    return answer({}, headers={"ETag": tag})


async def complete(hub: TestHub, request: web.Request) -> web.Response:
    upload = hub.uploads.get(hub, request)
    named = (await json_body(request)).get("parts") or []
    if upload.oid in upload.repo.objects:
        return answer({})  # asked again after a lost answer
    if [each.get("partNumber") for each in named] != list(range(1, len(upload.parts) + 1)):
        raise HubError(400, "InvalidPartOrder")
    if any(upload.parts[each["partNumber"]][1] != each.get("etag") for each in named):
        raise HubError(400, "InvalidPart")
    paths = [upload.parts[number][0] for number in sorted(upload.parts)]
    whole, sha256, size = await asyncio.to_thread(hub.content.join, paths)
    try:
        _check_whole(upload, size, sha256)
        hub.content.keep(whole, sha256)
    finally:
        for path in (whole, *paths):
            path.unlink(missing_ok=True)
    _stored(hub, upload)
    return answer({})


def _check_whole(upload: Upload, size: int, sha256: str) -> None:
    if size != upload.size:
        raise HubError(400, f"IncompleteBody: {size} bytes, not {upload.size}")
    if sha256 != upload.oid:
        raise HubError(400, f"BadDigest: the sha256 of what came is {sha256}")


def _stored(hub: TestHub, upload: Upload) -> None:
    upload.repo.objects[upload.oid] = upload.size
    upload.repo.pushed[upload.oid] = time.time()


async def verify(hub: TestHub, request: web.Request) -> web.Response:
    repo, _ = hub.writable(request)
    asked = await json_body(request)
    if repo.objects.get(str(asked.get("oid"))) != asked.get("size"):
        raise HubError(404, "the object is not there, or has another size")
    return answer({})


VERIFY = BATCH.removesuffix("batch") + "verify"
ROUTES = (
    Route("lfs-batch", "POST", BATCH, batch),
    Route("lfs-batch", "POST", "/{kinds:datasets}" + BATCH, batch),
    Route("lfs-put", "PUT", "/lfs/put/{oid}/{ticket}", put),
    Route("lfs-part", "PUT", "/lfs/part/{oid}/{ticket}/{number:[0-9]+}", part),
    Route("lfs-complete", "POST", "/lfs/complete/{oid}/{ticket}", complete),
    Route("lfs-verify", "POST", VERIFY, verify),
    Route("lfs-verify", "POST", "/{kinds:datasets}" + VERIFY, verify),
)
