"""The agent's websocket to the commander: proof first, then one session after another for as long as it takes.

Renewals go ahead of state reports, those ahead of telemetry, and what is in flight is bounded by how fast the commander
acknowledges, so that a thin line delays no renewal. What was not acknowledged is sent again in the next session. What
earlier attempts left in their spools goes after the present one's.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from relay_agent.beat import to_next
from relay_agent.link import frames
from relay_agent.link.asked import Answer, Asked, LinkLost
from relay_agent.link.pace import Pace
from relay_agent.link.words import Words
from relay_agent.spool.lane import FRAME, Frame, Lane
from relay_agent.spool.spool import Spool
from relaytui.wire.clock import Clock
from relaytui.wire.codec import encode
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.messages import (
    PROTOCOL,
    Ack,
    Denied,
    Granted,
    Hello,
    Message,
    Order,
    OrderAck,
    Problem,
    Refused,
    Renewed,
    Watched,
    Welcome,
)
from relaytui.wire.status import Stream
from relaytui.wire.text import clean, counted

if TYPE_CHECKING:
    import aiohttp

    from relay_agent.link.contact import Contact

HEARTBEAT = 10.0
WELCOME_WITHIN = 15.0
PAUSE_LEAST, PAUSE_MOST = 0.5, 15.0
FIRST_TRIES = 3
"""How often a commander may refuse us before the first session until that is an answer."""
GIVES_WAY = 30.0
"""Seconds, about, that one stays away whose incarnation has connected again: the two would throw each other out."""
SYNC_EVERY = 1.0
WINDOW = 4
"""Frames of one stream in flight."""
BATCH_AFTER = 0.005
"""Seconds that telemetry gathers while an earlier frame is still in flight."""


def longest_pause(outage: float) -> float:
    """Seconds until the next try at most, after so many without a commander: one that was away for a moment has
    everybody back a moment later, and one that is away for long is not asked often."""
    return min(PAUSE_MOST, max(PAUSE_LEAST, outage))


class Link:
    def __init__(
        self,
        contact: Contact,
        hello: Hello,
        clock: Clock,
        say: Callable[[str], None],
        *,
        on_order: Callable[[Order], None],
        on_refused: Callable[[Refused], None],
        rng: random.Random | None = None,
    ) -> None:
        self._contact = contact
        self._hello = hello
        self._clock = clock
        self._say = say
        self._on_order = on_order
        self._on_refused = on_refused
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._urgent: deque[bytes] = deque()
        self._asked = Asked()
        self._wake = asyncio.Event()
        self._up = asyncio.Event()
        self._begun = asyncio.Event()
        self._pace = Pace()
        self._last_telemetry = 0.0
        self._stuck: dict[Lane, str] = {}  # what the commander does not take in this session, and its code for why
        self._words = Words(clock, say)
        self._progress = asyncio.Event()
        self.spool: Spool | None = None
        """Of the attempt that goes on."""
        self.lost = False
        """Whether that attempt's lease is."""
        self.backlog: list[Spool] = []
        """Of earlier ones. One that is delivered is deleted."""
        self.persists = False
        """Whether an attempt goes on: to be refused is no answer then, for training outlives it."""
        self.training = False
        """Whether a trainer runs: whoever cannot reach the commander says that it goes on."""
        self.commander = ""
        self.sessions = 0
        """How many there were."""
        self.trouble = ""
        """Why there is no session now."""
        self.watched = False
        """Whether somebody follows what the trainer prints, as far as the commander says in this session."""
        self.on_watched: Callable[[bool], None] = lambda watched: None
        self.on_forgotten: Callable[[], None] = lambda: None
        """The commander does not know any more what it was told: it is another one, or its books were put back."""

    # -- for the runner ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is something new in the spool."""
        self._wake.set()

    @property
    def connected(self) -> bool:
        return self._up.is_set()

    async def up(self) -> None:
        """Wait for a session."""
        await self._up.wait()

    async def after(self, session: int) -> None:
        """Wait for a session that is not that one, nor one before it."""
        while self.sessions <= session:
            self._begun.clear()
            await self._begun.wait()

    async def ask(
        self, make: Callable[[int], Message], timeout: float, late: Callable[[Answer], object] | None = None
    ) -> Answer:
        """Send a numbered request ahead of everything else, and its answer. LinkLost: there is none.

        `late` hears of one that comes after `timeout` seconds, in the same session."""
        if not self._up.is_set():
            raise LinkLost(self.trouble)
        number, answer = self._asked.new()
        self._urgent.append(encode(make(number)))
        self._wake.set()
        return await self._asked.wait(answer, timeout, late)

    def acknowledge(self, order: Order, accepted: bool, message: str) -> None:
        self._urgent.append(encode(OrderAck(order.order_id, accepted, message)))
        self._wake.set()

    def send_again(self) -> None:
        """The commander takes what it refused before."""
        for lane in self._stuck:
            lane.rewind()
        self._stuck.clear()
        self._wake.set()

    async def drained(self, timeout: float) -> bool:
        """Wait until everything in the spool is acknowledged; False where it was not in time, or never will be."""
        try:
            async with asyncio.timeout(timeout):
                while any(not lane.empty and self._hopeful(lane) for lane in self._lanes(self.spool)):
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            return False
        return self.spool is None or self.spool.empty

    def _hopeful(self, lane: Lane) -> bool:
        """Whether it may still be taken: one whose lease is not known here may be entered, unless that was refused."""
        return lane not in self._stuck or (self._stuck[lane] == "unknown" and not self.lost)

    def give_up(self) -> None:
        """The lease is lost: what the commander does not take now it never will."""
        self.lost = True
        self._progress.set()

    async def sync(self) -> None:
        """For ever: what is in a spool survives the end of this machine a moment later."""
        while True:
            for spool in self._spools():
                if spool.dirty:
                    await asyncio.to_thread(spool.sync)
            await asyncio.sleep(to_next(SYNC_EVERY))

    def _spools(self) -> list[Spool]:
        return [self.spool, *self.backlog] if self.spool is not None else [*self.backlog]

    @staticmethod
    def _lanes(spool: Spool | None) -> tuple[Lane, ...]:
        return spool.lanes if spool is not None else ()

    def _spool_of(self, run_id: str, epoch: int) -> Spool | None:
        return next((each for each in self._spools() if (each.run_id, each.epoch) == (run_id, epoch)), None)

    # -- sessions ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connect, serve, connect again, for ever. RelayError where we are refused before the first session, while
        nothing goes on yet."""
        tries = refused = 0
        since = self._clock.boot()
        while True:
            sessions = self.sessions
            who = f"no commander at {self._contact.url}: "
            try:
                await self._session()
            except frames.Replaced:
                self._say("another process has connected as this very agent, and has its session now: end one of them")
                await asyncio.sleep(self._rng.uniform(GIVES_WAY / 2, GIVES_WAY))
                continue
            except RelayError as error:
                self.trouble = str(error)
                refused = refused + 1 if error.exit_code == Exit.AUTH else 0
                who = "" if refused else who  # it names itself
                final = refused >= FIRST_TRIES or error.exit_code == Exit.USAGE
                if final and not (self.sessions or self.persists):
                    raise
            except Exception as error:  # noqa: BLE001 - whatever a peer or a library does, training goes on
                self.trouble = f"{type(error).__name__}: {clean(str(error), 200)}"
            now = self._clock.boot()
            tries, since = (1, now) if self.sessions > sessions else (tries + 1, since)
            if refused and not (self.sessions or self.persists):
                pass  # asked again soon, and then it is an answer
            else:
                meanwhile = "training goes on, and what happens is told later; " if self.training else ""
                self._words.no_session(f"{who}{self.trouble}; {meanwhile}trying again", at_once=tries == 1)
            await asyncio.sleep(self._rng.uniform(0.05, longest_pause(now - since)))

    async def _session(self) -> None:
        """One connection from proof to end. RelayError says why there was none."""
        async with self._contact.connect(HEARTBEAT) as socket:
            await frames.send(socket, replace(self._hello, now=self._clock.wall()))
            try:
                first = await frames.receive(socket, WELCOME_WITHIN)
            except frames.Closed as closed:
                self.trouble = str(closed)
                return
            if isinstance(first, Problem):
                raise frames.problem(first)
            if not isinstance(first, Welcome) or first.protocol != PROTOCOL:
                raise RelayError(
                    "protocol",
                    "the commander speaks another protocol",
                    "install the same version of Relay on both sides",
                    exit_code=Exit.USAGE,
                )
            self._begin(first)
            writer = asyncio.create_task(self._write(socket), name="link-writer")
            try:
                await self._read(socket, writer)
            finally:
                self._end()
                writer.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await writer

    def _begin(self, welcome: Welcome) -> None:
        if self.sessions:
            self._say(f"connected to the commander again at {self._contact.url}")
        self.sessions += 1
        if self.commander not in ("", welcome.commander):
            self.on_forgotten()
        self.commander = welcome.commander
        self.trouble = ""
        self._words.namesake(self._hello.worker, welcome.namesake)
        self._see_watched(False)
        self._stuck.clear()
        self._pace.restart()
        self._urgent.clear()
        for spool in self._spools():
            spool.rewind()
        self._up.set()
        self._begun.set()
        self._wake.set()

    def _end(self) -> None:
        self._up.clear()
        self._see_watched(False)
        self.trouble = self.trouble or "the connection was lost"
        self._asked.lose(self.trouble)

    # -- out -----------------------------------------------------------------------------------------------------

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (data := self._next()) is not None:
                await frames.send(socket, data)

    def _next(self) -> bytes | None:
        """What goes out next, most urgent first."""
        if self._urgent:
            return self._urgent.popleft()
        for spool in self._spools():
            for lane in spool.lanes:
                if lane.ready and lane not in self._stuck and self._may_send(lane):
                    frame = lane.take(FRAME if lane.stream is Stream.STATE else self._pace.frame)
                    if frame is not None:
                        return self._sending(lane, frame)
        return None

    def _sending(self, lane: Lane, frame: Frame) -> bytes:
        if self.spool is not None and lane is self.spool.telemetry:
            self._last_telemetry = self._clock.boot()
            self._pace.sent(frame, self._last_telemetry)
        return frame.data

    def _may_send(self, lane: Lane) -> bool:
        """At once when nothing is in flight; else a batch, or what gathered for a few milliseconds."""
        if lane.out == 0:
            return True
        if lane.out >= WINDOW:
            return False
        if lane.stream is Stream.STATE:
            return True
        if lane.in_flight >= 2 * self._pace.frame:
            return False
        if lane.size >= self._pace.frame // 2:
            return True
        wait = self._last_telemetry + BATCH_AFTER - self._clock.boot()
        if wait <= 0:
            return True
        asyncio.get_running_loop().call_later(wait, self._wake.set)
        return False

    # -- in ------------------------------------------------------------------------------------------------------

    async def _read(self, socket: aiohttp.ClientWebSocketResponse, writer: asyncio.Task[None]) -> None:
        while True:
            try:
                message = await frames.receive(socket)
            except frames.Closed as closed:
                error = writer.exception() if writer.done() and not writer.cancelled() else None
                self.trouble = clean(str(error), 200) if error else str(closed)
                return
            if isinstance(message, Ack):
                self._acked(message)
            elif isinstance(message, Order):
                self._on_order(message)
            elif isinstance(message, Problem):
                raise frames.problem(message)
            elif isinstance(message, Welcome):
                self._words.namesake(self._hello.worker, message.namesake)
            elif isinstance(message, Watched):
                self._see_watched(message.on)
            elif isinstance(message, Refused) and message.request == 0:
                self._refused(message)
            elif isinstance(message, Granted | Denied | Renewed | Refused):
                self._asked.answered(message)

    def _see_watched(self, on: bool) -> None:
        if on != self.watched:
            self.watched = on
            self.on_watched(on)

    def _acked(self, ack: Ack) -> None:
        spool = self._spool_of(ack.run_id, ack.epoch)
        if spool is None:
            return
        spool.lane(ack.stream).ack(ack.seq)
        if spool is self.spool:
            if ack.stream is Stream.TELEMETRY:
                self._pace.acked(ack.seq, self._clock.boot())
            self._progress.set()
        elif spool.empty:
            self.backlog.remove(spool)
            self._say(f"delivered what was left of run {spool.run_id}, epoch {spool.epoch}")
            spool.delete()
        if any(lane.ready for each in self._spools() for lane in each.lanes):
            self._wake.set()

    def _refused(self, refused: Refused) -> None:
        spool = self._spool_of(refused.run_id, refused.epoch)
        if spool is not None and refused.stream is not None:
            lane = spool.lane(refused.stream)
            if refused.code == "gap":
                lost = lane.resume(refused.expected)
                if lost:
                    self._say(f"the commander lost {counted(lost, 'report')} that it had acknowledged ({lane.stream})")
                    self.on_forgotten()
                self._wake.set()
                return
            self._stuck[lane] = refused.code  # sending it again in this session would be refused again
            self._progress.set()
        if spool is self.spool:
            self._on_refused(refused)
