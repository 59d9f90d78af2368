"""Load of log lines: agents whose trainers print at a pace, each line sent as an agent sends it.

    python -m tests.bench.load.lines PORT AGENTS LINES_A_SECOND

The worker's token comes in RELAY_BENCH_TOKEN: a token is never in argv.
Asked `{"seconds": S}`, every agent sends that many lines a second for so long. The answer comes once all are
acknowledged: `{"lines": N, "frames": F, "seconds": T}`, T from the first line to the last acknowledgement.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time

from relay_agent.link.link import BATCH_AFTER, WINDOW
from relaytui.wire.codec import encode
from relaytui.wire.messages import Ack, Reports
from relaytui.wire.reports import Log
from relaytui.wire.status import Stream
from tests.bench.load import asked
from tests.bench.load.agents import TOKEN_VARIABLE, Holder, acquire_all, understood
from tests.bench.load.frames import HOLE, LINE, TIME
from tests.bench.load.websocket import ClosedError

PATIENCE = 30.0


class Printer:
    """One agent. A line goes at once where nothing is in flight, else with those of the next few milliseconds, and
    with no more frames in flight than an agent has."""

    def __init__(self, holder: Holder, rate: float) -> None:
        log = Log(t=TIME, n=HOLE, lines=[LINE.replace(str(HOLE), "1")])
        whole = encode(
            Reports(
                run_id=holder.run_id,
                epoch=holder.epoch,
                token=holder.token,
                stream=Stream.TELEMETRY,
                first_seq=HOLE,
                reports=[log],
            )
        )
        assert b"%" not in whole
        one = encode(log)
        head, _, tail = whole.partition(one)
        self._line = one.replace(str(HOLE).encode(), b"%d")
        self._frame = head.replace(str(HOLE).encode(), b"%d") + b"%b" + tail
        self._every = 1 / rate
        self._socket = holder.socket
        self._socket.on_message = self._message
        self._socket.on_close = self._fail
        self._failure: Exception | None = None
        self._printed = self._sent = self._acked = 0
        self._out: list[int] = []  # the last line of each frame in flight
        self._sent_at = 0.0
        self._waits: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self.frames = 0

    async def go(self, until: float) -> int:
        """Prints until then (the loop's time); how many lines that were, once they are acknowledged."""
        loop, before = asyncio.get_running_loop(), self._printed
        due = loop.time() + random.uniform(0.0, self._every)
        while due < until and self._failure is None:
            await asyncio.sleep(due - loop.time())
            while due <= loop.time():
                self._printed += 1
                due += self._every
            self._send()
        while self._acked < self._printed:
            if self._failure is not None:
                raise self._failure
            self._idle.clear()
            await self._idle.wait()
        return self._printed - before

    def _send(self) -> None:
        """What an agent's link does when it is woken."""
        loop = asyncio.get_running_loop()
        if self._sent == self._printed or len(self._out) >= WINDOW or self._waits is not None:
            return
        wait = self._sent_at + BATCH_AFTER - loop.time()
        if self._out and wait > 0:
            self._waits = loop.call_later(wait, self._gathered)
            return
        first, self._sent, self._sent_at = self._sent + 1, self._printed, loop.time()
        lines = b",".join(self._line % number for number in range(first, self._sent + 1))
        self._socket.send(self._frame % (first, lines))
        self._out.append(self._sent)
        self.frames += 1

    def _gathered(self) -> None:
        self._waits = None
        self._send()

    def _message(self, payload: bytes) -> None:
        message = understood(payload)
        if not isinstance(message, Ack):
            self._fail(ClosedError(f"lines were answered with {message}"))
            return
        self._acked = max(self._acked, message.seq)
        self._out = [last for last in self._out if last > self._acked]
        self._idle.set()
        self._send()

    def _fail(self, why: Exception) -> None:
        self._failure = self._failure or why
        self._idle.set()


async def lines(printers: list[Printer], seconds: float) -> asked.Answer:
    start, frames = time.perf_counter(), sum(printer.frames for printer in printers)
    until = asyncio.get_running_loop().time() + seconds
    async with asyncio.timeout(seconds + PATIENCE):
        counts = await asyncio.gather(*(printer.go(until) for printer in printers))
    return {
        "lines": sum(counts),
        "frames": sum(printer.frames for printer in printers) - frames,
        "seconds": time.perf_counter() - start,
    }


def main(port: int, agents: int, rate: float) -> None:
    async def open_load() -> asked.Answering:
        holders = await acquire_all(port, os.environ[TOKEN_VARIABLE], "lines", agents)
        printers = [Printer(holder, rate) for holder in holders]
        return lambda question: lines(printers, question["seconds"])

    asked.run(open_load)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
