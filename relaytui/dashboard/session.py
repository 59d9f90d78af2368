"""The dashboard's one connection to a commander: opens it after the first paint, keeps the picture fed, makes calls."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relaytui.client.endpoint import Endpoint
from relaytui.client.link import Link
from relaytui.client.mirror import MOST_EVENTS, Mirror
from relaytui.wire.errors import RelayError
from relaytui.wire.feed import EventAdded, ServerFeed
from relaytui.wire.rows import EventRow, RunRow

if TYPE_CHECKING:
    from relaytui.client.api import CommanderClient
    from relaytui.client.feed import Feed

BACKLOG = 1_000
OLDER = 1_000
CURVE_POINTS = 1_000
METRIC = "loss"
ALARMS = frozenset({"resume.ignored"})
"""Kinds of events after which a run trains on, and its operator may want otherwise."""


@dataclass(frozen=True)
class Opened:
    """A commander to speak to. `embedded`: it lives in this process and ends with it unless it is left running."""

    endpoint: Endpoint
    embedded: bool = False
    trouble: Callable[[], RelayError | None] = lambda: None  # why an embedded one went down by itself
    warning: str = ""  # what its operator should know of how it was started
    remark: Callable[[Mapping[str, RunRow]], str] = lambda runs: ""  # what there is to say of its runs as they are now


Source = Endpoint | Opened | Callable[[], Opened]
"""A known commander, or what finds (or starts) one: called in a thread, after the first paint. May raise RelayError."""


class Session:
    """`on_change` is called whenever the picture may look different."""

    def __init__(
        self, source: Source, mirror: Mirror, on_change: Callable[[], None], *, actor: str | None = None
    ) -> None:
        self._source = source
        self._mirror = mirror
        self._on_change = on_change
        self._actor = actor
        self.opened: Opened | None = Opened(source) if isinstance(source, Endpoint) else None
        if isinstance(source, Opened):
            self.opened = source
        self.on_opened: Callable[[Opened], None] = lambda opened: None
        self.on_alarm: Callable[[EventRow], None] = lambda event: None
        """Called where something happens that must be seen on whatever screen one is."""
        self._feed: Feed | None = None
        self._client: CommanderClient | None = None
        self._watched: list[str] = []

    @property
    def url(self) -> str:
        return self.opened.endpoint.url if self.opened is not None else ""

    @property
    def remark(self) -> str:
        return self.opened.remark(self._mirror.runs) if self.opened is not None and self._mirror.loaded else ""

    async def run(self) -> None:
        """Until cancelled. RelayError where no commander can be opened."""
        # aiohttp takes half a second to import: the screen is up by now, and goes on meanwhile.
        feed_module = await asyncio.to_thread(importlib.import_module, "relaytui.client.feed")
        if self.opened is None:
            assert callable(self._source)
            self.opened = await asyncio.to_thread(self._source)
            self.on_opened(self.opened)
            self._on_change()
        self._feed = feed_module.Feed(self.opened.endpoint, self._apply, self._set_link)
        if self._watched:
            await self.watch(self._watched)
        try:
            await self._feed.run()
        finally:
            with contextlib.suppress(Exception):
                await self.close()

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _apply(self, message: ServerFeed) -> None:
        known = self._mirror.versions.events
        self._mirror.apply(message)
        if isinstance(message, EventAdded) and message.event.kind in ALARMS and self._mirror.versions.events > known:
            self.on_alarm(message.event)
        self._on_change()

    def _set_link(self, link: Link) -> None:
        if self.opened is not None and (trouble := self.opened.trouble()) is not None:
            raise trouble  # nothing is there to connect to again
        self._mirror.set_link(link)
        self._on_change()

    # -- asking and acting ----------------------------------------------------------------------------------------

    async def client(self) -> CommanderClient:
        if self.opened is None:
            raise RelayError("not_connected", "there is no commander yet", "wait until the top line says live")
        if self._client is None:
            api = await asyncio.to_thread(importlib.import_module, "relaytui.client.api")
            self._client = api.CommanderClient(self.opened.endpoint, actor=self._actor)
        return self._client

    async def watch(self, runs: list[str]) -> None:
        """Lines and points of these runs from now on; remembered if there is no feed yet."""
        self._watched = runs
        if self._feed is not None:
            await self._feed.watch(runs, BACKLOG)

    async def load_run(self, run_id: str, *, curve: bool) -> None:
        """Attempts and checkpoints, and the curve's past."""
        client = await self.client()
        asked = self._mirror.clock()
        self._mirror.load_detail(await client.run(run_id), asked)
        if curve:
            series = await client.series(run_id, METRIC, CURVE_POINTS)
            self._mirror.picture(run_id).curve(METRIC).add(series.points)
        self._on_change()

    async def load_older_events(self) -> bool:
        """Events before the oldest one that is here; False where there is none, or no room, or where the picture was
        begun anew while they were read."""
        mirror = self._mirror
        if not mirror.events_before or not mirror.events or len(mirror.events) + OLDER > MOST_EVENTS:
            return False
        client = await self.client()
        mirror.make_room(OLDER)
        before = mirror.events[0].id
        answer = await client.events(before=before, limit=OLDER)
        taken = mirror.add_older(answer.events, before, len(answer.events) < OLDER)
        self._on_change()
        return taken

    async def load_older(self, run_id: str) -> int | None:
        """Lines before the oldest one that is here; how many came, None where that is the run's first."""
        picture = self._mirror.picture(run_id)
        log = picture.log
        if not log.entries:
            return 0
        oldest = log.entries[0]
        # Then the attempts before: epochs may leave numbers out, and some attempt printed nothing.
        earlier: list[tuple[int, int | None]] = [(epoch, None) for epoch in sorted(picture.attempts, reverse=True)]
        wanted = [(oldest.epoch, oldest.n)] if oldest.n > 1 else [one for one in earlier if one[0] < oldest.epoch]
        if wanted and len(log) + OLDER > log.limit:
            return 0
        client = await self.client()
        for epoch, before in wanted:
            answer = await client.log(run_id, epoch=epoch, before=before, limit=OLDER)
            came = log.add_lines(answer.lines)
            if not came and before is not None:  # they gave way: the commander keeps no log for ever
                log.add_gap(epoch, 1, before - 1)
                came = 1
            if came:
                self._on_change()
                return came
        return None if oldest.n <= 1 and picture.loaded else 0
