"""What waits to be sent on one agent's socket: answers first, then acks, which say only the newest."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec
from aiohttp import WSMsgType, web

from relaytui.wire.messages import Ack, CommanderMessage
from relaytui.wire.status import Stream

MAX_WAITING = 10_000
TEXT = 0x81
"""First byte of a text frame that is whole (RFC 6455 §5.2); what a server sends is not masked."""
SHORT, MEDIUM = 125, 126
"""The longest payload whose length is the second byte, and what stands there before a length of two bytes."""
SMALL = 65_535
_HEAD = struct.Struct("!BBH")
_encode = msgspec.json.Encoder().encode
"""As `wire.codec.encode` for a message, which is a struct, at a quarter of the price."""
Socket = web.WebSocketResponse[Literal[False]]


class Outbox:
    """One sending task a connection, none a message. A peer that does not read is given up.

    An answer for which nobody has to wait goes out at once, past the task: to wake that costs more than to send it.
    """

    def __init__(self, ws: Socket, abort: Callable[[], None], transport: asyncio.Transport | None = None) -> None:
        """`transport`: the one below `ws`, where there is one."""
        self._ws = ws
        self._abort = abort
        self._transport = transport
        self._answers: deque[bytes] = deque()
        self._acks: dict[tuple[str, int, Stream], int] = {}
        self._idle: asyncio.Future[None] | None = None
        """What the sending task waits for. An event would do too, at twice the price, for every answer there is."""

    def send(self, message: CommanderMessage, *, first: bool = False) -> None:
        if len(self._answers) >= MAX_WAITING:
            self._abort()  # it sends and does not read: what it did not get, it asks for again
            return
        data = _encode(message)
        if first:
            self._answers.appendleft(data)
        elif self._sent_at_once(data):
            return
        else:
            self._answers.append(data)
        self._wake()

    def _sent_at_once(self, data: bytes) -> bool:
        """Where the task has nothing to send, and the socket took all that it was given before."""
        transport = self._transport
        if self._idle is None or transport is None or self._ws.closed or len(data) > SMALL:
            return False
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        transport.write(
            _HEAD.pack(TEXT, MEDIUM, len(data)) + data if len(data) > SHORT else bytes((TEXT, len(data))) + data
        )
        return True

    def ack(self, run_id: str, epoch: int, stream: Stream, seq: int) -> None:
        self._acks[run_id, epoch, stream] = seq
        self._wake()

    def _wake(self) -> None:
        if self._idle is not None:
            if not self._idle.done():
                self._idle.set_result(None)
            self._idle = None

    async def run(self) -> None:
        """Sends until cancelled, or until the peer cannot be reached."""
        answers = self._answers
        loop, send = asyncio.get_running_loop(), self._ws.send_frame
        while True:
            if not (answers or self._acks):
                self._idle = loop.create_future()
                await self._idle
            while answers or self._acks:
                while answers:
                    await send(answers.popleft(), WSMsgType.TEXT)
                acks, self._acks = self._acks, {}
                for (run_id, epoch, stream), seq in acks.items():
                    if answers:  # a renewal was answered meanwhile: it goes first
                        await send(answers.popleft(), WSMsgType.TEXT)
                    await send(_encode(Ack(run_id=run_id, epoch=epoch, stream=stream, seq=seq)), WSMsgType.TEXT)

    async def flush(self) -> None:
        """What still waits, sent by whoever is about to close the socket."""
        while self._answers:
            await self._ws.send_frame(self._answers.popleft(), WSMsgType.TEXT)
