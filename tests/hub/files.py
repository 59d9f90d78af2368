"""Routes of the files themselves: from here, or from elsewhere, where the answer leads to, as the Hub's large ones."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aiohttp import web

from tests.hub.faults import DONE
from tests.hub.serving import Route, answer, cut, fault_of, pace, record_of, sent
from tests.hub.store import Entry, HubError, no_such_entry

if TYPE_CHECKING:
    from tests.hub.server import TestHub

CHUNK = 256 << 10


class Stored(web.FileResponse):
    """An object from disk, with Range, by sendfile; its ETag is its name and not when it was written."""

    name = ""
    begun = False

    @property
    def etag(self) -> Any:
        return self.name

    @etag.setter
    def etag(self, value: Any) -> None:
        self.headers["ETag"] = f'"{self.name}"'

    async def prepare(self, request: Any) -> Any:
        """Once: aiohttp calls it again after `serve` has, which waits until all is sent."""
        if self.begun:
            return None
        self.begun = True
        return await super().prepare(request)


async def resolve(hub: TestHub, request: web.Request) -> web.StreamResponse:
    repo = hub.readable(request)
    commit = repo.resolve(request.match_info["rev"])
    path = request.match_info["path"]
    headers = {"X-Repo-Commit": commit.oid}
    entry = commit.tree.get(path)
    if entry is None or (entry.lfs and entry.sha256 not in repo.objects) or not hub.content.has(entry.sha256):
        missing = no_such_entry(path)
        said = headers | {"X-Error-Message": missing.message, "X-Error-Code": str(missing.code)}
        return answer({"error": missing.message}, missing.status, said)
    if entry.lfs:
        headers |= {"X-Linked-Etag": f'"{entry.sha256}"', "X-Linked-Size": str(entry.size)}
        if hub.redirect:
            ticket = hub.links.open(entry)
            where = f"{hub.elsewhere}/cdn/{entry.sha256}/{ticket}/{quote(path)}"
            return web.Response(status=302, headers=headers | {"Location": where})
    return await _send(hub, request, entry, headers)


async def cdn(hub: TestHub, request: web.Request) -> web.StreamResponse:
    """A large object by its address alone. Who sends a token there has sent it to a stranger, and gets nothing."""
    if "Authorization" in request.headers:
        raise HubError(400, "InvalidArgument: Only one auth mechanism allowed")
    entry = hub.links.get(request.match_info["ticket"])
    if not hub.content.has(entry.sha256):
        raise HubError(404, "NoSuchKey")
    return await _send(hub, request, entry, {})


class Links:
    """Addresses that files were promised at; `expire` makes those that are out lead nowhere."""

    def __init__(self) -> None:
        self._open: dict[str, Entry] = {}

    def open(self, entry: Entry) -> str:
        ticket = uuid.uuid4().hex
        self._open[ticket] = entry
        return ticket

    def get(self, ticket: str) -> Entry:
        if ticket not in self._open:
            raise HubError(403, "AccessDenied: Request has expired")
        return self._open[ticket]

    def expire(self) -> None:
        self._open.clear()


async def _send(hub: TestHub, request: web.Request, entry: Entry, headers: dict[str, str]) -> web.StreamResponse:
    headers |= {"Content-Type": "application/octet-stream", "Content-Disposition": "inline"}
    fault = fault_of(request)
    if request.method == "GET" and fault is not None and (fault.rate or (fault.at == DONE and fault.after is not None)):
        return await _trickle(hub, request, entry, headers)
    response = Stored(hub.content.path(entry.sha256), headers=headers)
    response.name = entry.sha256 if entry.lfs else entry.oid
    return response


async def _trickle(hub: TestHub, request: web.Request, entry: Entry, headers: dict[str, str]) -> web.StreamResponse:
    """Slowly, or only so far."""
    fault, record = fault_of(request), record_of(request)
    assert fault is not None
    try:
        start, stop, _ = request.http_range.indices(entry.size)
    except ValueError:
        start = stop = entry.size
    response = web.StreamResponse(status=200, headers=headers)
    if "Range" in request.headers:
        if start >= entry.size:
            return answer({"error": "Range Not Satisfiable"}, 416, {"Content-Range": f"bytes */{entry.size}"})
        response.set_status(206)
        response.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{entry.size}"
    response.headers["ETag"] = f'"{entry.sha256 if entry.lfs else entry.oid}"'
    response.content_length = stop - start
    await response.prepare(request)
    record.status = response.status
    end = stop if fault.after is None else min(stop, start + fault.after)
    chunk = min(CHUNK, max(1024, fault.rate // 20)) if fault.rate else CHUNK
    with hub.content.path(entry.sha256).open("rb") as source:
        source.seek(start)
        while record.sent < end - start:
            data = source.read(min(chunk, end - start - record.sent))
            await response.write(data)
            record.sent += len(data)
            if fault.rate:
                await pace(request, len(data) / fault.rate)
    if end < stop:
        await sent(request)
        if fault.hang:
            await hub.until_closed(None, request)
        cut(request)
        return response
    await response.write_eof()
    return response


RESOLVE = "/{owner}/{name}/resolve/{rev}/{path:.+}"
CDN = "/cdn/{oid}/{ticket}/{path:.+}"
ROUTES = (
    Route("resolve-head", "HEAD", RESOLVE, resolve),
    Route("resolve", "GET", RESOLVE, resolve),
    Route("resolve-head", "HEAD", "/{kinds:datasets}" + RESOLVE, resolve),
    Route("resolve", "GET", "/{kinds:datasets}" + RESOLVE, resolve),
    Route("cdn-head", "HEAD", CDN, cdn),
    Route("cdn", "GET", CDN, cdn),
)
