"""Agents that come back to a server that was killed and started again, with the link and the lease of a real one.

    python -m tests.bench.load.returning relay|bare PORT FIRST COUNT FOLDER

The worker's token comes in RELAY_BENCH_TOKEN: a token is never in argv. Bare clients have the same pauses between two
tries, and instead of a renewal one frame and its echo. Asked `{"mark": 1}`, it answers how many were renewed in the
session that they have; asked `{"killed": T}` (time.monotonic), with the seconds from T to the first renewal of each in
a later session, once there was one: `{"seconds": […]}`.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import sys
import time
from pathlib import Path
from typing import Protocol

import aiohttp

from relay_agent.attempt.telling import Teller
from relay_agent.attempt.tenure import Tenure
from relay_agent.lease.lease import Lease
from relay_agent.link.contact import Contact
from relay_agent.link.link import Link, longest_pause
from relay_agent.outcome.stop import Stop
from relay_agent.spool.spool import Spool
from relay_agent.volume.journal import Journal
from relay_agent.volume.volume import RunFolder
from relaytui.wire.clock import SystemClock
from relaytui.wire.messages import PROTOCOL, Acquire, Granted, Hello
from tests.bench.load import asked
from tests.bench.load.agents import TOKEN_VARIABLE
from tests.bench.load.websocket import ClosedError

PATIENCE = 60.0
TOGETHER = 16
"""Agents that ask for their first lease at the same time."""
_running: set[asyncio.Task[None]] = set()


class Returning(Protocol):
    renewed: dict[int, float]
    """By session: when the first renewal in it was answered."""

    async def come(self) -> None:
        """Until it was renewed for the first time; from then on it comes back by itself."""
        ...


def quiet(words: str) -> None:
    """What an agent says while there is no commander is known."""


def run_on(task: asyncio.Task[None]) -> None:
    _running.add(task)


async def first_renewal(renewed: dict[int, float]) -> None:
    while not renewed:
        await asyncio.sleep(0.01)


class Agent:
    """Link, lease, spool and renewals of an agent; no trainer."""

    def __init__(self, url: str, token: str, run_id: str, folder: Path) -> None:
        self.renewed: dict[int, float] = {}
        self._run_id = run_id
        self._folder = folder
        self._clock = SystemClock()
        hello = Hello(protocol=PROTOCOL, worker=f"w-{run_id}", incarnation=secrets.token_hex(16), version="bench")
        self._link = Link(
            Contact(url, token), hello, self._clock, quiet, on_order=lambda order: None, on_refused=lambda refused: None
        )

    async def come(self) -> None:
        link, clock, run_id = self._link, self._clock, self._run_id
        run_on(asyncio.create_task(link.run()))
        await link.up()
        asked_at = clock.boot()
        answer = await link.ask(
            lambda number: Acquire(request=number, request_id=secrets.token_hex(8), run_id=run_id, mode="sft"), PATIENCE
        )
        if not isinstance(answer, Granted):
            raise ClosedError(f"asked for {run_id} and was answered {answer}")
        lease = Lease.granted(run_id, answer.epoch, answer.token, answer.lease_seconds, asked_at)
        self._folder.mkdir()
        link.spool = Spool(run_id, answer.epoch, answer.token, self._folder)
        journal = Journal(RunFolder(self._folder), f"w-{run_id}", clock)
        tell = Teller(link.spool, journal, clock, link.wake)
        tenure = Tenure(lease, link, Stop(), tell, clock, random.Random(), "sft")
        tenure.on_renewed = lambda lease: void(self.renewed.setdefault(link.sessions, time.monotonic()))
        run_on(asyncio.create_task(tenure.renew()))
        await first_renewal(self.renewed)


def void(value: object) -> None:
    """For callbacks that return nothing."""


class Bare:
    """A websocket that is opened anew whenever it is lost."""

    def __init__(self, port: int) -> None:
        self.renewed: dict[int, float] = {}
        self._url = f"http://127.0.0.1:{port}/ws"

    async def come(self) -> None:
        run_on(asyncio.create_task(self._run()))
        await first_renewal(self.renewed)

    async def _run(self) -> None:
        sessions, since = 0, time.monotonic()
        while True:
            try:
                async with aiohttp.ClientSession() as session, session.ws_connect(self._url) as socket:
                    await socket.send_str("x" * 150)
                    if (await socket.receive()).type is aiohttp.WSMsgType.TEXT:
                        sessions += 1
                        self.renewed[sessions] = time.monotonic()
                        await socket.receive()
                        since = time.monotonic()
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(random.uniform(0.05, longest_pause(time.monotonic() - since)))


class Crowd:
    def __init__(self, members: list[Returning]) -> None:
        self._members = members
        self._sessions: list[int] = []

    async def answer(self, question: asked.Question) -> asked.Answer:
        if "killed" not in question:
            self._sessions = [max(member.renewed) for member in self._members]
            return {"renewed": len(self._sessions)}
        killed = float(question["killed"])
        async with asyncio.timeout(PATIENCE):
            while any(max(each.renewed) <= known for each, known in zip(self._members, self._sessions, strict=True)):
                await asyncio.sleep(0.02)
        return {
            "seconds": [
                min(at for session, at in each.renewed.items() if session > known) - killed
                for each, known in zip(self._members, self._sessions, strict=True)
            ]
        }


def main(target: str, port: int, first: int, count: int, folder: Path) -> None:
    def member(number: int) -> Returning:
        if target == "bare":
            return Bare(port)
        run_id = f"restart-{first + number:04d}"
        return Agent(f"http://127.0.0.1:{port}", os.environ[TOKEN_VARIABLE], run_id, folder / run_id)

    async def open_load() -> asked.Answering:
        members = [member(number) for number in range(count)]
        gate = asyncio.Semaphore(TOGETHER)

        async def come(each: Returning) -> None:
            async with gate:
                await each.come()

        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*map(come, members))
        return Crowd(members).answer

    asked.run(open_load)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
