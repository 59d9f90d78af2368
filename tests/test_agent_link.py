"""The agent's connection to its commander: what it says while there is none, and what comes first when it is back."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp import ServerTimeoutError, WSMessage, WSMsgType
from checkpoint_kit import ManualClock
from scripted_commander import until

from relay_agent.attempt.telling import Teller
from relay_agent.attempt.tenure import Tenure
from relay_agent.lease.lease import Lease
from relay_agent.link import frames
from relay_agent.link.contact import Contact
from relay_agent.link.link import Link
from relay_agent.link.words import MAX_NAMESAKES, SAY_AGAIN, SAY_EVERY
from relay_agent.outcome.stop import Stop
from relaytui.wire.clock import SystemClock
from relaytui.wire.codec import decode, encode
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.messages import PROTOCOL, Hello, Message, Problem, Refused, Renew, Renewed, Welcome

GONE = RelayError("unavailable", "connection refused", exit_code=Exit.UNAVAILABLE)
OTHER = RelayError(
    "not_proven", "the commander at http://c:1 does not know our RELAY_SHARED_SECRET", exit_code=Exit.AUTH
)


class At(random.Random):
    """No pause at all between two tries; `most`: how long each might have been."""

    def __init__(self) -> None:
        super().__init__()
        self.most: list[float] = []

    def uniform(self, a: float, b: float) -> float:
        self.most.append(b)
        return 0.0


class Script:
    """A commander that cannot be had: at which second, and why. Then the test is over."""

    url = "http://c:1"

    def __init__(self, clock: ManualClock, tries: list[tuple[float, Exception]]) -> None:
        self._clock = clock
        self._begin = clock.now
        self._tries = iter(tries)

    @asynccontextmanager
    async def connect(self, heartbeat: float) -> AsyncIterator[Any]:
        at, error = next(self._tries, (0.0, asyncio.CancelledError()))
        self._clock.now = max(self._clock.now, self._begin + at)
        raise error
        yield


async def says(
    tries: list[tuple[float, Exception]],
    rng: random.Random | None = None,
    *,
    sessions: int = 1,
    persists: bool = False,
    training: bool = False,
) -> list[tuple[float, str]]:
    """At which second, and what: of an agent that had so many sessions before."""
    clock, said = ManualClock(), list[tuple[float, str]]()
    begin = clock.now
    link = Link(
        cast(Contact, Script(clock, tries)), cast(Hello, None), clock,
        lambda words: said.append((clock.now - begin, words)),
        on_order=lambda order: None, on_refused=lambda refused: None, rng=rng or At(),
    )  # fmt: skip
    link.sessions, link.persists, link.training = sessions, persists, training
    with pytest.raises(asyncio.CancelledError):
        await link.run()
    return said


async def test_who_goes_on_with_an_attempt_is_refused_and_tries_again() -> None:
    """It took a trainer over and has had no session yet: nobody would wait for its reports if it gave up."""
    refused = [(float(second), OTHER) for second in range(10)]
    with pytest.raises(RelayError):
        await says(refused, sessions=0)
    said = await says(refused, sessions=0, persists=True)
    assert [words.partition(";")[0] for _, words in said] == [str(OTHER)]


async def test_that_training_goes_on_is_said_while_it_does() -> None:
    ((_, idle),) = await says([(0, GONE)])
    ((_, busy),) = await says([(0, GONE)], training=True)
    assert idle == f"no commander at http://c:1: {GONE}; trying again"
    assert busy == f"no commander at http://c:1: {GONE}; training goes on, and what happens is told later; trying again"


async def test_another_reason_is_said_at_once() -> None:
    said = await says([(0, GONE), (1, GONE), (2, OTHER), (9, OTHER), (17, OTHER)])
    assert [at for at, _ in said] == [0, 2]
    assert "connection refused" in said[0][1]
    assert said[1][1].startswith("the commander at http://c:1 does not know our RELAY_SHARED_SECRET")


def test_an_agent_of_our_name_is_said_once_however_often_sessions_begin() -> None:
    said = list[str]()
    link = Link(
        cast(Contact, None), Hello(PROTOCOL, "g", "i"), ManualClock(), said.append,
        on_order=lambda order: None, on_refused=lambda refused: None,
    )  # fmt: skip
    for host in ("", "vm", "vm", "", "vm", "other", "vm", *(f"host-{n}" for n in range(1000))):
        link._words.namesake("g", host)
    assert [words.partition("(on ")[2].partition(")")[0] for words in said[:3]] == ["vm", "other", "host-0"]
    assert len(said) == MAX_NAMESAKES


async def test_the_same_reason_is_said_seldom() -> None:
    said = await says([(float(second), GONE) for second in range(100)])
    assert [at for at, _ in said] == [0, SAY_EVERY, 2 * SAY_EVERY, 3 * SAY_EVERY]


async def test_pauses_grow_with_the_outage() -> None:
    """A commander that was away for a second has everybody back within the next one."""
    rng = At()
    await says([(at, GONE) for at in (0.0, 0.3, 1.0, 3.0, 14.0, 100.0)], rng)
    assert rng.most == [0.5, 0.5, 1.0, 3.0, 14.0, 15.0]


async def test_reasons_that_take_turns_do_not_flood() -> None:
    said = await says([(tenth / 10, (GONE, OTHER)[tenth % 2]) for tenth in range(600)])
    assert len(said) <= 2 * (1 + 60 / SAY_AGAIN)
    assert {words.partition(";")[0] for _, words in said} == {f"no commander at http://c:1: {GONE}", str(OTHER)}


async def test_a_commander_that_stopped_answering_is_said_in_our_words() -> None:
    class Silent:
        async def receive(self, timeout: float | None = None) -> WSMessage:
            return WSMessage(WSMsgType.ERROR, ServerTimeoutError("No PONG received after 5.0 seconds"), None)

    with pytest.raises(frames.Closed, match=r"^it has stopped answering$"):
        await frames.receive(cast("Any", Silent()))


class Socket:
    """A session with a commander that renews what it is asked to, until it is cut."""

    def __init__(self) -> None:
        self.renewed = 0
        self._inbox: asyncio.Queue[WSMessage] = asyncio.Queue()

    async def send_frame(self, data: bytes, kind: WSMsgType) -> None:
        message = decode(data, cast("type[Any]", Hello | Renew))
        if isinstance(message, Renew):
            self.renewed += 1
            self._answer(Renewed(message.request, message.run_id, message.epoch, 300.0))
        else:
            self._answer(Welcome(PROTOCOL, "c", 10.0, 0.0))

    def _answer(self, message: Message) -> None:
        self._inbox.put_nowait(WSMessage(WSMsgType.TEXT, encode(message), None))

    async def receive(self, timeout: float | None = None) -> WSMessage:
        return await self._inbox.get()

    def cut(self) -> None:
        self._inbox.put_nowait(WSMessage(WSMsgType.CLOSED, None, None))


class Sessions:
    """A commander that is there again at once."""

    url = "http://c:1"

    def __init__(self) -> None:
        self.sockets: list[Socket] = []

    @asynccontextmanager
    async def connect(self, heartbeat: float) -> AsyncIterator[Socket]:
        self.sockets.append(Socket())
        yield self.sockets[-1]


async def test_a_commander_that_ends_before_it_said_a_word_is_asked_again() -> None:
    """It was killed just then. That says nothing about the protocol it speaks."""

    class Killed(Sessions):
        @asynccontextmanager
        async def connect(self, heartbeat: float) -> AsyncIterator[Socket]:
            async with super().connect(heartbeat) as socket:
                if len(self.sockets) == 1:
                    socket.cut()
                yield socket

    sessions, said = Killed(), list[str]()
    link = Link(
        cast(Contact, sessions), Hello(PROTOCOL, "w", "i"), ManualClock(), said.append,
        on_order=lambda order: None, on_refused=lambda refused: None, rng=At(),
    )  # fmt: skip
    running = asyncio.create_task(link.run())
    try:
        await until(lambda: link.connected or running.done())
        assert link.connected, running
        assert len(sessions.sockets) == 2
        assert "closed the connection" in said[0]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_lease_is_renewed_at_once_in_every_new_session() -> None:
    """A commander that was started again need not wait for L/10 to hear of it; in the same session it comes as ever."""
    clock, sessions = ManualClock(), Sessions()
    link = Link(
        cast(Contact, sessions), Hello(PROTOCOL, "w", "i"), clock, lambda words: None,
        on_order=lambda order: None, on_refused=lambda refused: None, rng=At(),
    )  # fmt: skip
    lease = Lease.granted("run", 1, "t" * 64, 300.0, clock.boot())
    tenure = Tenure(lease, link, Stop(), cast(Teller, None), clock, random.Random(1), "sft")
    tasks = [asyncio.create_task(link.run())]
    await link.up()
    tasks.append(asyncio.create_task(tenure.renew()))
    try:
        for number in (1, 2, 3):
            await until(lambda number=number: len(sessions.sockets) == number and sessions.sockets[-1].renewed > 0)
            sessions.sockets[-1].cut()
        await until(lambda: len(sessions.sockets) == 4)
        assert [socket.renewed for socket in sessions.sockets[:3]] == [1, 1, 1]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_that_its_lease_is_released_says_nothing_to_one_that_has_told_its_end() -> None:
    lease = Lease.granted("run", 1, "t" * 64, 300.0, 0.0)
    stop = Stop()
    tenure = Tenure(lease, cast(Link, None), stop, cast(Teller, None), ManualClock(), random.Random(1), "sft")
    tenure.ended = True
    tenure.refused(Refused("run", 1, "released", "the lease was released", 1))
    assert (tenure.held, stop.why, stop.asked.is_set()) == (True, None, False)


def test_one_that_has_told_its_end_waits_for_no_commander_that_was_restored_and_saw_the_run_end_elsewhere() -> None:
    """It knows neither this lease nor its end, and never will."""

    class Told:
        def event(self, kind: str, *rest: object, **more: object) -> None:
            said.append(kind)

    class Line:
        def give_up(self) -> None:
            said.append("gave up")

    said: list[str] = []
    lease = Lease.granted("run", 1, "t" * 64, 300.0, 0.0)
    tenure = Tenure(lease, cast(Link, Line()), Stop(), cast(Teller, Told()), ManualClock(), random.Random(1), "sft")
    tenure.ended = True
    tenure.refused(Refused("run", 1, "unknown", "no such lease here", 1))
    assert tenure.held
    tenure.refused(Refused("run", 1, "released", "run run is completed", 2))
    assert not tenure.held
    assert said == ["lease.unknown", "lease.lost", "gave up"]


def other(run_id: str = "run", epoch: int = 1) -> bytes:
    return encode(Renewed(1, run_id, epoch, 300.0))


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"{", b"[1, 2]", b'{"type":"renewed","request":1}', b'{"type":"nonsense"}', b"\xff\xfe", None,
        other("another"), other(epoch=2), encode(Refused("another", 1, "superseded", "x", 1)),
        encode(Refused("run", 2, "released", "x", 1)), encode(Problem("overloaded", "not now", "")),
    ],
)  # fmt: skip
async def test_what_is_no_answer_to_a_renewal_neither_ends_a_lease_nor_extends_it(answer: bytes | None) -> None:
    """Nonsense, an answer that is somebody else's, a hang-up: the next renewal is asked for all the same."""

    class Odd(Socket):
        def _answer(self, message: Message) -> None:
            if not isinstance(message, Renewed) or len(asked) > 1:
                super()._answer(message)
            elif answer is None:
                self.cut()
            else:
                self._inbox.put_nowait(WSMessage(WSMsgType.TEXT, answer.decode("latin-1"), None))

        async def send_frame(self, data: bytes, kind: WSMsgType) -> None:
            if isinstance(decode(data, cast("type[Any]", Hello | Renew)), Renew):
                asked.append(tenure.lease)
            await super().send_frame(data, kind)

    class Odds(Sessions):
        @asynccontextmanager
        async def connect(self, heartbeat: float) -> AsyncIterator[Socket]:
            self.sockets.append(Odd())
            yield self.sockets[-1]

    clock, asked = ManualClock(), list[Lease]()
    link = Link(
        cast(Contact, Odds()), Hello(PROTOCOL, "w", "i"), clock, lambda words: None,
        on_order=lambda order: None, on_refused=lambda refused: None, rng=At(),
    )  # fmt: skip
    lease = Lease.granted("run", 1, "t" * 64, 300.0, clock.boot())
    tenure = Tenure(lease, link, Stop(), cast(Teller, None), clock, At(), "sft")
    tasks = [asyncio.create_task(link.run())]
    await link.up()
    clock.now += 10.0
    tasks.append(asyncio.create_task(tenure.renew()))
    try:
        await until(lambda: len(asked) > 2)
        assert asked[1] == lease
        assert not asked[2].lost
        assert asked[2].safe_until > lease.safe_until, "the second answer was one"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_renewal_counts_from_when_it_was_sent() -> None:
    """However long its answer took: the commander may have counted from any moment in between."""

    class Slow(Socket):
        def _answer(self, message: Message) -> None:
            if isinstance(message, Renewed):
                clock.now += 100.0
            super()._answer(message)

    class Slows(Sessions):
        @asynccontextmanager
        async def connect(self, heartbeat: float) -> AsyncIterator[Socket]:
            self.sockets.append(Slow())
            yield self.sockets[-1]

    clock, renewed = ManualClock(), list[Lease]()
    link = Link(
        cast(Contact, Slows()), Hello(PROTOCOL, "w", "i"), clock, lambda words: None,
        on_order=lambda order: None, on_refused=lambda refused: None, rng=At(),
    )  # fmt: skip
    asked = clock.boot()
    tenure = Tenure(
        Lease.granted("run", 1, "t" * 64, 300.0, asked),
        link,
        Stop(),
        cast(Teller, None),
        clock,
        random.Random(1),
        "sft",
    )
    assert tenure.lease.safe_until == asked + 0.98 * 300
    tenure.on_renewed = renewed.append
    tasks = [asyncio.create_task(link.run())]
    await link.up()
    clock.now = sent = asked + 30.0
    tasks.append(asyncio.create_task(tenure.renew()))
    try:
        await until(lambda: renewed)
        assert (renewed[0].safe_until, clock.boot()) == (sent + 0.98 * 300, sent + 100)
        clock.now = sent + 0.98 * 300 - 0.1
        assert tenure.safe
        clock.now += 0.1
        assert not tenure.safe
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_agent_that_has_just_begun_waits_for_its_first_session_before_it_says_that_nobody_answers() -> None:
    clock = ManualClock()
    link = Link(
        cast(Contact, Sessions()), Hello(PROTOCOL, "w", "i"), clock, lambda words: None,
        on_order=lambda order: None, on_refused=lambda refused: None, rng=At(),
    )  # fmt: skip
    lease = Lease.granted("run", 1, "t" * 64, 300.0, clock.boot())
    tenure = Tenure(lease, link, Stop(), cast(Teller, None), clock, At(), "sft")
    assert not await tenure.answers(0.0)
    asking = asyncio.create_task(tenure.answers(30.0))
    await asyncio.sleep(0)
    running = asyncio.create_task(link.run())
    try:
        assert await asking
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_answer_that_nobody_waited_for_any_more_renews_from_when_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a slow line every answer may be late, and the commander counts on none of them less for that."""
    monkeypatch.setattr("relay_agent.attempt.tenure.RENEW_TIMEOUT", 0.02)

    class Late(Socket):
        def _answer(self, message: Message) -> None:
            if not isinstance(message, Renewed):
                super()._answer(message)
                return
            asked.append(message)
            if len(asked) == 2:
                super()._answer(asked[0])

        async def send_frame(self, data: bytes, kind: WSMsgType) -> None:
            await super().send_frame(data, kind)
            clock.now = sent + 10.0

    class Lates(Sessions):
        @asynccontextmanager
        async def connect(self, heartbeat: float) -> AsyncIterator[Socket]:
            self.sockets.append(Late())
            yield self.sockets[-1]

    clock, asked, renewed = ManualClock(), list[Renewed](), list[Lease]()
    link = Link(
        cast(Contact, Lates()), Hello(PROTOCOL, "w", "i"), clock, lambda words: None,
        on_order=lambda order: None, on_refused=lambda refused: None, rng=At(),
    )  # fmt: skip
    sent = clock.boot() + 30.0
    lease = Lease.granted("run", 1, "t" * 64, 300.0, clock.boot())
    tenure = Tenure(lease, link, Stop(), cast(Teller, None), clock, At(), "sft")
    tenure.on_renewed = renewed.append
    tasks = [asyncio.create_task(link.run())]
    await link.up()
    clock.now = sent
    tasks.append(asyncio.create_task(tenure.renew()))
    try:
        await until(lambda: renewed)
        assert renewed[0].safe_until == sent + 0.98 * 300
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(("seconds", "every"), [(5.0, 1.0), (60.0, 6.0), (300.0, 30.0), (3_600.0, 30.0)])
def test_a_lease_is_renewed_every_tenth_of_it_within_bounds(seconds: float, every: float) -> None:
    assert Lease.granted("run", 1, "t" * 64, seconds, 0.0).every == every


def test_the_clock_of_leases_counts_suspend() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= SystemClock().boot() <= time.clock_gettime(time.CLOCK_BOOTTIME)


async def test_who_is_cancelled_as_the_line_breaks_is_cancelled() -> None:
    """And does not go on because an answer, here that there will be none, came in the same moment."""

    class Mute(Socket):
        def _answer(self, message: Message) -> None:
            if not isinstance(message, Renewed):
                super()._answer(message)

    class Mutes(Sessions):
        @asynccontextmanager
        async def connect(self, heartbeat: float) -> AsyncIterator[Socket]:
            self.sockets.append(Mute())
            yield self.sockets[-1]

    clock, sessions = ManualClock(), Mutes()
    link = Link(
        cast(Contact, sessions), Hello(PROTOCOL, "w", "i"), clock, lambda words: None,
        on_order=lambda order: None, on_refused=lambda refused: None, rng=At(),
    )  # fmt: skip
    lease = Lease.granted("run", 1, "t" * 64, 300.0, clock.boot())
    tenure = Tenure(lease, link, Stop(), cast(Teller, None), clock, random.Random(1), "sft")
    running = asyncio.create_task(link.run())
    await link.up()
    renewing = asyncio.create_task(tenure.renew())
    await until(lambda: sessions.sockets[-1].renewed == 1)
    running.cancel()
    renewing.cancel()
    done, _ = await asyncio.wait({running, renewing}, timeout=5)
    renewing.cancel()
    assert done == {running, renewing}
