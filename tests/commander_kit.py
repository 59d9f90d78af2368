"""A real commander in the test's loop, and agents that speak to it over real sockets."""

from __future__ import annotations

import asyncio
import io
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from programs import KEY

from relaytui.commander.server import Commander
from relaytui.commander.settings import CommanderSettings
from relaytui.commander.store.opening import open_databases
from relaytui.wire.clock import SystemClock
from relaytui.wire.proof import Role, derived_token

MANIFEST = "ab" * 32
DEADLINE = 10.0


class FakeClock:
    """Time that passes when told to; wall and boot clock apart, as on a machine."""

    def __init__(self, boot_id: str = "boot-1", boot: float = 1_000.0) -> None:
        self._boot_id = boot_id
        self._boot = boot
        self._wall = 1_800_000_000.0

    def wall(self) -> float:
        return self._wall

    def boot(self) -> float:
        return self._boot

    def boot_id(self) -> str:
        return self._boot_id

    def advance(self, seconds: float) -> None:
        self._boot += seconds
        self._wall += seconds

    def step_wall(self, seconds: float) -> None:
        """Somebody set the clock."""
        self._wall += seconds

    def reboot(self, name: str) -> None:
        self._boot_id = name
        self._boot = 5.0


async def until(condition: Callable[[], Any], within: float = DEADLINE) -> Any:
    """The first true value of `condition`; fails loudly after the deadline."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while not (value := condition()):
        assert loop.time() < end, "it did not happen in time"
        await asyncio.sleep(0.005)
    return value


class Agent:
    """One agent's websocket, by hand: what it says and what it hears."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, worker: str, incarnation: str) -> None:
        self.ws = ws
        self.worker = worker
        self.incarnation = incarnation
        self.welcome: dict[str, Any] = {}
        self.request = 0
        self.seq = {"state": 0, "telemetry": 0}
        self.run_id = ""
        self.epoch = 0
        self.token = ""

    async def say(self, **message: Any) -> None:
        await self.ws.send_str(orjson.dumps(message).decode())

    async def hear(self, kind: str | None = None) -> dict[str, Any]:
        """The next message; of that kind, where one is named (orders may come in between). That somebody follows its
        lines, or nobody does, is heard where it is asked for."""
        while True:
            message = await self.ws.receive(timeout=DEADLINE)
            assert message.type is aiohttp.WSMsgType.TEXT, f"hung up: {message}"
            body: dict[str, Any] = orjson.loads(message.data)
            if body["type"] == kind or (kind is None and body["type"] != "watched"):
                return body
            if body["type"] == "watched":
                continue
            assert body["type"] == "order", f"wanted {kind}, got {body}"

    async def acquire(
        self, run_id: str, *, mode: str = "sft", request_id: str | None = None, **more: Any
    ) -> dict[str, Any]:
        self.request += 1
        await self.say(
            type="acquire", request=self.request, request_id=request_id or f"q{self.request}", run_id=run_id, mode=mode,
            **more,
        )  # fmt: skip
        answer = await self.hear()
        while answer["type"] == "welcome":  # another of its name has come
            answer = await self.hear()
        assert answer["request"] == self.request
        if answer["type"] == "granted":
            self.run_id, self.epoch, self.token = run_id, answer["epoch"], answer["token"]
            self.seq = {"state": 0, "telemetry": 0}
        return answer

    async def renew(self, **other: Any) -> dict[str, Any]:
        self.request += 1
        lease = {"run_id": self.run_id, "epoch": self.epoch, "token": self.token} | other
        await self.say(type="renew", request=self.request, **lease)
        answer = await self.hear()
        while answer["type"] == "order":
            answer = await self.hear()
        assert answer["request"] == self.request, answer
        return answer

    async def send(self, stream: str, *reports: dict[str, Any], first_seq: int | None = None, **other: Any) -> None:
        if first_seq is None:
            first_seq = self.seq[stream] + 1
            self.seq[stream] += len(reports)
        lease = {"run_id": self.run_id, "epoch": self.epoch, "token": self.token} | other
        await self.say(
            type="reports", stream=stream, first_seq=first_seq, reports=[{"t": 1.0} | report for report in reports],
            **lease,
        )  # fmt: skip

    async def report(self, stream: str, *reports: dict[str, Any], **other: Any) -> dict[str, Any]:
        """Sends one frame and gives the answer to it: an ack, or a refusal."""
        await self.send(stream, *reports, **other)
        answer = await self.hear()
        while answer["type"] == "order":
            answer = await self.hear()
        return answer

    async def state(self, *reports: dict[str, Any], **other: Any) -> dict[str, Any]:
        return await self.report("state", *reports, **other)

    async def tell(self, *reports: dict[str, Any], **other: Any) -> dict[str, Any]:
        return await self.report("telemetry", *reports, **other)

    async def close(self) -> None:
        await self.ws.close()


def started(step: int = 0, checkpoint: str | None = None) -> dict[str, Any]:
    return {"type": "started", "step": step, "checkpoint": checkpoint, "pid": 42}


def ended(outcome: str, step: int = 0, **more: Any) -> dict[str, Any]:
    return {"type": "ended", "outcome": outcome, "step": step} | more


def published(step: int, name: str | None = None, manifest: str = MANIFEST) -> dict[str, Any]:
    name = name or f"step_{step:08d}"
    return {"type": "published", "name": name, "step": step, "bytes": 10, "files": 2, "manifest": manifest}


def log(n: int, *lines: str) -> dict[str, Any]:
    return {"type": "log", "n": n, "lines": list(lines)}


def step(number: int, total: int | None = None, **metrics: Any) -> dict[str, Any]:
    return {"type": "step", "step": number, "total": total, "metrics": metrics}


class Feed:
    """A dashboard's websocket, by hand."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.snapshot: dict[str, Any] = {}

    async def watch(self, *runs: str, backlog: int = 500) -> None:
        await self.ws.send_str(orjson.dumps({"type": "watch", "runs": runs, "backlog": backlog}).decode())

    async def hear(self) -> dict[str, Any]:
        """The next message but beats."""
        while True:
            message = await self.ws.receive(timeout=DEADLINE)
            assert message.type is aiohttp.WSMsgType.TEXT, f"hung up: {message}"
            body: dict[str, Any] = orjson.loads(message.data)
            if body["type"] != "beat":
                return body

    async def until(self, wanted: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The next message that is wanted; others are skipped. Beats alone do not keep it waiting for ever."""
        async with asyncio.timeout(DEADLINE):
            while True:
                body = await self.hear()
                if wanted(body):
                    return body

    async def run(self, run_id: str, **values: Any) -> dict[str, Any]:
        """The next picture of the run that shows these values."""

        def shows(body: dict[str, Any]) -> bool:
            row = body.get("run", {})
            return body["type"] == "run" and row["run_id"] == run_id and all(row.get(k) == v for k, v in values.items())

        row: dict[str, Any] = (await self.until(shows))["run"]
        return row


class Kit:
    """A running commander with a client session."""

    def __init__(self, commander: Commander, session: aiohttp.ClientSession) -> None:
        self.commander = commander
        self.session = session
        self.key = (commander.settings.state / "key").read_bytes()
        self.operator = derived_token(self.key, "operator")
        self.worker = commander.settings.shared_secret or derived_token(self.key, "worker")

    def headers(self, role: Role | None) -> dict[str, str]:
        if role is None:
            return {}
        return {"Authorization": f"Bearer {self.operator if role == 'operator' else self.worker}"}

    async def get(
        self, path: str, role: Role | None = "operator", headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        async with self.session.get(self.commander.url + path, headers=self.headers(role) | (headers or {})) as answer:
            return answer.status, await answer.json()

    async def post(
        self, path: str, body: Any, role: Role | None = "operator", headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        data = io.BytesIO(body if isinstance(body, bytes) else orjson.dumps(body))
        async with self.session.post(
            self.commander.url + path, data=data, headers=self.headers(role) | (headers or {})
        ) as answer:
            return answer.status, await answer.json()

    async def agent(self, worker: str = "pod", incarnation: str | None = None, **more: Any) -> Agent:
        ws = await self.session.ws_connect(self.commander.url + "/ws/agent", headers=self.headers("worker"))
        agent = Agent(ws, worker, incarnation or f"{worker}-1")
        await agent.say(type="hello", protocol=1, worker=worker, incarnation=agent.incarnation, **more)
        agent.welcome = await agent.hear("welcome")
        return agent

    async def feed(self) -> Feed:
        feed = Feed(await self.session.ws_connect(self.commander.url + "/ws/feed", headers=self.headers("operator")))
        feed.snapshot = await feed.hear()
        return feed

    async def run(self, run_id: str) -> dict[str, Any]:
        status, body = await self.get(f"/api/runs/{run_id}")
        assert status == 200, body
        row: dict[str, Any] = body["run"]
        return row

    async def attempts(self, run_id: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (await self.get(f"/api/runs/{run_id}"))[1]["attempts"]
        return rows

    async def lines(self, run_id: str, query: str = "") -> list[str]:
        return [line["text"] for line in (await self.get(f"/api/runs/{run_id}/log{query}"))[1]["lines"]]

    async def kinds(self, run_id: str) -> list[str]:
        """Kinds of the run's events, oldest first."""
        return [event["kind"] for event in await self.events(run_id)]

    async def events(self, run_id: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (await self.get(f"/api/events?run={run_id}&limit=1000"))[1]["events"]
        return rows

    async def force(self, run_id: str, expected_epoch: int, **more: Any) -> tuple[int, Any]:
        return await self.post(
            f"/api/runs/{run_id}/force-acquire", {"expected_epoch": expected_epoch, "why": "test"} | more
        )

    async def requeue(self, run_id: str, expected_epoch: int) -> tuple[int, Any]:
        return await self.post(f"/api/runs/{run_id}/requeue", {"expected_epoch": expected_epoch, "why": "test"})

    async def drain(self, run_id: str, expected_epoch: int) -> tuple[int, Any]:
        return await self.post(f"/api/runs/{run_id}/drain", {"expected_epoch": expected_epoch, "why": "test"})

    async def pass_time(self, clock: FakeClock, seconds: float) -> None:
        """Time with a commander that is awake: in steps, with the sweep it makes in each."""
        left = seconds
        while left > 0:
            clock.advance(min(left, 2.0))
            left -= 2.0
            await self.commander.core.leases.sweep()


@cache
def empty_databases() -> dict[str, bytes]:
    """As a first start makes them: going through all migrations takes longer than the rest of it."""
    with tempfile.TemporaryDirectory() as folder:
        opened = open_databases(Path(folder))
        opened.relay.close()
        opened.telemetry.close()
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@asynccontextmanager
async def running(state: Path, clock: Any = None, **settings: Any) -> AsyncIterator[Kit]:
    """A commander on `state`, stopped at the end."""
    if not state.exists():
        # One key for all tests: stretching it into proof keys is slow on purpose, and is remembered in the process.
        state.mkdir(mode=0o700, parents=True)
        for name, content in ({"key": KEY} | empty_databases()).items():
            (state / name).write_bytes(content)
    commander = Commander(CommanderSettings(**({"state": state, "port": 0} | settings)), clock=clock or SystemClock())
    await commander.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Kit(commander, session)
    finally:
        await commander.stop()
