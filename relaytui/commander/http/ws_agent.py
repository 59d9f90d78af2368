"""`/ws/agent`: one connected agent. Requests are answered after their commit; nothing here waits for a disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from aiohttp import WSMsgType, web

from relaytui.commander.http.frames import Frame, is_tidy, read_frame
from relaytui.commander.http.outbox import Outbox, Socket
from relaytui.commander.model.lease import Deny, Refuse
from relaytui.commander.model.records import ORIGINALS
from relaytui.commander.services.core import Core
from relaytui.commander.services.leases import Ask, Extended
from relaytui.commander.services.reports import Applied, Missing, weight_of
from relaytui.commander.services.telemetry import Stream as TelemetryStream
from relaytui.commander.services.telemetry import cleaned
from relaytui.commander.services.workers import wire_order
from relaytui.wire.errors import RelayError
from relaytui.wire.messages import (
    LEAVES,
    MAX_FRAME,
    PROTOCOL,
    REPLACED,
    Acquire,
    AgentMessage,
    Denied,
    Granted,
    Hello,
    Order,
    OrderAck,
    Problem,
    Refused,
    Register,
    Renew,
    Renewed,
    Skip,
    Watched,
    Welcome,
)
from relaytui.wire.status import Stream
from relaytui.wire.text import clean, sayable

log = logging.getLogger(__name__)
StateAnswer = Applied | Missing | Refuse | None

HEARTBEAT = 10.0
HELLO_WITHIN = 5.0
IN_FLIGHT_BYTES = 4 << 20
"""Reports of one connection on their way to the disk, at most; beyond, its socket is not read."""
RENEWAL_WEIGHT = 100
"""What a renewal counts beside its bytes in a report: it is small on the wire and costs a look into the database."""
POLICY_VIOLATION = 1008
INTERNAL = 1011


class AgentSession:
    """One socket from hello to close."""

    def __init__(
        self, core: Core, ws: Socket, abort: Callable[[], None], transport: asyncio.Transport | None = None
    ) -> None:
        self._core = core
        self._ws = ws
        self._outbox = Outbox(ws, abort, transport)
        self._worker = ""
        self._incarnation = ""
        self._behind: float | None = None  # its clock, in seconds; None where it does not say
        self._streams: dict[tuple[str, int], tuple[str, TelemetryStream]] = {}
        self._in_flight = 0
        self._room = asyncio.Event()
        self._room.set()
        self._sender: asyncio.Task[None] | None = None
        self._closing = False
        self._watched = False

    async def run(self) -> None:
        try:
            hello = await self._hello()
        except RelayError as problem:
            await self._hang_up(problem)
            return
        self._worker, self._incarnation = hello.worker, hello.incarnation
        self._behind = None if hello.now is None else self._core.clock.wall() - hello.now
        try:
            await self._serve(hello)
        except RelayError as problem:
            await self._hang_up(problem)
        except Exception:
            log.exception("agent %s: its connection failed", self._worker)
            await self._hang_up(RelayError("internal", "the commander failed at this", "see its log"), INTERNAL)
        finally:
            if self._sender is not None:
                self._sender.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._sender
            for _, stream in self._streams.values():
                self._core.telemetry.close(stream)
            with contextlib.suppress(RelayError):  # stopping: the next start knows that nobody is connected
                left = self._ws.close_code == LEAVES
                await self._core.workers.disconnect(self._incarnation, self, left=left)

    def holds(self) -> bool:
        """Whether it holds a run, or is the one that a run waits for."""
        return self._incarnation in self._core.board.holding

    async def _hello(self) -> Hello:
        try:
            message = await self._ws.receive(timeout=HELLO_WITHIN)
        except TimeoutError:
            raise RelayError("no_hello", f"no hello within {HELLO_WITHIN:g} s", "send hello first") from None
        if message.type is not WSMsgType.TEXT:
            raise RelayError("no_hello", "the first message was no hello", "send hello first, as text")
        hello = read_frame(message.data)
        if not isinstance(hello, Hello):
            raise RelayError("no_hello", "the first message was no hello", "send hello first")
        if hello.incarnation.startswith(ORIGINALS):
            raise RelayError(
                "bad_field",
                f"an incarnation that begins with {ORIGINALS} is an original worker's",
                "choose another one",
            )
        if hello.protocol != PROTOCOL:
            raise RelayError(
                "protocol", f"the agent speaks protocol {hello.protocol}, this commander {PROTOCOL}",
                "install the same version on both sides",
            )  # fmt: skip
        return hello

    async def _serve(self, hello: Hello) -> None:
        core = self._core
        orders = await core.workers.connect(hello, self)
        namesakes = core.workers.namesakes(hello)
        # An order may have come while the database was asked: an agent takes nothing before it is welcome.
        self.welcome(namesakes[0][0] if namesakes else "", first=True)
        self._sender = asyncio.create_task(self._send())
        for _, other in namesakes:
            other.welcome(clean(hello.host, 255))
        for order in orders:
            self._outbox.send(wire_order(order))
        core.workers.tell_watched(self._incarnation)
        ws = self._ws
        while True:
            message = await ws.receive()
            if message.type is WSMsgType.TEXT:
                await self._take(read_frame(message.data), message.data)
                if self._in_flight > IN_FLIGHT_BYTES:
                    self._room.clear()
                    await self._room.wait()
            elif message.type is WSMsgType.BINARY:
                raise RelayError("bad_frame", "a binary frame", "send JSON as text")
            else:
                return

    async def _take(self, message: AgentMessage | Frame, data: bytes) -> None:
        renewal = type(message) is Renew
        telemetry = type(message) is Frame and message.stream is Stream.TELEMETRY
        writer = self._core.frames if telemetry else self._core.relay
        if writer.full and not (renewal and writer.takes_first):
            await writer.room()
        if self._closing:
            return  # replaced, or something before it was not stored: what counts comes again on a newer connection
        if isinstance(message, Renew):
            self._renew(message, len(data))
        elif type(message) is Frame:
            if message.stream is Stream.TELEMETRY:
                await self._telemetry(message, data)
            else:
                self._state(message, len(data))
        elif type(message) is Acquire:
            await self._acquire(message)
        elif type(message) is Register:
            await self._register(message)
        elif type(message) is Skip:
            await self._skip(message, len(data))
        elif type(message) is OrderAck:
            await self._core.orders.acknowledge(
                message.order_id, self._incarnation, message.accepted, clean(message.message, 1_024)
            )
        else:
            raise RelayError("bad_message", "a second hello", "say hello once a connection")

    def welcome(self, namesake: str, *, first: bool = False) -> None:
        core = self._core
        self._outbox.send(
            Welcome(
                protocol=PROTOCOL, commander=core.generation, heartbeat=HEARTBEAT, now=core.clock.wall(),
                namesake=namesake,
            ),
            first=first,
        )  # fmt: skip

    # -- requests ------------------------------------------------------------------------------------------------

    async def _acquire(self, message: Acquire) -> None:
        core = self._core
        answer = await core.leases.acquire(
            Ask(
                message.run_id, self._worker, self._incarnation, message.request_id, message.mode,
                message.highest_epoch, clean(message.config_hash, 128),
            )
        )  # fmt: skip
        await core.workers.refused(self._incarnation, isinstance(answer, Deny) and answer.final)
        if isinstance(answer, Deny):
            if not self._closing:
                core.workers.waiting(self._incarnation, None if answer.final else message.run_id)
            self._outbox.send(
                Denied(
                    request=message.request, run_id=message.run_id, code=answer.code, reason=answer.reason,
                    retry_after=answer.retry_after, final=answer.final,
                )
            )  # fmt: skip
            return
        self._outbox.send(
            Granted(
                request=message.request, run_id=message.run_id, epoch=answer.epoch, token=answer.token,
                lease_seconds=answer.length, config=core.config(message.run_id), newest=answer.newest,
            )
        )  # fmt: skip

    async def _register(self, message: Register) -> None:
        answer = await self._core.leases.register(
            Ask(
                message.run_id, self._worker, self._incarnation, "register", message.mode, message.epoch,
                clean(message.config_hash, 128),
            ),
            message.token,
        )  # fmt: skip
        if isinstance(answer, Refuse):
            self._refuse(message.run_id, message.epoch, answer, request=message.request)
            return
        self._outbox.send(
            Renewed(
                request=message.request, run_id=message.run_id, epoch=message.epoch, lease_seconds=answer.length
            )
        )  # fmt: skip

    def _renew(self, message: Renew, size: int) -> None:
        # Counted like reports: whoever floods with renewals is not read on until they are answered.
        size *= RENEWAL_WEIGHT
        self._in_flight += size

        def done(answer: Extended | Refuse | None, error: BaseException | None) -> None:
            self._landed(size)
            if isinstance(answer, Extended):
                self._outbox.send(
                    Renewed(
                        request=message.request, run_id=message.run_id, epoch=message.epoch,
                        lease_seconds=answer.length,
                    )
                )  # fmt: skip
            elif isinstance(answer, Refuse):
                self._refuse(message.run_id, message.epoch, answer, request=message.request)
            else:
                self._failed(error)

        self._core.leases.renew(message.run_id, message.epoch, message.token, done)

    def _state(self, message: Frame, size: int) -> None:
        size = weight_of(message.reports, size)
        self._core.reports.submit(
            message.run_id, message.epoch, message.token, message.first_seq, message.reports, size,
            self._state_taken(message, size), self._behind,
        )  # fmt: skip

    def _state_taken(self, message: Frame | Skip, size: int) -> Callable[[StateAnswer, BaseException | None], None]:
        self._in_flight += size

        def done(answer: StateAnswer, error: BaseException | None) -> None:
            self._landed(size)
            if isinstance(answer, Applied):
                self._outbox.ack(message.run_id, message.epoch, message.stream, answer.seq)
            elif isinstance(answer, Missing):
                self._gap(message, answer)
            elif isinstance(answer, Refuse):
                self._refuse(message.run_id, message.epoch, answer, stream=message.stream)
            else:
                self._failed(error)

        return done

    async def _telemetry(self, message: Frame, data: bytes) -> None:
        stream = await self._stream(message)
        if stream is None:
            return
        acked = self._telemetry_taken(message, len(data))
        reports, raw = await cleaned(message.reports, message.raw, is_tidy(message.raw))
        missing = self._core.telemetry.ingest(stream, message.first_seq, reports, raw, acked)
        if missing is not None:
            self._landed(len(data))
            self._gap(message, missing)

    async def _stream(self, message: Frame | Skip) -> TelemetryStream | None:
        """The attempt's stream; None where it was refused."""
        key = (message.run_id, message.epoch)
        opened = self._streams.get(key)
        if opened is None or opened[0] != message.token:
            stream = await self._core.telemetry.open(message.run_id, message.epoch, message.token)
            if isinstance(stream, Refuse):
                self._refuse(message.run_id, message.epoch, stream, stream=message.stream)
                return None
            opened = self._streams[key] = (message.token, stream)
        return opened[1]

    def _telemetry_taken(self, message: Frame | Skip, size: int) -> Callable[[int, BaseException | None], None]:
        self._in_flight += size
        run_id, epoch, stream = message.run_id, message.epoch, message.stream  # and no report waits for the disk

        def acked(seq: int, error: BaseException | None) -> None:
            self._landed(size)
            if error is None:
                self._outbox.ack(run_id, epoch, stream, seq)
            else:
                self._failed(error)

        return acked

    async def _skip(self, message: Skip, size: int) -> None:
        run_id, epoch, first, last = message.run_id, message.epoch, message.first_seq, message.last_seq
        if message.stream is Stream.STATE:
            taken = self._state_taken(message, size)
            self._core.reports.skip(run_id, epoch, message.token, first, last, message.why, taken)
            return
        stream = await self._stream(message)
        if stream is None:
            return
        skipped = self._core.telemetry.skip(stream, first, last, self._telemetry_taken(message, size))
        if isinstance(skipped, Missing):
            self._landed(size)
            self._gap(message, skipped)
        elif skipped:
            self._core.reports.lost(run_id, epoch, skipped, message.why)

    # -- answers -------------------------------------------------------------------------------------------------

    def _landed(self, size: int) -> None:
        self._in_flight -= size
        if self._in_flight <= IN_FLIGHT_BYTES // 2:
            self._room.set()

    def _gap(self, message: Frame | Skip, missing: Missing) -> None:
        self._outbox.send(
            Refused(
                run_id=message.run_id, epoch=message.epoch, code="gap", stream=message.stream,
                message=f"reports from {missing.expected} on are missing", expected=missing.expected,
            )
        )  # fmt: skip

    def _refuse(
        self, run_id: str, epoch: int, refuse: Refuse, *, request: int = 0, stream: Stream | None = None
    ) -> None:
        self._outbox.send(
            Refused(
                run_id=run_id, epoch=epoch, code=refuse.code, message=refuse.message, request=request, stream=stream
            )
        )

    def _failed(self, error: BaseException | None) -> None:
        """Nothing was stored: the agent comes back and sends again what was not acknowledged."""
        code = error.code if isinstance(error, RelayError) else "internal"
        self._outbox.send(Problem(code=code, message=clean(str(error), 300), hint="connect again"))
        self._close_soon(INTERNAL)

    def send_order(self, order: Order) -> None:
        self._outbox.send(order)

    def tell_watched(self, on: bool) -> None:
        if on != self._watched:
            self._watched = on
            self._outbox.send(Watched(on))

    def replace_by_other(self) -> None:
        self._close_soon(REPLACED)

    def _close_soon(self, code: int) -> None:
        if not self._closing:
            self._closing = True
            task = asyncio.get_running_loop().create_task(self._close(code))
            _goodbyes.add(task)
            task.add_done_callback(_goodbyes.discard)

    async def _close(self, code: int) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            await self._outbox.flush()
            await self._ws.close(code=code)

    async def _send(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._outbox.run()

    async def _hang_up(self, problem: RelayError, code: int = POLICY_VIOLATION) -> None:
        self._outbox.send(Problem(problem.code, sayable(problem.message), sayable(problem.hint)))
        await self._close(code)


_goodbyes: set[asyncio.Task[None]] = set()


def agent_socket() -> Socket:
    return web.WebSocketResponse(
        heartbeat=HEARTBEAT, compress=False, max_msg_size=MAX_FRAME, timeout=1.0, decode_text=False
    )
