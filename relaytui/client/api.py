"""The commander's HTTP API: one method a route, typed rows back, RelayError for everything that went wrong."""

from __future__ import annotations

import getpass
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote

from msgspec import to_builtins

from relaytui.client.answers import (
    Events,
    FaultBody,
    Forced,
    Health,
    Log,
    Order,
    Ordered,
    Requeued,
    RunDetail,
    Runs,
    Series,
    WhoAmI,
    Workers,
)
from relaytui.client.endpoint import Endpoint
from relaytui.client.proving import open_session, prove_commander, unreachable
from relaytui.shell.web import aiohttp
from relaytui.wire.artifacts import (
    OFFSET_HEADER,
    ArtifactRow,
    Artifacts,
    Began,
    BeginUpload,
    Deleted,
    Offset,
    Stored,
    Verified,
)
from relaytui.wire.codec import decode, encode
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.rows import OrderRow
from relaytui.wire.status import OrderKind
from relaytui.wire.text import clean

T = TypeVar("T")

ACTOR_HEADER = "X-Relay-Actor"
MAX_ANSWER = 64 << 20
"""Bytes of one answer that are read; a commander's pages are all smaller."""
NO_ROOM = 507
"""Status of a commander that is well and has no room for what it is given."""
LONG = aiohttp.ClientTimeout(total=None, connect=5, sock_read=300)
"""Of what takes as long as its bytes do, or waits for another one's turn: silence is what ends it."""


class CommanderClient:
    """Use as `async with CommanderClient(endpoint) as client`. The commander proves itself before the first call."""

    def __init__(self, endpoint: Endpoint, *, actor: str | None = None) -> None:
        self.endpoint = endpoint
        self._actor = clean(actor if actor is not None else whoami_here(), 128)
        self._session: aiohttp.ClientSession | None = None
        self._proven = False

    async def __aenter__(self) -> Self:
        self._session = open_session(self.endpoint.url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # -- reading --------------------------------------------------------------------------------------------------

    async def health(self) -> Health:
        """Its health, freshly proven."""
        health = await prove_commander(self._open(), self.endpoint)
        self._proven = True
        return health

    async def whoami(self) -> WhoAmI:
        return await self._get("/api/whoami", WhoAmI)

    async def runs(self) -> Runs:
        return await self._get("/api/runs", Runs)

    async def run(self, run_id: str) -> RunDetail:
        return await self._get(f"/api/runs/{quote(run_id, safe='')}", RunDetail)

    async def log(
        self, run_id: str, *, epoch: int | None = None, before: int | None = None, limit: int | None = None
    ) -> Log:
        """The newest `limit` lines, ascending; with `epoch` of that attempt, with `before` only lines below it."""
        return await self._get(
            f"/api/runs/{quote(run_id, safe='')}/log", Log, {"epoch": epoch, "before": before, "limit": limit}
        )

    async def series(self, run_id: str, metric: str = "loss", points: int = 500) -> Series:
        return await self._get(
            f"/api/runs/{quote(run_id, safe='')}/series", Series, {"metric": metric, "points": points}
        )

    async def workers(self) -> Workers:
        return await self._get("/api/workers", Workers)

    async def events(
        self, *, after: int | None = None, before: int | None = None, run: str | None = None, limit: int | None = None
    ) -> Events:
        return await self._get("/api/events", Events, {"after": after, "before": before, "run": run, "limit": limit})

    # -- acting ---------------------------------------------------------------------------------------------------

    async def force_acquire(self, run_id: str, *, expected_epoch: int, why: str = "", pod_gone: bool = False) -> Forced:
        """Take the run from its holder. RelayError `epoch_changed` if it was granted anew since `expected_epoch`."""
        body = {"expected_epoch": expected_epoch, "why": why, "pod_gone": pod_gone}
        return await self._post(f"/api/runs/{quote(run_id, safe='')}/force-acquire", body, Forced)

    async def order(self, kind: OrderKind, run_id: str, *, expected_epoch: int, why: str = "") -> Ordered:
        """Have the holder drain, cancel, save or sync; a queued run is cancelled at once. RelayError `epoch_changed`,
        `not_held`, or `not_now` where it does not fit. What its agent says to it: `order_row`."""
        body = {"expected_epoch": expected_epoch, "why": why}
        return await self._post(f"/api/runs/{quote(run_id, safe='')}/{kind}", body, Ordered)

    async def order_row(self, run_id: str, order_id: int) -> OrderRow:
        return (await self._get(f"/api/runs/{quote(run_id, safe='')}/orders/{order_id}", Order)).order

    async def requeue(self, run_id: str, *, expected_epoch: int, why: str = "") -> Requeued:
        """Queue an ended run again. RelayError `epoch_changed`, or `not_ended` where it is queued or held."""
        body = {"expected_epoch": expected_epoch, "why": why}
        return await self._post(f"/api/runs/{quote(run_id, safe='')}/requeue", body, Requeued)

    # -- artifacts ------------------------------------------------------------------------------------------------

    async def artifacts(self, run: str | None = None) -> Artifacts:
        """What the store holds of that run, or of all, oldest first."""
        return await self._get("/api/artifacts", Artifacts, {"run": run})

    async def artifact(self, artifact: int) -> ArtifactRow:
        return (await self._get(f"/api/artifacts/{artifact}", Stored)).artifact

    async def verify_artifact(self, artifact: int) -> Verified:
        """Has it read and hashed again; answers within seconds how far that is. Ask again until it is `over`."""
        return await self._call("POST", f"/api/artifacts/{artifact}/verify", Verified, timeout=LONG)

    async def delete_artifact(self, artifact: int, why: str = "") -> ArtifactRow:
        """What it was. RelayError `unknown_artifact`."""
        path = f"/api/artifacts/{artifact}"
        return (await self._call("DELETE", path, Deleted, query={"why": why} if why else None)).artifact

    async def begin_upload(self, upload: BeginUpload) -> Began:
        """RelayError `quota`, `store_full` or `too_many` (507) where there is no room for it, `busy` (503) while what
        is there already is read again: ask again."""
        return await self._call("POST", "/api/artifacts/uploads", Began, body=encode(to_builtins(upload)), timeout=LONG)

    async def upload_offset(self, upload: str) -> int:
        return (await self._call("GET", f"/api/artifacts/uploads/{upload}", Offset, timeout=LONG)).offset

    async def send_chunk(self, upload: str, offset: int, data: bytes) -> int:
        """The offset after it. RelayError `wrong_offset` or `busy`: ask for the offset, and go on there."""
        path = f"/api/artifacts/uploads/{upload}"
        headers = {OFFSET_HEADER: str(offset), "Content-Type": "application/octet-stream"}
        return (await self._call("PATCH", path, Offset, body=data, headers=headers, timeout=LONG)).offset

    async def finish_upload(self, upload: str) -> ArtifactRow:
        path = f"/api/artifacts/uploads/{upload}/finish"
        return (await self._call("POST", path, Stored, timeout=LONG)).artifact

    async def download(self, row: ArtifactRow, offset: int = 0) -> AsyncIterator[bytes]:
        """Its bytes from `offset` on, as they come. RelayError where they end before their end."""
        left = row.size - offset
        headers = {"Range": f"bytes={offset}-", "If-Range": f'"{row.sha256}"'} if offset else {}
        if not left:
            return
        async with self._asked("GET", f"/api/artifacts/{row.id}/content", headers=headers, timeout=LONG) as answer:
            if answer.status >= 300:
                raise _fault(row.name, answer.status, await _content(answer, row.name))
            if answer.status != (206 if offset else 200):
                raise RelayError("changed", f"artifact {row.id} is not what it was", "fetch it anew")
            async for data in answer.content.iter_any():
                left -= len(data)
                yield data
        if left:
            raise RelayError("bad_answer", f"artifact {row.id} came {abs(left)} bytes short or long", "try again")

    # -- the one way there ----------------------------------------------------------------------------------------

    async def _get(self, path: str, kind: type[T], query: Mapping[str, int | str | None] | None = None) -> T:
        given = {name: str(value) for name, value in (query or {}).items() if value is not None}
        return await self._call("GET", path, kind, query=given)

    async def _post(self, path: str, body: Mapping[str, object], kind: type[T]) -> T:
        return await self._call("POST", path, kind, body=encode(dict(body)))

    async def _call(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> T:
        async with self._asked(method, path, query=query, body=body, headers=headers, timeout=timeout) as answer:
            status, content = answer.status, await _content(answer, path)
        if status >= 300:
            raise _fault(path, status, content)
        try:
            return decode(content, kind)
        except RelayError as error:
            raise RelayError(
                "bad_answer",
                f"the commander's answer to {path} is not understood: {error.message}",
                "is it of another version? compare `relay-tui --version` on both sides",
            ) from None

    @asynccontextmanager
    async def _asked(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer, while it is read. RelayError `unreachable` or `bad_answer` where the connection does not hold."""
        session = self._open()
        if not self._proven:
            await self.health()
        said = {
            "Authorization": f"Bearer {self.endpoint.token}",
            "Host": self.endpoint.host,
            ACTOR_HEADER: quote(self._actor, safe=" @._-"),
        }
        if body is not None:
            said["Content-Type"] = "application/json"
        try:
            async with session.request(
                method,
                f"{self.endpoint.url}{path}",
                params=dict(query or {}),
                data=None if body is None else io.BytesIO(body),  # large ones are not copied at a stretch
                headers=said | dict(headers or {}),
                allow_redirects=False,
                timeout=timeout or session.timeout,
            ) as answer:
                yield answer
        except (aiohttp.ClientConnectionError, TimeoutError, OSError) as error:
            # Whoever answers there next has to prove itself again.
            self._proven = False
            raise unreachable(self.endpoint.url, error) from None
        except (aiohttp.ClientError, ValueError) as error:
            raise RelayError("bad_answer", f"{path}: {clean(str(error), 200)}") from None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session(self.endpoint.url)
        return self._session


async def _content(answer: aiohttp.ClientResponse, path: str) -> bytes:
    content = bytearray()
    async for part in answer.content.iter_any():
        content += part
        if len(content) > MAX_ANSWER:
            raise RelayError("bad_answer", f"the answer to {path} is larger than {MAX_ANSWER >> 20} MiB")
    return bytes(content)


def whoami_here() -> str:
    """The name under which what is done here goes into the commander's history."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in many containers
        return "operator"


def _fault(path: str, status: int, content: bytes) -> RelayError:
    there = status < 500 or status == NO_ROOM
    exit_code = Exit.AUTH if status in (401, 403) else Exit.FAILED if there else Exit.UNAVAILABLE
    try:
        fault = decode(content, FaultBody).error
    except RelayError:
        return RelayError("bad_answer", f"{path} answered {status}", "", exit_code=exit_code, status=status)
    return RelayError(
        clean(fault.code, 64), clean(fault.message, 500), clean(fault.hint, 500), exit_code=exit_code, status=status
    )
