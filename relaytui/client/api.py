"""The commander's HTTP API: one method a route, typed rows back, RelayError for everything that went wrong."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote

import aiohttp

from relaytui.client.answers import (
    Events,
    FaultBody,
    Forced,
    Health,
    Log,
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
from relaytui.wire.codec import decode, encode
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.status import OrderKind
from relaytui.wire.text import clean

T = TypeVar("T")

ACTOR_HEADER = "X-Relay-Actor"
MAX_ANSWER = 64 << 20
"""Bytes of one answer that are read; a commander's pages are all smaller."""


class CommanderClient:
    """Use as `async with CommanderClient(endpoint) as client`. The commander proves itself before the first call."""

    def __init__(self, endpoint: Endpoint, *, actor: str | None = None) -> None:
        self.endpoint = endpoint
        self._actor = clean(actor if actor is not None else whoami_here(), 128)
        self._session: aiohttp.ClientSession | None = None
        self._proven = False

    async def __aenter__(self) -> Self:
        self._session = open_session()
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

    async def drain(self, run_id: str, *, expected_epoch: int, why: str = "") -> Ordered:
        """Have the holder save and release. RelayError `epoch_changed` or `not_held` where that no longer fits."""
        return await self._order(OrderKind.DRAIN, run_id, expected_epoch, why)

    async def cancel(self, run_id: str, *, expected_epoch: int, why: str = "") -> Ordered:
        """Have the holder save and stop for good; a queued run is cancelled at once. RelayError as `drain`."""
        return await self._order(OrderKind.CANCEL, run_id, expected_epoch, why)

    async def save(self, run_id: str, *, expected_epoch: int, why: str = "") -> Ordered:
        """Have the holder save now and go on. RelayError as `drain`, or `not_now` where no trainer runs."""
        return await self._order(OrderKind.SAVE, run_id, expected_epoch, why)

    async def sync(self, run_id: str, *, expected_epoch: int, why: str = "") -> Ordered:
        """Have the holder bring its newest checkpoint to the Hub now. RelayError as `save`."""
        return await self._order(OrderKind.SYNC, run_id, expected_epoch, why)

    async def _order(self, kind: OrderKind, run_id: str, expected_epoch: int, why: str) -> Ordered:
        body = {"expected_epoch": expected_epoch, "why": why}
        return await self._post(f"/api/runs/{quote(run_id, safe='')}/{kind}", body, Ordered)

    async def requeue(self, run_id: str, *, expected_epoch: int, why: str = "") -> Requeued:
        """Queue an ended run again. RelayError `epoch_changed`, or `not_ended` where it is queued or held."""
        body = {"expected_epoch": expected_epoch, "why": why}
        return await self._post(f"/api/runs/{quote(run_id, safe='')}/requeue", body, Requeued)

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
    ) -> T:
        session = self._open()
        if not self._proven:
            await self.health()
        headers = {
            "Authorization": f"Bearer {self.endpoint.token}",
            "Host": self.endpoint.host,
            ACTOR_HEADER: quote(self._actor, safe=" @._-"),
        }
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with session.request(
                method,
                f"{self.endpoint.url}{path}",
                params=dict(query or {}),
                data=body,
                headers=headers,
                allow_redirects=False,
            ) as answer:
                status, content = answer.status, await _content(answer, path)
        except (aiohttp.ClientConnectionError, TimeoutError, OSError) as error:
            # Whoever answers there next has to prove itself again.
            self._proven = False
            raise unreachable(self.endpoint.url, error) from None
        except (aiohttp.ClientError, ValueError) as error:
            raise RelayError("bad_answer", f"{path}: {clean(str(error), 200)}") from None
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

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session()
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
    exit_code = Exit.AUTH if status in (401, 403) else Exit.UNAVAILABLE if status >= 500 else Exit.FAILED
    try:
        fault = decode(content, FaultBody).error
    except RelayError:
        return RelayError("bad_answer", f"{path} answered {status}", "", exit_code=exit_code, status=status)
    return RelayError(
        clean(fault.code, 64), clean(fault.message, 500), clean(fault.hint, 500), exit_code=exit_code, status=status
    )
