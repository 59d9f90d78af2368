"""The HTTP routes. Each checks its input, asks a service, and answers one JSON object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from msgspec import Struct

from relaytui import __version__
from relaytui.commander.http.artifacts import ArtifactRoutes
from relaytui.commander.http.bodies import actor_of, answer, body_of, query_int
from relaytui.commander.http.door import Connection
from relaytui.commander.http.guard import ROLE, Credentials
from relaytui.commander.http.ws_agent import AgentSession, agent_socket
from relaytui.commander.http.ws_feed import FeedSession, feed_socket
from relaytui.commander.model.orders import ORDERS
from relaytui.commander.services.core import Core
from relaytui.commander.services.orders import unknown_run
from relaytui.commander.services.original import Original
from relaytui.commander.services.pages import MAX_LINES
from relaytui.wire.bounds import ShortText
from relaytui.wire.errors import RelayError
from relaytui.wire.ids import Epoch, is_id
from relaytui.wire.original import AcquireBody, RenewBody, ReportBody
from relaytui.wire.proof import CHALLENGE_HEADER, NONCE_PATTERN
from relaytui.wire.status import OrderKind
from relaytui.wire.text import clean

MAX_BODY = 1 << 20
MAX_EVENTS = 1_000
Socket = web.WebSocketResponse[Any]


class ForceBody(Struct, frozen=True):
    expected_epoch: Epoch
    why: ShortText = ""
    pod_gone: bool = False


class ActBody(Struct, frozen=True):
    expected_epoch: Epoch
    why: ShortText = ""


def run_id_of(request: web.Request) -> str:
    run_id = request.match_info["run_id"]
    if not is_id(run_id):
        raise RelayError("bad_field", "no run can have that id", "letters, digits, . _ -; at most 128", status=422)
    return run_id


def asked_run(request: web.Request) -> str | None:
    """Of the query, where it names one."""
    run_id = request.query.get("run")
    if run_id is not None and not is_id(run_id):
        raise RelayError("bad_field", "no run can have that id", "letters, digits, . _ -", status=422)
    return run_id


@dataclass(frozen=True, slots=True)
class Api:
    core: Core
    credentials: Credentials

    def routes(self) -> list[web.RouteDef]:
        original = Original(self.core)

        async def acquire(request: web.Request) -> web.Response:
            return answer(await original.acquire(await body_of(request, AcquireBody, bad_json=422)))

        async def renew(request: web.Request) -> web.Response:
            return answer(await original.renew(await body_of(request, RenewBody, bad_json=422)))

        async def report(request: web.Request) -> web.Response:
            return answer(await original.report(await body_of(request, ReportBody, bad_json=422)))

        return [
            web.get("/api/health", self.health, allow_head=False),
            web.get("/api/whoami", self.whoami, allow_head=False),
            web.get("/api/runs", self.runs, allow_head=False),
            web.get("/api/runs/{run_id}", self.run, allow_head=False),
            web.get("/api/runs/{run_id}/log", self.log, allow_head=False),
            web.get("/api/runs/{run_id}/series", self.series, allow_head=False),
            web.post("/api/runs/{run_id}/force-acquire", self.force),
            web.post("/api/runs/{run_id}/requeue", self.requeue),
            *(web.post(f"/api/runs/{{run_id}}/{kind}", self._ordering(kind)) for kind in ORDERS),
            web.get(r"/api/runs/{run_id}/orders/{order_id:[0-9]{1,15}}", self.order, allow_head=False),
            web.get("/api/workers", self.workers, allow_head=False),
            web.get("/api/events", self.events, allow_head=False),
            web.post("/api/lease/acquire", acquire),
            web.post("/api/lease/renew", renew),
            web.post("/api/job/report", report),
            *ArtifactRoutes(self.core).routes(),
            web.get("/ws/agent", self.agent, allow_head=False),
            web.get("/ws/feed", self.feed, allow_head=False),
        ]

    # -- who -----------------------------------------------------------------------------------------------------

    async def health(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = {"ok": True, "name": "relay", "version": __version__}
        nonce = request.headers.get(CHALLENGE_HEADER)
        if nonce is not None:
            if not NONCE_PATTERN.match(nonce):
                raise RelayError("bad_field", f"{CHALLENGE_HEADER} is no nonce", "send 64 hex digits", status=422)
            body["proof"] = self.credentials.proof(nonce, request.host.lower())
        return answer(body)

    async def whoami(self, request: web.Request) -> web.Response:
        core = self.core
        now, store = core.clock.wall(), core.artifacts
        run_id = asked_run(request)
        return answer(
            {
                **({} if run_id is None else {"run": self._standing(run_id)}),
                "role": request[ROLE],
                "commander": core.generation,
                "now": now,
                "version": __version__,
                "lease_seconds": core.settings.lease_seconds,
                "no_grants_until": core.leases.no_grants_until(now),
                "artifacts": {"quota": store.quota, "used": await store.used(), "run_quota": store.run_quota},
            }
        )

    def _standing(self, run_id: str) -> dict[str, Any] | None:
        """What an agent that asks for its lease would hear; None of a run that would be a new one."""
        if run_id not in self.core.board.runs:
            return None
        row = self._row(run_id)
        return {"status": row.status, "mode": row.mode, "holder": row.holder, "epoch": row.epoch}

    # -- pages ---------------------------------------------------------------------------------------------------

    async def runs(self, request: web.Request) -> web.Response:
        now = self.core.clock.wall()
        until = self.core.leases.no_grants_until(now)
        return answer({"now": now, "runs": self.core.board.run_rows(), "no_grants_until": until})

    async def run(self, request: web.Request) -> web.Response:
        run_id = self._known(request)
        attempts = await self.core.pages.attempts(run_id)
        checkpoints = (await self.core.reader.checkpoints(run_id))[::-1]
        artifacts = (await self.core.reader.artifacts(run_id))[::-1]
        row = self.core.board.run_row(self.core.board.runs[run_id])
        return answer(
            {
                "now": self.core.clock.wall(),
                "run": row,
                "attempts": attempts,
                "checkpoints": checkpoints,
                "artifacts": artifacts,
                "restored_at": row.restored_at,
            }
        )

    async def log(self, request: web.Request) -> web.Response:
        run_id = self._known(request)
        epoch = query_int(request, "epoch", None, 0, 2**53)
        before = query_int(request, "before", None, 0, 2**53)
        limit = query_int(request, "limit", 500, 1, MAX_LINES) or 1
        if before is not None and epoch is None:
            raise RelayError("bad_field", "before needs an epoch", "lines are numbered within an attempt", status=422)
        lines = await self.core.pages.lines(run_id, epoch=epoch, before=before, limit=limit)
        return answer({"lines": lines})

    async def series(self, request: web.Request) -> web.Response:
        run_id = self._known(request)
        metric = request.query.get("metric", "loss")
        if not 1 <= len(metric) <= 128:
            raise RelayError("bad_field", "metric is not a name", "1 to 128 characters", status=422)
        points = query_int(request, "points", 500, 2, 5_000) or 2
        return answer({"metric": metric, "points": await self.core.pages.series(run_id, metric, points)})

    async def workers(self, request: web.Request) -> web.Response:
        return answer({"now": self.core.clock.wall(), "workers": self.core.board.worker_rows()})

    async def events(self, request: web.Request) -> web.Response:
        run_id = asked_run(request)
        rows = await self.core.reader.events(
            after=query_int(request, "after", None, 0, 2**53),
            before=query_int(request, "before", None, 0, 2**53),
            run_id=run_id,
            limit=query_int(request, "limit", 200, 1, MAX_EVENTS) or 1,
        )
        return answer({"now": self.core.clock.wall(), "events": rows})

    # -- orders --------------------------------------------------------------------------------------------------

    async def force(self, request: web.Request) -> web.Response:
        run_id = run_id_of(request)
        body = await body_of(request, ForceBody)
        run = await self.core.orders.force(
            run_id,
            body.expected_epoch,
            actor_of(request),
            clean(body.why, 1_024),
            pod_gone=body.pod_gone,
            told=self.core.board.told(run_id),
        )
        return answer({"run": self._row(run_id), "epoch": run.epoch})

    def _ordering(self, kind: OrderKind) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def give(request: web.Request) -> web.Response:
            run_id = run_id_of(request)
            body = await body_of(request, ActBody)
            order = await self.core.orders.give(
                kind, run_id, body.expected_epoch, actor_of(request), clean(body.why, 1_024)
            )
            return answer({"run": self._row(run_id), "order_id": None if order is None else order.id})

        return give

    async def order(self, request: web.Request) -> web.Response:
        run_id, order_id = self._known(request), int(request.match_info["order_id"])
        row = await self.core.reader.order(run_id, order_id)
        if row is None:
            raise RelayError("unknown_order", f"run {run_id} has no order {order_id}", status=404)
        return answer({"order": row})

    async def requeue(self, request: web.Request) -> web.Response:
        run_id = run_id_of(request)
        body = await body_of(request, ActBody)
        await self.core.orders.requeue(run_id, body.expected_epoch, actor_of(request), clean(body.why, 1_024))
        return answer({"run": self._row(run_id)})

    def _row(self, run_id: str) -> Any:
        return self.core.board.run_row(self.core.board.runs[run_id])

    def _known(self, request: web.Request) -> str:
        run_id = run_id_of(request)
        if run_id not in self.core.board.runs:
            raise unknown_run(run_id)
        return run_id

    # -- sockets -------------------------------------------------------------------------------------------------

    async def agent(self, request: web.Request) -> web.StreamResponse:
        ws = await _upgraded(request, agent_socket())
        try:
            session = AgentSession(self.core, ws, _cutter(request), request.transport)
            if isinstance(request.protocol, Connection):
                request.protocol.holds = session.holds
            await session.run()
        finally:
            request.app[SOCKETS].discard(ws)
        return ws

    async def feed(self, request: web.Request) -> web.StreamResponse:
        ws = await _upgraded(request, feed_socket())
        try:
            await FeedSession(self.core, ws, _cutter(request)).run()
        finally:
            request.app[SOCKETS].discard(ws)
        return ws


SOCKETS: web.AppKey[set[Socket]] = web.AppKey("sockets", set)


def _cutter(request: web.Request) -> Callable[[], None]:
    """Cuts the connection off where it is, whatever waits in it."""

    def cut() -> None:
        transport = request.transport
        if transport is not None:  # what class it is of is the loop's affair: uvloop's are not asyncio's
            transport.abort()

    return cut


async def _upgraded(request: web.Request, ws: Socket) -> Socket:
    if not ws.can_prepare(request).ok:
        raise RelayError("no_upgrade", "this address speaks websocket", "connect with a websocket client", status=426)
    await ws.prepare(request)
    request.app[SOCKETS].add(ws)
    return ws
