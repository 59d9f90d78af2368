"""Routes of the artifact store. A pod comes with the worker's token and its lease; the rest is the operator's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import hdrs, web

from relaytui.commander.http.bodies import actor_of, answer, body_of
from relaytui.commander.http.door import Connection
from relaytui.commander.http.downloads import send_content
from relaytui.commander.http.faults import fault_of
from relaytui.commander.http.guard import ROLE
from relaytui.commander.services.core import Core
from relaytui.commander.services.uploads import UploadRefused
from relaytui.wire.artifacts import (
    EPOCH_HEADER,
    LEASE_HEADER,
    MAX_CHUNK,
    OFFSET_HEADER,
    RUN_HEADER,
    UPLOAD_PATTERN,
    ArtifactRow,
    Artifacts,
    BeginUpload,
    Deleted,
    FinishUpload,
    Offset,
    Stored,
)
from relaytui.wire.codec import encode
from relaytui.wire.errors import RelayError
from relaytui.wire.ids import is_id
from relaytui.wire.proof import token_hash
from relaytui.wire.text import clean

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MAX_NUMBER = 2**53


@dataclass(frozen=True, slots=True)
class ArtifactRoutes:
    core: Core

    def routes(self) -> list[web.RouteDef]:
        upload = f"/api/artifacts/uploads/{{upload:{UPLOAD_PATTERN}}}"
        one = "/api/artifacts/{artifact:[0-9]{1,15}}"
        return [
            web.get("/api/artifacts", self.list, allow_head=False),
            web.post("/api/artifacts/uploads", self.begin),
            web.get(upload, self._about_upload(self.offset), allow_head=False),
            web.patch(upload, self._about_upload(self.chunk)),
            web.post(f"{upload}/finish", self._about_upload(self.finish)),
            web.delete(upload, self._about_upload(self.give_up)),
            web.get(one, self.row, allow_head=False),
            web.get(f"{one}/content", self.content, allow_head=False),
            web.post(f"{one}/verify", self.verify),
            web.post(f"{one}/doubt", self.doubt),
            web.delete(one, self.delete),
        ]

    # -- uploads -------------------------------------------------------------------------------------------------

    async def begin(self, request: web.Request) -> web.Response:
        ask = await body_of(request, BeginUpload)
        operator = actor_of(request) if request[ROLE] == "operator" else None
        return answer(await self.core.artifacts.begin(ask, operator))

    async def offset(self, request: web.Request, upload: str) -> web.Response:
        return _at(await self.core.artifacts.offset(upload))

    async def chunk(self, request: web.Request, upload: str) -> web.Response:
        if any(value.strip().lower() != "identity" for value in request.headers.getall(hdrs.CONTENT_ENCODING, [])):
            raise RelayError("bad_encoding", "a compressed body", "send it as it is", status=415)
        offset, length = _number(request, OFFSET_HEADER), request.content_length
        if length is None or hdrs.TRANSFER_ENCODING in request.headers:
            raise RelayError("no_length", "the chunk does not say how long it is", "send Content-Length", status=411)
        if length > MAX_CHUNK:
            hint = f"send at most {MAX_CHUNK} bytes at a time"
            raise RelayError("too_large", f"a chunk of {length} bytes", hint, status=413)
        with _held(request):
            return _at(await self.core.artifacts.uploads.receive(upload, offset, length, request.content))

    async def finish(self, request: web.Request, upload: str) -> web.Response:
        run_id = request.headers.get(RUN_HEADER) if request[ROLE] != "operator" else None
        told = await body_of(request, FinishUpload) if request.can_read_body else None
        self._must_be_theirs(request, upload)  # its body may have come after the end of its lease
        return answer(Stored(await self.core.artifacts.finish(upload, run_id, told)))

    async def give_up(self, request: web.Request, upload: str) -> web.Response:
        await self.core.artifacts.give_up(upload)
        return answer({})

    def _about_upload(self, handler: Callable[[web.Request, str], Awaitable[web.Response]]) -> Handler:
        """A pod shows its lease each time: its successor goes on with the same upload. Refusals say how far that is."""

        async def handle(request: web.Request) -> web.Response:
            upload = request.match_info["upload"]
            try:
                self._must_be_theirs(request, upload)
                return await handler(request, upload)
            except UploadRefused as refused:
                body = {**fault_of(refused), "offset": refused.offset}
                headers = {OFFSET_HEADER: str(refused.offset)}
                kind = "application/json"
                return web.Response(body=encode(body), status=refused.status, content_type=kind, headers=headers)

        return handle

    def _must_be_theirs(self, request: web.Request, upload: str) -> None:
        """RelayError as `_may_read`, or 404: the holder of that lease did not begin it."""
        if request[ROLE] != "operator":
            run_id = request.headers.get(RUN_HEADER)
            self._may_read(request, run_id)
            self.core.artifacts.uploads.must_be_of(upload, run_id, _number(request, EPOCH_HEADER))

    # -- what is stored ------------------------------------------------------------------------------------------

    async def list(self, request: web.Request) -> web.Response:
        run_id = request.query.get("run")
        if run_id is not None and not is_id(run_id):
            raise RelayError("bad_field", "no run can have that id", "letters, digits, . _ -", status=422)
        self._may_read(request, run_id)
        artifacts = self.core.artifacts
        rows = await artifacts.rows(run_id)
        return answer(Artifacts(self.core.clock.wall(), rows, await artifacts.used(), artifacts.quota))

    async def row(self, request: web.Request) -> web.Response:
        return answer(Stored(await self._row(request)))

    async def content(self, request: web.Request) -> web.StreamResponse:
        row = await self._row(request)
        return await send_content(request, row, await self.core.artifacts.open(row))

    async def verify(self, request: web.Request) -> web.Response:
        _operators_only(request)
        return answer(await self.core.care.verify(_artifact(request)))

    async def doubt(self, request: web.Request) -> web.Response:
        """Who read it got other bytes than its hash says: the commander sees for itself."""
        await self.core.care.doubt(await self._row(request))
        return answer({})

    async def delete(self, request: web.Request) -> web.Response:
        _operators_only(request)
        why = clean(request.query.get("why", ""), 1_024)
        return answer(Deleted(await self.core.artifacts.delete(_artifact(request), actor_of(request), why)))

    async def _row(self, request: web.Request) -> ArtifactRow:
        if request[ROLE] == "operator":
            return await self.core.artifacts.row(_artifact(request))
        self._may_read(request, request.headers.get(RUN_HEADER))
        row = await self.core.artifacts.row(_artifact(request))
        self._may_read(request, row.run_id)
        return row

    def _may_read(self, request: web.Request, run_id: str | None) -> None:
        """A pod reads what its own run has, and sends for it, while it holds it. RelayError 403, 409, 422."""
        if request[ROLE] == "operator":
            return
        if run_id is None or request.headers.get(RUN_HEADER) != run_id or not is_id(run_id):
            hint = f"say {RUN_HEADER}, {EPOCH_HEADER} and {LEASE_HEADER}, and ask for that run"
            raise RelayError("forbidden", "a worker reads the artifacts of the run that it holds", hint, status=403)
        token = token_hash(request.headers.get(LEASE_HEADER, ""))
        self.core.artifacts.uploads.must_hold(run_id, _number(request, EPOCH_HEADER), token)


def _at(offset: int) -> web.Response:
    response = answer(Offset(offset))
    response.headers[OFFSET_HEADER] = str(offset)
    return response


def _number(request: web.Request, header: str) -> int:
    given = request.headers.getall(header, [])
    if len(given) != 1 or not given[0].isascii() or not given[0].isdigit() or len(given[0]) > 16:
        raise RelayError("bad_field", f"{header} is not one whole number", "say it once", status=422)
    return min(int(given[0]), MAX_NUMBER)


def _artifact(request: web.Request) -> int:
    return int(request.match_info["artifact"])


def _operators_only(request: web.Request) -> None:
    if request[ROLE] != "operator":
        raise RelayError("forbidden", "a worker's token may not do this", "use the operator's token", status=403)


@contextmanager
def _held(request: web.Request) -> Iterator[None]:
    """While a chunk comes in a live lease is behind it: its connection is not one to close when there are too many."""
    connection = request.protocol
    if not isinstance(connection, Connection):
        yield
        return
    before, connection.holds = connection.holds, _true
    try:
        yield
    finally:
        connection.holds = before


def _true() -> bool:
    return True
