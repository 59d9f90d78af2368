"""The live feed: connects, proves the commander, decodes, and connects again for ever until cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from relaytui.client.endpoint import Endpoint
from relaytui.client.link import Link, LinkState
from relaytui.client.proving import open_session, prove_commander
from relaytui.shell.web import aiohttp
from relaytui.wire.codec import decode, encode
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.feed import ServerFeed, Watch
from relaytui.wire.text import clean

HEARTBEAT = 10.0
SILENCE = 3.5
"""Seconds without a word (a beat comes every second or so) after which the picture counts as stale."""
MAX_DELAY = 5.0
MAX_SNAPSHOT = 64 << 20


class Feed:
    """`run()` until cancelled; `on_message` and `on_link` are called in its event loop and must not block.

    After each connect comes a Snapshot, and what was last asked for by `watch` is asked for again.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        on_message: Callable[[ServerFeed], None],
        on_link: Callable[[Link], None] = lambda link: None,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        silence: float = SILENCE,
        max_delay: float = MAX_DELAY,
    ) -> None:
        self._endpoint = endpoint
        self._on_message = on_message
        self._on_link = on_link
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._silence = silence
        self._max_delay = max_delay
        self._watch: Watch | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._failures = 0
        self._messages = 0
        self._heard: float | None = None
        self.link = Link(LinkState.CONNECTING, clock())

    async def watch(self, runs: Sequence[str], backlog: int = 500) -> None:
        """From now on lines and points of these runs; remembered across reconnects."""
        self._watch = Watch(list(runs), backlog)
        socket = self._socket
        if socket is not None and not socket.closed:
            with contextlib.suppress(ConnectionError, aiohttp.ClientError):  # the reconnect sends it again
                await socket.send_str(encode(self._watch).decode())

    async def run(self) -> None:
        async with open_session(self._endpoint.url) as session:
            while True:
                try:
                    await prove_commander(session, self._endpoint)
                    await self._stay(session)
                    self._lost("the commander closed the feed")
                except RelayError as error:
                    if error.exit_code == Exit.UNAVAILABLE:
                        self._lost(error.message)
                    else:
                        self._set(LinkState.REFUSED, str(error))
                except (aiohttp.ClientError, ConnectionError, TimeoutError, OSError) as error:
                    self._lost(clean(str(error), 200) or type(error).__name__)
                await asyncio.sleep(self._delay())

    async def _stay(self, session: aiohttp.ClientSession) -> None:
        """One connection, from its upgrade to its end."""
        try:
            socket = await session.ws_connect(
                self._endpoint.feed_url,
                headers={"Authorization": f"Bearer {self._endpoint.token}", "Host": self._endpoint.host},
                heartbeat=HEARTBEAT,
                compress=0,
                max_msg_size=MAX_SNAPSHOT,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise _refusal(self._endpoint, error.status) from None
        async with socket:
            self._socket = socket
            try:
                if self._watch is not None:
                    await socket.send_str(encode(self._watch).decode())
                await self._listen(socket)
            finally:
                self._socket = None

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        watchdog = asyncio.ensure_future(self._watch_silence())
        try:
            while True:
                frame = await socket.receive()
                if frame.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                    return
                self._apply(frame.data)
        finally:
            watchdog.cancel()

    async def _watch_silence(self) -> None:
        """Says stale after `silence` seconds without a word; the socket's own heartbeat ends a dead connection."""
        heard = self._messages
        while True:
            await asyncio.sleep(self._silence)
            if self._messages == heard:
                self._lost("the commander is silent")
            heard = self._messages

    def _apply(self, data: str | bytes) -> None:
        try:
            message = decode(data, cast("type[Any]", ServerFeed))
        except RelayError as error:
            raise RelayError(
                "bad_feed",
                f"the commander's feed is not understood: {error.message}",
                "is it of another version? compare `relay-tui --version` on both sides",
            ) from None
        self._heard = self._clock()
        self._messages += 1
        self._failures = 0
        self._on_message(message)
        if self.link.state is not LinkState.LIVE:
            self._set(LinkState.LIVE, "")

    def _lost(self, reason: str) -> None:
        """Nothing is heard: still connecting if it never was, else stale since it was last."""
        if self._heard is None:
            self._set(LinkState.CONNECTING, reason)
        else:
            self._set(LinkState.STALE, reason, self._heard)

    def _set(self, state: LinkState, reason: str, since: float | None = None) -> None:
        if since is None:
            since = self.link.since if state is self.link.state else self._clock()
        link = Link(state, since, reason)
        if link != self.link:
            self.link = link
            self._on_link(link)

    def _delay(self) -> float:
        """Full jitter, so that many clients do not come back at once."""
        if self.link.state is LinkState.REFUSED:  # does not mend by itself: ask seldom
            return self._rng.uniform(self._max_delay, 2 * self._max_delay)
        self._failures += 1
        return self._rng.uniform(0, min(self._max_delay, 0.25 * 2 ** min(self._failures, 10)))


def _refusal(endpoint: Endpoint, status: int) -> RelayError:
    if status in (401, 403):
        return RelayError(
            "refused",
            f"{endpoint.url} does not let this token see the feed ({status})",
            "the dashboard needs the operator's token (RELAY_TOKEN or --state), not the workers' secret",
        )
    return RelayError("refused", f"{endpoint.url} answered the feed with {status}", "")
