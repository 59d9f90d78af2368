"""What waits to be sent on one agent's socket: answers first, then acks, which say only the newest."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Literal

from aiohttp import WSMsgType, web

from relaytui.wire.codec import encode
from relaytui.wire.messages import Ack, CommanderMessage
from relaytui.wire.status import Stream

MAX_WAITING = 10_000
Socket = web.WebSocketResponse[Literal[False]]


class Outbox:
    """One sending task a connection, none a message. A peer that does not read is given up."""

    def __init__(self, ws: Socket, abort: Callable[[], None]) -> None:
        self._ws = ws
        self._abort = abort
        self._answers: deque[bytes] = deque()
        self._acks: dict[tuple[str, int, Stream], int] = {}
        self._idle: asyncio.Future[None] | None = None
        """What the sending task waits for. An event would do too, at twice the price, for every answer there is."""

    def send(self, message: CommanderMessage, *, first: bool = False) -> None:
        if len(self._answers) >= MAX_WAITING:
            self._abort()  # it sends and does not read: what it did not get, it asks for again
            return
        if first:
            self._answers.appendleft(encode(message))
        else:
            self._answers.append(encode(message))
        self._wake()

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
                    await send(encode(Ack(run_id=run_id, epoch=epoch, stream=stream, seq=seq)), WSMsgType.TEXT)

    async def flush(self) -> None:
        """What still waits, sent by whoever is about to close the socket."""
        while self._answers:
            await self._ws.send_frame(self._answers.popleft(), WSMsgType.TEXT)
