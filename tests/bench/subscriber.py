"""Somebody who follows the lines of every run, with the client that the dashboard has."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from relaytui.client.feed import Feed
from relaytui.client.link import Link, LinkState
from relaytui.wire.feed import ServerFeed
from tests.bench.children import BenchError
from tests.bench.commander_process import Commander

READY = 30.0


@contextlib.asynccontextmanager
async def subscribed(serving: Commander, received: Callable[[ServerFeed], None]) -> AsyncIterator[None]:
    live = asyncio.Event()

    def linked(link: Link) -> None:
        if link.state is LinkState.LIVE:
            live.set()

    feed = Feed(serving.endpoint, received, linked)
    await feed.watch(["*"], backlog=0)
    task = asyncio.create_task(feed.run())
    try:
        try:
            await asyncio.wait_for(live.wait(), READY)
        except TimeoutError:
            raise BenchError(f"the feed of {serving.url} is {feed.link.state} ({feed.link.reason})") from None
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
