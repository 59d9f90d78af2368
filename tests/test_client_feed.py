"""The live feed of a client: proof before token, reconnects, silence."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest
from scripted_commander import NOW, ScriptedCommander, snapshot, until

from relaytui.client.endpoint import Endpoint
from relaytui.client.feed import Feed
from relaytui.client.link import Link, LinkState
from relaytui.wire.feed import Beat, FeedMessage, Lines


@pytest.fixture
async def commander() -> AsyncIterator[ScriptedCommander]:
    scripted = ScriptedCommander()
    scripted.greeting = [snapshot()]
    await scripted.start()
    yield scripted
    await scripted.stop()


class Listener:
    def __init__(self, endpoint: Endpoint, *, silence: float = 5.0) -> None:
        self.messages: list[FeedMessage] = []
        self.links: list[Link] = []
        self.feed = Feed(
            endpoint, self.messages.append, self.links.append, rng=random.Random(1), silence=silence, max_delay=0.05
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Feed]:
        task = asyncio.create_task(self.feed.run())
        try:
            yield self.feed
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_messages_arrive_in_order(commander: ScriptedCommander) -> None:
    listener = Listener(commander.endpoint)
    async with listener.running() as feed:
        await until(lambda: feed.link.state is LinkState.LIVE)
        lines = [Lines("r", 1, n, NOW, [f"line {n}"]) for n in range(1, 200)]
        await commander.tell(*lines)
        await until(lambda: len(listener.messages) == 200)
        assert listener.messages[1:] == lines


async def test_watch_is_sent_again_after_a_restart_of_the_commander(commander: ScriptedCommander) -> None:
    listener = Listener(commander.endpoint)
    async with listener.running() as feed:
        await until(lambda: feed.link.state is LinkState.LIVE)
        await feed.watch(["run-a"], backlog=7)
        await until(lambda: len(commander.watches) == 1)
        port = commander.port
        await commander.stop()
        await until(lambda: feed.link.state is LinkState.STALE)
        await commander.start(port)
        await until(lambda: feed.link.state is LinkState.LIVE)
        await until(lambda: len(commander.watches) == 2)
        assert commander.watches[1].runs == ["run-a"]
        assert commander.watches[1].backlog == 7


async def test_stale_names_when_the_commander_was_last_heard(commander: ScriptedCommander) -> None:
    listener = Listener(commander.endpoint, silence=0.15)
    async with listener.running() as feed:
        await until(lambda: feed.link.state is LinkState.STALE)
        live = next(link for link in listener.links if link.state is LinkState.LIVE)
        assert feed.link.since <= live.since + 0.1
        assert "silent" in feed.link.reason
        await commander.tell(Beat(NOW + 1))
        await until(lambda: feed.link.state is LinkState.LIVE)


async def test_a_stranger_never_sees_the_token() -> None:
    stranger = ScriptedCommander(proof_token="a guess")
    await stranger.start()
    listener = Listener(stranger.endpoint)
    try:
        async with listener.running() as feed:
            await until(lambda: feed.link.state is LinkState.REFUSED)
            assert "no token was sent" in feed.link.reason
    finally:
        await stranger.stop()
    assert stranger.requests
    for _, path, headers, body in stranger.requests:
        assert path == "/api/health"
        assert listener.feed._endpoint.token not in str(headers) + body.decode()


async def test_a_stranger_who_took_the_port_later_never_sees_it_either(commander: ScriptedCommander) -> None:
    listener = Listener(commander.endpoint)
    async with listener.running() as feed:
        await until(lambda: feed.link.state is LinkState.LIVE)
        port = commander.port
        await commander.stop()
        stranger = ScriptedCommander(proof_token="another")
        await stranger.start(port)
        await until(lambda: feed.link.state is LinkState.REFUSED)
        await stranger.stop()
        assert all("Authorization" not in headers for _, _, headers, _ in stranger.requests)


async def test_a_token_that_may_not_see_the_feed_is_refused_in_words() -> None:
    commander = ScriptedCommander(token="operators only")
    await commander.start()
    listener = Listener(commander.endpoint)
    try:
        async with listener.running() as feed:
            await until(lambda: feed.link.state is LinkState.REFUSED)
            assert "operator's token" in feed.link.reason
    finally:
        await commander.stop()


async def test_a_feed_of_another_version_is_refused_and_never_guessed(commander: ScriptedCommander) -> None:
    class Odd(FeedMessage, frozen=True, tag="odd"):
        pass

    listener = Listener(commander.endpoint)
    async with listener.running() as feed:
        await until(lambda: feed.link.state is LinkState.LIVE)
        await commander.tell(Odd())
        await until(lambda: any(link.state is LinkState.REFUSED for link in listener.links))
        refused = next(link for link in listener.links if link.state is LinkState.REFUSED)
        assert "not understood" in refused.reason


async def test_nobody_there_stays_connecting_with_the_reason() -> None:
    listener = Listener(Endpoint("http://127.0.0.1:9", "t"))
    async with listener.running() as feed:
        await until(lambda: "no commander answers" in feed.link.reason)
        assert feed.link.state is LinkState.CONNECTING
