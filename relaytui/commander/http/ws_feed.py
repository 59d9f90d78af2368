"""`/ws/feed`: one dashboard. A snapshot, then what changes; lines and points of the runs it watches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from aiohttp import WSMsgType, web

from relaytui import __version__
from relaytui.commander.model.records import seen
from relaytui.commander.services.core import Core
from relaytui.commander.services.feed import Subscriber
from relaytui.wire.codec import decode, encode, refuse_twins
from relaytui.wire.errors import RelayError
from relaytui.wire.feed import Beat, ClientFeed, Lines, LinesGap, RunChanged, Snapshot, WorkerChanged
from relaytui.wire.rows import EventRow, LogLine, RunRow, WorkerRow
from relaytui.wire.text import sayable

Row = TypeVar("Row", RunRow, WorkerRow, EventRow)

HEARTBEAT = 10.0
BEAT = 1.0
POLICY_VIOLATION = 1008
MAX_MESSAGE = 256 << 10
LINES_AT_ONCE = 500
LINE_BYTES_AT_ONCE = 256 << 10
ROWS_BYTES, EVENTS_BYTES = 1 << 20, 3 << 20
"""Of runs, of workers, of events in a snapshot, at most: together it always fits into a listener's queue."""
ROWS_AT_ONCE = 100


def feed_socket() -> web.WebSocketResponse:
    return web.WebSocketResponse(heartbeat=HEARTBEAT, compress=False, max_msg_size=MAX_MESSAGE, timeout=1.0)


def snapshot(core: Core) -> Snapshot:
    """What fits of everything, the newest and the live first; what does not is sent after it, row by row."""
    board = core.board
    views = sorted(board.runs.values(), key=lambda view: (view.run.status.ended, -view.run.updated_at))
    workers = sorted(board.workers.values(), key=lambda view: (not view.connected, -view.seen_at))
    now = core.clock.wall()
    events = _fitting(reversed(board.events), EVENTS_BYTES)[::-1]
    return Snapshot(
        now=now,
        commander=core.generation,
        version=__version__,
        lease_seconds=core.settings.lease_seconds,
        runs=_fitting(map(board.run_row, views), ROWS_BYTES),
        workers=_fitting(map(board.worker_row, workers), ROWS_BYTES),
        events=events,
        events_before=max(0, board.events_ever - len(events)),
        no_grants_until=core.leases.no_grants_until(now),
    )


def _fitting(rows: Iterable[Row], size: int) -> list[Row]:
    kept: list[Row] = []
    for row in rows:
        size -= len(encode(row)) + 1
        if size < 0:
            break
        kept.append(row)
    return kept


class FeedSession:
    def __init__(self, core: Core, ws: web.WebSocketResponse, abort: Callable[[], None]) -> None:
        self._core = core
        self._ws = ws
        self._abort = abort

    async def run(self) -> None:
        feed = self._core.feed
        subscriber = feed.subscribe(self._abort)
        # Queued before anything else can happen: no change between the picture and the subscription is lost.
        first = snapshot(self._core)
        subscriber.offer(encode(first))
        tasks = [asyncio.create_task(self._send(subscriber)), asyncio.create_task(self._rest(subscriber, first))]
        try:
            await self._receive(subscriber)
        except RelayError as problem:
            message = sayable(f"{problem.code}: {problem.message}").encode()[:120]
            await self._ws.close(code=POLICY_VIOLATION, message=message)
        finally:
            feed.unsubscribe(subscriber)
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended

    async def _rest(self, subscriber: Subscriber, first: Snapshot) -> None:
        """Runs and workers that the snapshot had no room for, as they are when their turn comes."""
        core = self._core
        for number, run_id in enumerate(core.board.runs.keys() - {row.run_id for row in first.runs}):
            await _turn(subscriber, number)
            run = core.board.runs.get(run_id)
            if run is not None:
                subscriber.offer(encode(RunChanged(now=core.clock.wall(), run=core.board.run_row(run))))
        sent = {row.incarnation for row in first.workers}
        for number, name in enumerate([name for name in core.board.workers if seen(name) not in sent]):
            await _turn(subscriber, number)
            worker = core.board.workers.get(name)
            if worker is not None:
                subscriber.offer(encode(WorkerChanged(now=core.clock.wall(), worker=core.board.worker_row(worker))))

    async def _receive(self, subscriber: Subscriber) -> None:
        while True:
            message = await self._ws.receive()
            if message.type is WSMsgType.TEXT:
                refuse_twins(message.data.encode())
                watch = decode(message.data, ClientFeed)
                new = [run_id for run_id in dict.fromkeys(watch.runs) if run_id not in subscriber.watched]
                self._core.feed.watch(subscriber, watch.runs)
                if watch.backlog:
                    await self._backlogs(subscriber, [run_id for run_id in new if run_id != "*"], watch.backlog)
            elif message.type is WSMsgType.BINARY:
                raise RelayError("bad_frame", "a binary frame", "send JSON as text")
            else:
                return

    async def _backlogs(self, subscriber: Subscriber, runs: list[str], count: int) -> None:
        """The newest lines first, then those that came while they were read, none twice and none left out."""
        for run_id in runs:
            subscriber.hold(run_id)
        await self._core.frames.run(lambda tx: None)  # what was shown before the hold is on disk after this
        for run_id in runs:
            epoch = n = 0
            lines = await self._core.pages.lines(run_id, epoch=None, before=None, limit=count)
            for message in _grouped(run_id, lines):
                await subscriber.room()
                subscriber.offer(encode(message))
            if lines:
                epoch, n = lines[-1].epoch, lines[-1].n
            subscriber.release(run_id, epoch, n)

    async def _send(self, subscriber: Subscriber) -> None:
        ready, queue, clock = subscriber.ready, subscriber.queue, self._core.clock
        send = self._ws.send_frame
        try:
            while True:
                try:
                    async with asyncio.timeout(BEAT):
                        await ready.wait()
                except TimeoutError:
                    await send(encode(Beat(now=clock.wall())), WSMsgType.TEXT)
                    continue
                ready.clear()
                while queue:
                    await send(subscriber.take(), WSMsgType.TEXT)
        except ConnectionError:
            pass  # the receiving side sees the close


async def _turn(subscriber: Subscriber, number: int) -> None:
    """Before each of many rows: at the listener's pace, and with the loop's other work in between."""
    await subscriber.room()
    if number % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
        await asyncio.sleep(0)


def _grouped(run_id: str, lines: list[LogLine]) -> list[Lines | LinesGap]:
    """Lines of one moment that follow each other in one message, as far as it stays small; missing ones are counted."""
    messages: list[Lines | LinesGap] = []
    start = size = 0
    for index in range(1, len(lines) + 1):
        first, last = lines[start], lines[index - 1]
        size += len(last.text)
        following = lines[index] if index < len(lines) and lines[index].epoch == first.epoch else None
        if (
            following is not None
            and (following.n, following.t) == (last.n + 1, first.t)
            and index - start < LINES_AT_ONCE
            and size < LINE_BYTES_AT_ONCE
        ):
            continue
        texts = [line.text for line in lines[start:index]]
        messages.append(Lines(run_id=run_id, epoch=first.epoch, n=first.n, t=first.t, lines=texts, backlog=True))
        if following is not None and following.n > last.n + 1:
            missing = following.n - last.n - 1
            messages.append(LinesGap(run_id=run_id, epoch=first.epoch, n=last.n + 1, count=missing))
        start, size = index, 0
    return messages
