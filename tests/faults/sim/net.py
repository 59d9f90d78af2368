"""The network between agents and commander: ordered streams with delays, cuts in either direction, half-open ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable

from aiohttp import WSMessage, WSMsgType

from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.messages import LEAVES
from tests.faults.sim.loop import PROCESS, Host, Process, SimLoop

HEARTBEAT = 10.0
CONNECT_WITHIN = 10.0
PING, PONG, RESET, CLOSE = object(), object(), object(), object()


class Network:
    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.delay = 0.01
        self.spike = 0.0
        """How likely a message takes seconds."""
        self.cuts: set[tuple[Host, Host]] = set()
        self.ends: list[End] = []
        self.serve: Callable[[Process], End | None] = lambda process: None
        """Called with who connects: its end, None where nobody listens."""
        self.tap: Callable[[End, bytes], None] = lambda end, data: None
        self.taken: Callable[[End, bytes], None] = lambda end, data: None

    def cut(self, a: Host, b: Host, *, both: bool = True) -> None:
        self.cuts.add((a, b))
        if both:
            self.cuts.add((b, a))

    def heal(self, a: Host | None = None) -> None:
        self.cuts = {pair for pair in self.cuts if a is not None and a not in pair}
        for end in self.ends:
            end.flow()

    def latency(self) -> float:
        rng = self.loop.rng
        if self.spike and rng.random() < self.spike:
            return rng.uniform(0.5, 6.0)
        return rng.expovariate(1 / self.delay)

    def reset(self, host: Host) -> None:
        """Every connection of this host breaks, seen at both ends sooner or later."""
        for end in list(self.ends):
            if end.process.host is host and not end.closed:
                end.fail("connection reset")
                end.send_raw(RESET)

    def tidy(self) -> None:
        self.ends = [end for end in self.ends if not (end.closed and end.peer.closed)]

    async def connect(self, commander: Host) -> End:
        """From the process that asks. RelayError where nobody answers."""
        process = PROCESS.get()
        assert process is not None
        here = process.host
        there: asyncio.Future[End | None] = self.loop.create_future()

        def arrive() -> None:
            if (here, commander) in self.cuts or not commander.up or commander.frozen:
                return  # lost
            self.loop.at(self.loop.now + self.latency(), answer, self.serve(process))

        def answer(theirs: End | None) -> None:
            if (commander, here) in self.cuts:
                return
            process.post(lambda: there.done() or there.set_result(theirs))

        self.loop.at(self.loop.now + 2 * self.latency(), arrive)
        try:
            end = await asyncio.wait_for(there, CONNECT_WITHIN)
        except TimeoutError:
            raise RelayError("unavailable", "timed out", exit_code=Exit.UNAVAILABLE) from None
        if end is None:
            raise RelayError("unavailable", "connection refused", exit_code=Exit.UNAVAILABLE)
        return end


class End:
    """One end of a connection, as aiohttp shows it to whoever holds it."""

    def __init__(self, net: Network, peer: End | None, process: Process) -> None:
        self.net = net
        self.process = process
        self.peer: End = peer or self
        self.closed = False
        self.close_code: int | None = None
        self._queue: deque[WSMessage] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._held: deque[object] = deque()  # sent into a cut
        self._last = 0.0  # when what was sent last arrives
        self._heard = 0.0
        net.ends.append(self)
        if len(net.ends) > 64:
            net.tidy()

    def pair(self, server: Process) -> End:
        """The other end, in another process; both begin to watch each other."""
        self.peer = End(self.net, self, server)
        for end in (self, self.peer):
            end.process.on_death.append(end.lost)
            end._heard = end.process.host.mono()
            end.process.post(end._beat)
            if not end.process.alive:
                end.lost()
        return self.peer

    # -- for the program that holds it ---------------------------------------------------------------------------

    async def send_frame(self, data: bytes, kind: WSMsgType) -> None:
        if self.closed:
            raise ConnectionResetError("Cannot write to closing transport")
        self.net.tap(self, data)
        self.send_raw(WSMessage(kind, data, None))
        if self.net.loop.rng.random() < 0.3:
            await asyncio.sleep(0)

    async def receive(self, timeout: float | None = None) -> WSMessage:
        if not self._queue and not self.closed:
            self._waiter = self.net.loop.create_future()
            try:
                async with asyncio.timeout(timeout):
                    await self._waiter
            finally:
                self._waiter = None
        if self._queue:
            return self._queue.popleft()
        return WSMessage(WSMsgType.CLOSED, None, None)

    async def close(self, *, code: int = 1000) -> bool:
        if self.closed:
            return False
        self.close_code = code
        self.send_raw(WSMessage(WSMsgType.CLOSE, code, ""))
        self._shut()
        await asyncio.sleep(0)
        return True

    def abort(self) -> None:
        if not self.closed:
            self.fail("aborted")
            self.send_raw(RESET)

    # -- the wire ------------------------------------------------------------------------------------------------

    def send_raw(self, message: object) -> None:
        here, there = self.process.host, self.peer.process.host
        if self._held or (here, there) in self.net.cuts:
            self._held.append(message)
            return
        loop = self.net.loop
        self._last = max(self._last, loop.now + self.net.latency())
        loop.at(self._last, self._arrives, message)

    def flow(self) -> None:
        """The way may be free again."""
        if self._held and (self.process.host, self.peer.process.host) not in self.net.cuts:
            held, self._held = self._held, deque()
            for message in held:
                self.send_raw(message)

    def _arrives(self, message: object) -> None:
        peer = self.peer
        if (self.process.host, peer.process.host) in self.net.cuts:
            self._held.append(message)
        elif not peer.process.host.up:
            return  # into nothing
        elif not peer.process.alive or peer.closed:
            if message is not RESET:
                peer.send_raw(RESET)
        else:
            peer.process.post(peer._take, message)

    def _take(self, message: object) -> None:
        if self.closed:
            return
        self._heard = self.process.host.mono()
        if message is PING:
            self.send_raw(PONG)
        elif message is RESET:
            self.fail("connection reset")
        elif isinstance(message, WSMessage):
            if message.type is WSMsgType.TEXT:
                self.net.taken(self, message.data)
            self._give(message)
            if message.type is WSMsgType.CLOSE:
                self.close_code = message.data
                self._shut()

    def _give(self, message: WSMessage) -> None:
        self._queue.append(message)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _shut(self) -> None:
        self.closed = True
        self._wake()

    def fail(self, why: str) -> None:
        if not self.closed:
            self.closed = True
            self.process.post(self._give, WSMessage(WSMsgType.ERROR, why, None))

    def lost(self) -> None:
        """Its process died: the kernel says so to the other side, unless the whole machine is gone."""
        if not self.closed:
            self.closed = True
            if self.process.host.up:
                self.send_raw(RESET)

    def _beat(self) -> None:
        if self.closed:
            return
        if self.process.host.mono() - self._heard >= HEARTBEAT - 0.001:
            self.send_raw(PING)
            self.net.loop.call_later(HEARTBEAT / 2, self._check, self._heard)
        else:
            self.net.loop.call_later(HEARTBEAT - (self.process.host.mono() - self._heard), self._beat)

    def _check(self, heard: float) -> None:
        if self.closed:
            return
        if self._heard > heard:
            self._beat()
        else:
            self.fail("no pong")
            self.send_raw(RESET)


class SimContact:
    """In place of `relay_agent.link.contact.Contact`; proof and tokens are other tests' matter."""

    net: Network
    commander: Host

    def __init__(self, url: str, token: str) -> None:
        self.url = url

    @contextlib.asynccontextmanager
    async def connect(self, heartbeat: float) -> AsyncIterator[End]:
        end = await self.net.connect(self.commander)
        try:
            yield end
        except asyncio.CancelledError:  # as the real one
            await end.close(code=LEAVES)
            raise
        finally:
            await end.close()
