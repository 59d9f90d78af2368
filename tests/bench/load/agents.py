"""The least that is an agent to a commander: hello, a granted lease, and the socket that both go over."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import Any, cast

from relaytui.wire.codec import decode, encode
from relaytui.wire.messages import PROTOCOL, Acquire, CommanderMessage, Granted, Hello, Welcome
from tests.bench.load.websocket import ClosedError, Socket, connect

TOKEN_VARIABLE = "RELAY_BENCH_TOKEN"
TOGETHER = 16
"""Connections that are opened at the same time; more would only queue."""


@dataclass(frozen=True)
class Holder:
    """A connected agent and its lease."""

    socket: Socket
    run_id: str
    epoch: int
    token: str


def understood(payload: bytes) -> CommanderMessage:
    return cast(CommanderMessage, decode(payload, cast("type[Any]", CommanderMessage)))


async def acquire(port: int, token: str, run_id: str) -> Holder:
    """Connects as a fresh agent and acquires `run_id`; ClosedError when the commander will not."""
    socket = await connect(port, "/ws/agent", {"Authorization": f"Bearer {token}"})
    incarnation = secrets.token_hex(16)
    socket.send(encode(Hello(protocol=PROTOCOL, worker=f"w-{run_id}", incarnation=incarnation, version="bench")))
    socket.send(encode(Acquire(request=1, request_id=secrets.token_hex(16), run_id=run_id, mode="sft")))
    while True:
        message = understood(await socket.receive())
        if isinstance(message, Granted):
            return Holder(socket, run_id, message.epoch, message.token)
        if not isinstance(message, Welcome):
            raise ClosedError(f"asked for {run_id} and was answered {message}")


async def acquire_all(port: int, token: str, prefix: str, count: int) -> list[Holder]:
    """`count` agents, each with a run of its own."""
    gate = asyncio.Semaphore(TOGETHER)

    async def one(number: int) -> Holder:
        async with gate:
            return await acquire(port, token, f"{prefix}-{number:04d}")

    return list(await asyncio.gather(*(one(number) for number in range(count))))
