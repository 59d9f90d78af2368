"""Load of reports: several agents send frames of 50, a few in flight each, for some seconds.

    python -m tests.bench.load.ingest relay|bare PORT CONNECTIONS

The worker's token comes in RELAY_BENCH_TOKEN: a token is never in argv.
Asked `{"seconds": S}`, it answers `{"reports": N, "seconds": T}`: T is from the first frame sent to the
last one acknowledged (relay: committed; bare: decoded).
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Protocol

from relaytui.wire.messages import Ack
from tests.bench.load import asked
from tests.bench.load.agents import TOKEN_VARIABLE, Holder, acquire_all, understood
from tests.bench.load.frames import PER_FRAME, Frames
from tests.bench.load.websocket import ClosedError, Socket, connect

IN_FLIGHT = 4
"""Frames of one agent not yet acknowledged, at most."""
PATIENCE = 60.0
"""Seconds until everything sent must be acknowledged."""


class Sender(Protocol):
    async def burst(self, until: float) -> int:
        """Sends until then (perf_counter), waits for the last acknowledgement; how many reports that were."""
        ...


class AgentSender:
    """Sends to the commander: bounded by acknowledgements."""

    def __init__(self, holder: Holder) -> None:
        self._frames = Frames(holder)
        self._socket = holder.socket
        self._acked = 0
        self._failure: Exception | None = None
        self._moved = asyncio.Event()
        self._socket.on_message = self._message
        self._socket.on_close = self._fail

    def _message(self, payload: bytes) -> None:
        message = understood(payload)
        if isinstance(message, Ack):
            self._acked = max(self._acked, message.seq)
            self._moved.set()
        else:
            self._fail(ClosedError(f"reports were answered with {message}"))

    def _fail(self, why: Exception) -> None:
        self._failure = self._failure or why
        self._moved.set()

    async def _acknowledged(self, seq: int) -> None:
        while self._acked < seq:
            if self._failure is not None:
                raise self._failure
            self._moved.clear()
            await self._moved.wait()

    async def burst(self, until: float) -> int:
        before = self._frames.last_seq
        while time.perf_counter() < until:
            self._socket.send(self._frames.next())
            await self._acknowledged(self._frames.last_seq - (IN_FLIGHT - 1) * PER_FRAME)
        await self._acknowledged(self._frames.last_seq)
        return self._frames.last_seq - before


class BareSender:
    """Sends the same frames to a server that only decodes: bounded by the connection alone."""

    def __init__(self, socket: Socket, number: int) -> None:
        self._socket = socket
        self._frames = Frames(Holder(socket, f"ingest-{number:04d}", 1, "0" * 64))

    async def burst(self, until: float) -> int:
        before = self._frames.last_seq
        while time.perf_counter() < until:
            self._socket.send(self._frames.next())
            await self._socket.drain()
            await asyncio.sleep(0)  # a write that fits does not wait, and the others want their turn
        self._socket.send(b"{}")
        decoded = int(await self._socket.receive(PATIENCE))
        if decoded != self._frames.last_seq:
            raise ClosedError(f"{self._frames.last_seq} reports were sent, {decoded} decoded")
        return self._frames.last_seq - before


async def burst(senders: list[Sender], seconds: float) -> asked.Answer:
    start = time.perf_counter()
    async with asyncio.timeout(seconds + PATIENCE):
        counts = await asyncio.gather(*(sender.burst(start + seconds) for sender in senders))
    return {"reports": sum(counts), "seconds": time.perf_counter() - start}


def main(target: str, port: int, connections: int) -> None:
    async def open_load() -> asked.Answering:
        senders: list[Sender]
        if target == "relay":
            senders = [
                AgentSender(holder)
                for holder in await acquire_all(port, os.environ[TOKEN_VARIABLE], "ingest", connections)
            ]
        else:
            senders = [BareSender(await connect(port), number) for number in range(connections)]
        return lambda question: burst(senders, question["seconds"])

    asked.run(open_load)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
