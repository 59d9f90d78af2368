"""Load of renewals: each client has one in flight, and sends the next as soon as it was answered, or at a pace.

    python -m tests.bench.load.renew relay|bare PORT CONNECTIONS

The worker's token comes in RELAY_BENCH_TOKEN: a token is never in argv.
Asked `{"clients": C, "seconds": S}`, the first C connections do so; with `"every": E` as agents do, E seconds or a
little less after each answer, and all but the first at times of their own. The answer is
`{"renewals": N, "seconds": T, "p99_ms": M}`. Without a pace no event loop is between two renewals (`closed`): client
and server share the processors, and what the client takes the server has not.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
import time

from relaytui.wire.codec import encode
from relaytui.wire.messages import Renew, Renewed
from tests.bench.load import asked, closed
from tests.bench.load.agents import TOKEN_VARIABLE, Holder, acquire_all, understood
from tests.bench.load.websocket import ClosedError, Socket, connect
from tests.bench.rows import percentile

PATIENCE = 30.0
HOLE = 8_888_888_888
_HOLE = str(HOLE).encode()
_NUMBER = re.compile(rb'"request":(\d+)')


class Renewer:
    """One connection and its lease. Every answer must carry the request's number and be of the type that is due."""

    def __init__(self, holder: Holder, *, echoed: bool) -> None:
        self._holder = holder
        self._socket = holder.socket
        self._echoed = echoed
        self._line: closed.Line | None = None
        self._due = b'"type":"renew"' if echoed else b'"type":"renewed"'
        message = Renew(request=HOLE, run_id=holder.run_id, epoch=holder.epoch, token=holder.token)
        self._template = encode(message).replace(_HOLE, b"%d")
        self._request = 100
        self._until = 0.0
        self._every = 0.0
        self._sent_at = 0.0
        self._took: list[float] = []
        self._done: asyncio.Future[None] | None = None

    async def line(self) -> closed.Line:
        """For a closed loop; what answers look like is seen on one, which is read."""
        if self._line is None:
            self._socket.on_message = None
            self._socket.send(self._template % HOLE)
            answer = await self._socket.receive(PATIENCE)
            if self._echoed:
                fits = answer == self._template % HOLE
            else:
                said, mine = understood(answer), self._holder
                fits = isinstance(said, Renewed) and (said.request, said.run_id, said.epoch) == (
                    HOLE, mine.run_id, mine.epoch,
                )  # fmt: skip
            if not fits or answer.count(_HOLE) != 1 or b"%" in answer:
                raise ClosedError(f"renewal {HOLE} was answered with {answer[:200]!r}")
            self._line = closed.Line(self._socket.fileno(), self._template, answer.replace(_HOLE, b"%d"))
        return self._line

    def read_elsewhere(self, elsewhere: bool) -> None:
        self._socket.pause(elsewhere)

    async def go(self, until: float, every: float) -> list[float]:
        """Seconds that each renewal took, of those sent before `until` (perf_counter), one each `every` seconds."""
        self._until, self._every, self._took = until, every, []
        self._done = asyncio.get_running_loop().create_future()
        self._socket.on_message = self._answered
        self._socket.on_close = self._fail
        await asyncio.sleep(random.uniform(0.0, every))
        self._send()
        await self._done
        return self._took

    def _send(self) -> None:
        self._request += 1
        self._sent_at = time.perf_counter()
        self._socket.send(self._template % self._request)

    def _answered(self, payload: bytes) -> None:
        now = time.perf_counter()
        number = _NUMBER.search(payload)
        if self._due not in payload or number is None or int(number[1]) != self._request:
            self._fail(ClosedError(f"renewal {self._request} was answered with {payload[:200]!r}"))
            return
        self._took.append(now - self._sent_at)
        pause = self._every * random.uniform(0.9, 1.0)
        if now + pause < self._until:
            asyncio.get_running_loop().call_later(pause, self._send)
        elif self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, why: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(why)


async def renew(renewers: list[Renewer], seconds: float, every: float) -> asked.Answer:
    if every:
        start = time.perf_counter()
        async with asyncio.timeout(seconds + PATIENCE):
            each = await asyncio.gather(*(renewer.go(start + seconds, every) for renewer in renewers))
        took = [one for some in each for one in some]
    else:
        lines = [await renewer.line() for renewer in renewers]
        for renewer in renewers:
            renewer.read_elsewhere(True)
        start = time.perf_counter()
        took = closed.went(lines, start + seconds, PATIENCE)
    elapsed = time.perf_counter() - start
    if not every:
        for renewer in renewers:
            renewer.read_elsewhere(False)
    return {"renewals": len(took), "seconds": elapsed, "p99_ms": percentile(took, 0.99) * 1e3}


def main(target: str, port: int, connections: int) -> None:
    def bare(socket: Socket, number: int) -> Holder:
        return Holder(socket, f"renew-{number:04d}", 1, "0" * 64)

    async def open_load() -> asked.Answering:
        if target == "relay":
            holders = await acquire_all(port, os.environ[TOKEN_VARIABLE], "renew", connections)
        else:
            holders = [bare(await connect(port), number) for number in range(connections)]
        renewers = [Renewer(holder, echoed=target != "relay") for holder in holders]
        return lambda question: renew(renewers[: question["clients"]], question["seconds"], question.get("every", 0.0))

    asked.run(open_load)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
