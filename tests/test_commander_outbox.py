"""What is sent to an agent: in order, and past the sending task where nobody has to be waited for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
import uvloop
from aiohttp import WSMsgType, web

from relaytui.commander.http.api import _cutter
from relaytui.commander.http.outbox import Outbox, Socket
from relaytui.wire.messages import Problem
from tests.bench.load.websocket import frame

DEADLINE = 10.0


class Wire:
    """A socket and the transport below it; `waiting`: bytes that the peer did not take yet."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.past_the_task = 0
        self.waiting = 0
        self.closed = False

    # -- the websocket

    async def send_frame(self, data: bytes, kind: WSMsgType) -> None:
        assert kind is WSMsgType.TEXT
        self.sent.append(data)

    # -- the transport

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def write(self, data: bytes) -> None:
        self.past_the_task += 1
        size = data[1] if data[1] < 126 else int.from_bytes(data[2:4], "big")
        payload = data[-size:]
        # As a server says it: the same, but for the mask.
        masked = frame(payload)
        assert data == masked[:1] + bytes((masked[1] & 0x7F,)) + masked[2 : len(masked) - size - 4] + payload
        self.sent.append(payload)


def outbox(wire: Wire) -> Outbox:
    return Outbox(cast(Socket, wire), lambda: None, cast(asyncio.Transport, wire))


def codes(wire: Wire) -> list[str]:
    return [data.split(b'"code":"')[1].split(b'"')[0].decode() for data in wire.sent]


@pytest.mark.parametrize("length", [1, 200, 70_000])
async def test_answers_come_in_order_whether_the_peer_takes_them_at_once_or_not(length: int) -> None:
    wire = Wire()
    box = outbox(wire)
    for number in range(3):  # before there is a task
        box.send(Problem(code=f"p{number}", message="." * length))
    assert wire.sent == []
    sending = asyncio.create_task(box.run())
    while len(wire.sent) < 3:
        await asyncio.sleep(0)
    for number in range(3, 40):
        wire.waiting = number % 3
        box.send(Problem(code=f"p{number}", message="." * length))
        if number % 5 == 0:
            await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE):
        while len(wire.sent) < 40:
            await asyncio.sleep(0)
    sending.cancel()
    assert codes(wire) == [f"p{number}" for number in range(40)]
    assert bool(wire.past_the_task) == (length < 65_000)


async def test_nothing_is_written_past_the_goodbye() -> None:
    wire = Wire()
    box = outbox(wire)
    sending = asyncio.create_task(box.run())
    await asyncio.sleep(0)
    wire.closed = True
    box.send(Problem(code="late", message=""))
    assert wire.past_the_task == 0
    sending.cancel()


def test_a_peer_that_reads_nothing_is_cut_off_in_the_loop_that_serve_runs_on_too() -> None:
    async def cut() -> None:
        loop = asyncio.get_running_loop()
        lost = loop.create_future()

        class Peer(asyncio.Protocol):
            def connection_lost(self, error: Exception | None) -> None:
                lost.set_result(None)

        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        transport, _ = await loop.create_connection(Peer, *server.sockets[0].getsockname())
        try:
            _cutter(cast(web.Request, SimpleNamespace(transport=transport)))()
            await asyncio.wait_for(lost, DEADLINE)
        finally:
            transport.abort()
            server.close()

    uvloop.run(cut())
