"""Many agents and an operator at one commander's leases, over real sockets, cut off and restarted on the way; every
call is written down with when it was made and answered. Time is the test's; only the sockets and the disk are real."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import orjson
from commander_kit import DEADLINE, FakeClock
from linearize import Call

from relaytui.commander.server import Commander
from relaytui.commander.settings import CommanderSettings
from relaytui.wire.errors import RelayError
from relaytui.wire.messages import Acquire, Hello, Message, Register, Renew, Reports
from relaytui.wire.proof import derived_token
from relaytui.wire.reports import Ended, Started
from relaytui.wire.status import Outcome, Stream

STEP = 2.0
"""Seconds of the clock between two sweeps: as late as one may come and still count as awake."""
CALLS_A_STEP = 100
_encode = msgspec.json.Encoder().encode
ENDINGS = (*("preempted", "drained", "superseded", "crashed") * 5, "completed", "failed", "cancelled")


class History:
    """Calls of each run, in one order, on one clock."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._place = 0
        self.calls: defaultdict[str, list[Call]] = defaultdict(list)
        self.total = 0
        self.said: Counter[str] = Counter()

    def made(self, run_id: str, what: str, *said: Any) -> Call:
        self._place += 1
        call = Call(what, said, self._place, self._clock.boot())
        self.calls[run_id].append(call)
        self.total += 1
        return call

    def answered(self, call: Call, *answer: Any) -> None:
        self._place += 1
        call.answer, call.answered, call.until = answer, self._place, self._clock.boot()
        self.said[f"{call.what} {answer[0]}" + (f" {answer[1]}" if answer[0] == "refused" else "")] += 1


class Socket(asyncio.Protocol):
    """A websocket of as few instructions as possible, so that the load is the commander's and not the test's."""

    def __init__(self, head: bytes, heard: Callable[[dict[str, Any]], None], lost: Callable[[], None]) -> None:
        self._head = head
        self._heard = heard
        self._lost = lost
        self._buffer = b""
        self._open = False
        self.transport: asyncio.Transport | None = None
        self.gone = asyncio.Event()

    def connection_made(self, transport: Any) -> None:  # uvloop's is not asyncio's
        self.transport = transport
        transport.write(self._head)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.gone.is_set():
            self.gone.set()
            self._lost()

    def say(self, *messages: Message) -> None:
        assert self.transport is not None
        frames = bytearray()
        for message in messages:
            body = _encode(message)
            frames += bytes((0x81, 0x80 | len(body))) if len(body) < 126 else b"\x81\xfe" + len(body).to_bytes(2, "big")
            frames += b"\0\0\0\0"  # a mask that leaves it as it is
            frames += body
        self.transport.write(bytes(frames))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._open:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            assert head.startswith(b"HTTP/1.1 101"), head
            self._open, self._buffer = True, rest
        buffer, at = self._buffer, 0
        while len(buffer) >= at + 2:
            kind, size, start = buffer[at] & 0x0F, buffer[at + 1], at + 2
            if size == 126:
                size, start = int.from_bytes(buffer[at + 2 : at + 4], "big"), at + 4
            elif size == 127:
                size, start = int.from_bytes(buffer[at + 2 : at + 10], "big"), at + 10
            if len(buffer) < start + size:
                break
            body, at = buffer[start : start + size], start + size
            if self.gone.is_set():
                break  # cut: what was under way is not heard
            if kind == 1:
                self._heard(orjson.loads(body))
            elif kind == 9 and self.transport is not None:
                self.transport.write(b"\x8a\x80\0\0\0\0")
            elif kind == 8:
                self.connection_lost(None)
        self._buffer = buffer[at:]

    def cut(self) -> None:
        self.gone.set()
        if self.transport is not None:
            self.transport.abort()


class World:
    """One commander after another on one history, a clock, and what everybody called."""

    def __init__(self, root: Path, length: float) -> None:
        self.root = root
        self.clock = FakeClock()
        self.history = History(self.clock)
        self.length = length
        self.starts = 0
        self.cuts = 0
        self.key = b""
        """Made by the first commander with its books: it takes in leases that it cannot prove."""
        self._up = asyncio.Event()
        self._commander: Commander | None = None

    async def start(self) -> None:
        state = self.root / f"state-{self.starts}"
        if not self.starts:
            state.mkdir(mode=0o700)
        self.starts += 1
        self._commander = Commander(CommanderSettings(state=state, port=0, lease_seconds=self.length), clock=self.clock)
        await self._commander.start()
        self.key = (state / "key").read_bytes()
        self._up.set()

    async def commander(self) -> Commander:
        await self._up.wait()
        assert self._commander is not None
        return self._commander

    async def kill(self) -> None:
        """As kill -9 does: what was not committed is lost, what was is in the files as they lie, the log beside the
        database; those files are what the next one starts from."""
        commander = await self.commander()
        self._up.clear()
        for writer in (commander.core.relay, commander.core.frames):
            writer._commit = _drop  # type: ignore[method-assign]
            with suppress(RelayError):
                await writer.run(lambda tx: None)  # the batch on its way is through
        here = commander.settings.state
        left_out = shutil.ignore_patterns("lock", "commander.json")
        await asyncio.to_thread(shutil.copytree, here, self.root / f"state-{self.starts}", ignore=left_out)
        await commander.stop()
        shutil.rmtree(here)

    async def stop(self) -> None:
        await (await self.commander()).stop()

    async def pass_time(self) -> None:
        commander = await self.commander()
        self.clock.advance(STEP)
        with suppress(RelayError):  # killed meanwhile
            await commander.core.leases.sweep()


def _drop(batch: list[Any]) -> tuple[list[Any], list[Any]]:
    return [(work.done, None, RelayError("killed", "killed", "", status=503)) for work in batch], []


class Worker:
    """One agent on one run, with more in flight than a real one has: bursts of renewals, requests said twice, old
    leases presented, holders that fall silent and come back."""

    def __init__(self, world: World, name: str, run_id: str, dice: random.Random) -> None:
        self._world = world
        self._history = world.history
        self._name = name
        self._run_id = run_id
        self._dice = dice
        self._socket: Socket | None = None
        self._asked: dict[int, Call] = {}
        self._ending: Call | None = None
        self._number = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._lease: tuple[int, str] | None = None
        self._old: list[tuple[int, str]] = []
        self._request = 0
        self._ended = False

    async def work(self, until: Callable[[], bool]) -> None:
        while not until():
            try:
                await self._turn(until)
            except (ConnectionError, aiohttp.ClientError, TimeoutError):
                self.cut()
        await self._settled()
        self.cut()

    async def _turn(self, until: Callable[[], bool]) -> None:
        if self._socket is None or self._socket.gone.is_set():
            await self._connect()
        dice = self._dice
        if dice.random() < 0.035:
            self._burst(1 + dice.randrange(4))
            self._world.cuts += 1
            await asyncio.sleep(0 if dice.random() < 0.5 else 0.001)
            self.cut()
            return
        self._burst(16 + dice.randrange(32))
        await self._settled()
        if self._lease is not None and dice.random() < 0.06:
            # Silent for as long as a lease lasts, or a little less.
            wake = self._world.clock.boot() + self._world.length * dice.choice((0.9, 1.0, 1.1, 1.5))
            while self._world.clock.boot() < wake and not until():
                await asyncio.sleep(0.002)

    def _burst(self, size: int) -> None:
        dice, messages = self._dice, list[Message]()
        if self._lease is None:
            if dice.random() < 0.1:
                self._request += 1
            messages += [self._acquire() for _ in range(1 + dice.randrange(1 if self._ended else 3))]
            if dice.random() < 0.03:
                messages.append(self._register())
        else:
            messages += [self._renew(*self._lease) for _ in range(size)]
            if dice.random() < 0.04:
                messages.append(self._acquire())  # its answer was lost, as far as it knows
            if dice.random() < 0.25:
                messages.append(self._end(*self._lease))
        if self._old:
            messages += [self._renew(*dice.choice(self._old)) for _ in range(dice.randrange(3))]
        assert self._socket is not None
        self._quiet.clear()
        self._socket.say(*messages)

    # -- what it says --------------------------------------------------------------------------------------------

    def _ask(self, call: Call) -> int:
        self._number += 1
        self._asked[self._number] = call
        return self._number

    def _acquire(self) -> Message:
        request = f"q{self._request}"
        call = self._history.made(self._run_id, "acquire", self._name, request)
        return Acquire(self._ask(call), request, self._run_id, "sft")

    def _renew(self, epoch: int, token: str) -> Message:
        call = self._history.made(self._run_id, "renew", epoch, token)
        return Renew(self._ask(call), self._run_id, epoch, token)

    def _register(self) -> Message:
        epoch = max((lease[0] for lease in self._old), default=0) + self._dice.randrange(1, 8)
        token = self._dice.randbytes(32).hex()
        call = self._history.made(self._run_id, "register", self._name, epoch, token, False)
        return Register(self._ask(call), self._run_id, epoch, token, "sft")

    def _end(self, epoch: int, token: str) -> Message:
        outcome = self._dice.choice(ENDINGS)
        self._ending = self._history.made(self._run_id, "end", epoch, token, outcome)
        reports = [Started(t=1.0, pid=1), Ended(t=1.0, outcome=Outcome(outcome), step=1)]
        return Reports(self._run_id, epoch, token, Stream.STATE, 1, reports)

    # -- what it hears -------------------------------------------------------------------------------------------

    def _heard(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "granted":
                call = self._asked.pop(message["request"])
                self._history.answered(call, "granted", message["epoch"], message["token"])
                if call.said[1] == f"q{self._request}":
                    self._took(message["epoch"], message["token"])
            case "renewed":
                call = self._asked.pop(message["request"])
                self._history.answered(call, "ok")
                if call.what == "register":
                    self._took(*call.said[1:3])
            case "denied":
                self._history.answered(self._asked.pop(message["request"]), "refused", message["code"])
                self._ended = message["code"] == "ended"
            case "refused" if message.get("request"):
                call = self._asked.pop(message["request"])
                self._history.answered(call, "refused", message["code"])
                if call.what == "renew":
                    self._lost(*call.said)
            case "refused" | "ack":
                assert self._ending is not None, message
                call, self._ending = self._ending, None
                self._history.answered(call, *(("ok",) if message["type"] == "ack" else ("refused", message["code"])))
                self._lost(*call.said[:2])
            case "problem":
                self.cut()
            case _:
                return  # welcome, orders
        if not self._asked and self._ending is None:
            self._quiet.set()

    def _took(self, epoch: int, token: str) -> None:
        if self._lease is not None and self._lease != (epoch, token):
            self._lost(*self._lease)
        if (epoch, token) not in self._old:
            self._lease = (epoch, token)

    def _lost(self, epoch: int, token: str) -> None:
        if self._lease == (epoch, token):
            self._lease = None
            self._request += 1
            self._old = [*self._old[-3:], (epoch, token)]

    # -- its connection ------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        commander = await self._world.commander()
        address = urlsplit(commander.url)
        token = derived_token(self._world.key, "worker")
        head = (
            f"GET /ws/agent HTTP/1.1\r\nHost: {address.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n"
            f"Authorization: Bearer {token}\r\n\r\n"
        )
        loop = asyncio.get_running_loop()
        _, self._socket = await loop.create_connection(
            lambda: Socket(head.encode(), self._heard, self.cut), address.hostname, address.port
        )
        self._socket.say(Hello(1, self._name, self._name))

    async def _settled(self) -> None:
        """Everything was answered, or will never be."""
        try:
            async with asyncio.timeout(DEADLINE):
                await self._quiet.wait()
        except TimeoutError:
            raise AssertionError(
                f"{self._name}: no answer to {[*map(str, self._asked.values()), self._ending]}"
            ) from None

    def cut(self) -> None:
        """Whatever is unanswered stays so."""
        if self._socket is not None:
            self._socket.cut()
        self._socket = None
        self._asked.clear()
        self._ending = None
        self._quiet.set()


class Operator:
    """Takes runs over, drains them and queues them again, of several runs in turn."""

    def __init__(self, world: World, runs: list[str], dice: random.Random) -> None:
        self._world = world
        self._runs = runs
        self._dice = dice
        self._seen: dict[str, int] = {}

    async def work(self, until: Callable[[], bool]) -> None:
        await self._world.commander()
        headers = {"Authorization": f"Bearer {derived_token(self._world.key, 'operator')}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            while not until():
                for run_id in self._runs:
                    with suppress(aiohttp.ClientError, ConnectionError):
                        await self._act(session, run_id)
                await asyncio.sleep(0.01)

    async def _act(self, session: aiohttp.ClientSession, run_id: str) -> None:
        commander = await self._world.commander()
        view = commander.core.board.runs.get(run_id)
        if view is None:
            return
        dice, expected = self._dice, view.run.epoch
        if view.run.status.ended:
            await self._post(session, run_id, "requeue", "requeue", expected)
        elif dice.random() < 0.12:
            pod_gone = dice.random() < 0.4
            await self._post(session, run_id, "force-acquire", "force", expected, pod_gone)
        elif dice.random() < 0.3:
            order = "drain" if dice.random() < 0.7 else "cancel"
            await self._post(session, run_id, order, order, expected)

    async def _post(self, session: aiohttp.ClientSession, run_id: str, path: str, what: str, *said: Any) -> None:
        commander = await self._world.commander()
        body = {"expected_epoch": said[0], "why": "test"} | ({"pod_gone": said[1]} if len(said) > 1 else {})
        call = self._world.history.made(run_id, what, *said)
        async with session.post(f"{commander.url}/api/runs/{run_id}/{path}", json=body) as answer:
            told = await answer.json()
        if answer.status < 300:
            self._world.history.answered(call, "ok", *([told["epoch"]] if what == "force" else []))
        elif answer.status < 500:
            self._world.history.answered(call, "refused", told["error"]["code"])


async def load(
    root: Path, *, calls: int, runs: int, each: int, length: float, kills: int, seed: int
) -> tuple[History, World]:
    """`each` workers on each of the runs and an operator a few runs, until that many calls were made; the commander is
    killed and started again `kills` times on the way."""
    world = World(root, length)
    await world.start()
    names = [f"run-{number}" for number in range(runs)]

    def enough() -> bool:
        return world.history.total >= calls

    async def timekeeper() -> None:
        steps = 0
        while not enough():
            if world.history.total // CALLS_A_STEP > steps:
                steps += 1
                await world.pass_time()
            else:
                await asyncio.sleep(0.001)

    async def reaper() -> None:
        for number in range(1, kills + 1):
            while world.history.total < calls * number / (kills + 1):
                await asyncio.sleep(0.005)
            await world.kill()
            await world.start()

    try:
        async with asyncio.TaskGroup() as group:
            for number, name in enumerate(names):
                for place in range(each):
                    worker = Worker(world, f"w{number}-{place}", name, random.Random(f"{seed} {number} {place}"))
                    group.create_task(worker.work(enough))
            for first in range(0, runs, 5):
                operator = Operator(world, names[first : first + 5], random.Random(f"{seed} {first}"))
                group.create_task(operator.work(enough))
            group.create_task(timekeeper())
            group.create_task(reaper())
    finally:
        await world.stop()
    return world.history, world
