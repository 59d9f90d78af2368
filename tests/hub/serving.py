"""How one request is served: recorded, struck by a fault or not, its errors worded as the Hub's."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from aiohttp import ClientError, web

from tests.hub.faults import BEFORE, DONE, READ, Fault
from tests.hub.store import HubError

if TYPE_CHECKING:
    from tests.hub.server import TestHub

__all__ = [
    "Handler",
    "Recorded",
    "Route",
    "answer",
    "body",
    "chunks",
    "cut",
    "fault_of",
    "json_body",
    "pace",
    "record_of",
    "sent",
    "serve",
]

Handler = Callable[["TestHub", web.Request], Awaitable[web.StreamResponse]]


class Route(NamedTuple):
    name: str
    method: str
    path: str
    handler: Handler


@dataclass
class Recorded:
    """One request as it went."""

    number: int
    route: str
    method: str
    path: str  # with its query
    range: str | None  # of the file that was asked for
    repo: str | None
    user: str | None = None
    status: int | None = None  # None: no answer was sent
    received: int = 0  # bytes of its body that were read
    sent: int = 0  # bytes of the answer's body
    oid: str | None = None  # of the large object whose bytes it carries
    stored: bool = False  # whether that one was stored when it came
    fault: dict[str, Any] | None = None
    began: float = 0.0  # seconds, of a clock that only goes forward
    seconds: float | None = None  # None while it goes on

    def plain(self) -> dict[str, Any]:
        return asdict(self)


class Served(NamedTuple):
    record: Recorded
    fault: Fault | None


SERVED = web.RequestKey("served", Served)


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, headers=headers, content_type="application/json")


def error(failed: HubError, headers: dict[str, str] | None = None) -> web.Response:
    said = {"X-Error-Message": failed.message.replace("\n", " ")}
    if headers:
        said |= headers
    if failed.code:
        said["X-Error-Code"] = failed.code
    return answer({"error": failed.message}, failed.status, said)


def record_of(request: web.Request) -> Recorded:
    return request[SERVED].record


def fault_of(request: web.Request) -> Fault | None:
    return request[SERVED].fault


async def chunks(request: web.Request) -> AsyncIterator[bytes]:
    """The body as it comes in, counted."""
    record, fault = record_of(request), fault_of(request)
    async for chunk in request.content.iter_any():
        record.received += len(chunk)
        if fault is not None and fault.rate:
            await pace(request, len(chunk) / fault.rate)
        yield chunk


async def pace(request: web.Request, seconds: float) -> None:
    """That time, or less where the client goes away."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and request.transport is not None:
        await asyncio.sleep(min(0.05, left))


async def body(request: web.Request, limit: int = 256 << 20) -> bytes:
    data = bytearray()
    async for chunk in chunks(request):
        data += chunk
        if len(data) > limit:
            raise HubError(413, "Payload too large")
    return bytes(data)


async def json_body(request: web.Request) -> dict[str, Any]:
    try:
        value = orjson.loads(await body(request))
    except orjson.JSONDecodeError as wrong:
        raise HubError(400, f"the body is no JSON: {wrong}") from None
    if not isinstance(value, dict):
        raise HubError(400, "the body is no object")
    return value


async def serve(hub: TestHub, route: Route, request: web.Request) -> web.StreamResponse:
    owner, name = request.match_info.get("owner"), request.match_info.get("name")
    record = Recorded(
        number=len(hub.requests) + 1, route=route.name, method=request.method, path=request.raw_path,
        range=request.headers.get("Range"),
        repo=f"{owner}/{name}" if owner else None, oid=request.match_info.get("oid"), began=time.monotonic(),
    )  # fmt: skip
    hub.requests.append(record)
    fault = hub.faults.next(route.name, request.raw_path)
    request[SERVED] = Served(record, fault)
    record.fault = None if fault is None else fault.plain()
    try:
        response = await _serve(hub, route, request, fault)
        if response is None:
            return web.Response()
        if isinstance(response, web.FileResponse):
            await response.prepare(request)
        record.status = response.status
        if request.method != "HEAD":
            record.sent = record.sent or response.content_length or 0
        return response
    except (ConnectionError, ClientError):
        return web.Response()  # the client went away
    finally:
        record.seconds = time.monotonic() - record.began
        hub.changed()


async def _serve(hub: TestHub, route: Route, request: web.Request, fault: Fault | None) -> web.StreamResponse | None:
    """None: the connection is gone, nobody will see an answer."""
    if fault is not None and fault.at == BEFORE:
        if fault.ends:
            return await _strike(hub, request, fault)
        await _passing(hub, request, fault)
    if fault is not None and fault.at == READ and fault.ends:
        async for _ in chunks(request):
            if fault.after is not None and record_of(request).received >= fault.after:
                break
        return await _strike(hub, request, fault)
    try:
        response = await route.handler(hub, request)
    except HubError as failed:
        response = error(failed)
    except (KeyError, TypeError, ValueError) as wrong:
        response = error(HubError(400, f"the request does not read: {wrong!r}"))
    response.headers.setdefault("X-Request-Id", uuid.uuid4().hex)
    if fault is None or fault.at != DONE:
        return response
    if fault.ends and fault.after is None:
        return await _strike(hub, request, fault)
    await _passing(hub, request, fault)
    if fault.after is not None and isinstance(response, web.Response):
        await _begin(request, response, fault.after)
        return await _strike(hub, request, fault)
    return response


async def _begin(request: web.Request, response: web.Response, count: int) -> None:
    """Only the first `count` bytes of the answer's body."""
    whole = response.body if isinstance(response.body, bytes) else b""
    begun = web.StreamResponse(status=response.status, headers=response.headers)
    begun.content_length = len(whole)
    await begun.prepare(request)
    await begun.write(whole[:count])
    await sent(request)
    record_of(request).sent = min(count, len(whole))
    record_of(request).status = response.status


async def _passing(hub: TestHub, request: web.Request, fault: Fault) -> None:
    if fault.delay:
        await hub.until_closed(fault.delay)
    if fault.move is not None:
        record = record_of(request)
        if record.repo is not None:
            hub.someone_commits(record.repo, fault.move)


async def _strike(hub: TestHub, request: web.Request, fault: Fault) -> web.StreamResponse | None:
    if fault.after is None or fault.at != DONE:
        await _passing(hub, request, fault)
    if fault.hang:
        await hub.until_closed(None, request)
    if fault.hang or fault.cut:
        cut(request)
        return None
    assert fault.status is not None
    return error(HubError(fault.status, fault.error, fault.code), fault.headers)


async def sent(request: web.Request) -> None:
    """Until what was written has left this process, or the client is gone."""
    transport = request.transport
    while transport is not None and not transport.is_closing() and transport.get_write_buffer_size():
        await asyncio.sleep(0.001)


def cut(request: web.Request) -> None:
    """The connection is gone at once, whatever was to be sent or read."""
    if request.transport is not None:
        request.transport.abort()
