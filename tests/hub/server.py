"""The hub itself: its folder, its routes, and what a test asks of it and does to it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from pathlib import Path
from types import TracebackType

from aiohttp import web

from tests.hub import commits, files, lfs, reading, repos, xet
from tests.hub.content import Content
from tests.hub.faults import Fault, FaultPlan, Faults
from tests.hub.judge import Finding, judge
from tests.hub.serving import Recorded, Route, record_of, serve
from tests.hub.store import BRANCH, Repo, Store
from tests.hub.tokens import Token, Tokens, may_read, may_write

__all__ = ["ROUTES", "TestHub"]

TABLE: tuple[Route, ...] = (*repos.ROUTES, *lfs.ROUTES, *commits.ROUTES, *xet.ROUTES, *reading.ROUTES, *files.ROUTES)
ROUTES = tuple(dict.fromkeys(route.name for route in TABLE))
"""Names that a fault can have in `route`."""
READ_BUFFER = 1 << 20


class TestHub:
    """A hub on loopback, for one test: `async with TestHub(folder) as hub`.

    The knobs are attributes, read at each request.
    """

    __test__ = False  # no test of pytest's

    def __init__(self, folder: Path, *, port: int = 0, plan: FaultPlan | None = None) -> None:
        self.content = Content(folder)
        self.store = Store(self.content)
        self.tokens = Tokens()
        self.faults = Faults()
        self.faults.plan = plan
        self.requests: list[Recorded] = []
        self.url = ""
        self.elsewhere = ""
        """Another origin, which knows addresses that were promised and no tokens."""
        self.token = "hf_write"

        self.large_above = 10 << 20
        """Files of more bytes are large objects whatever they are called or hold."""
        self.part_size: int | None = None
        """Large objects of more bytes come in parts of so many; None: each in one piece."""
        self.page = 1000
        """Rows in one page of a tree, of commits (at most 50) or of large objects."""
        self.quota: int | None = None
        """Bytes that the private repositories of one owner may have stored altogether."""
        self.tags_follow = True
        """Whether tags move along where large objects are deleted with `rewriteHistory`."""
        self.xet_folder: Path | None = None
        """Where hf_xet keeps its blocks (`local://`). Given, commits may name large objects whose bytes never came."""

        self.redirect = False
        """Whether large files come from `elsewhere`, as the Hub's do, where no token may be sent."""

        self.uploads = lfs.Uploads()
        self.links = files.Links()
        self._port = port
        self._runner: web.AppRunner | None = None
        self._closing = asyncio.Event()
        self._changes = asyncio.Condition()
        self._notes: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> TestHub:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=1 << 40)
        for route in TABLE:
            app.router.add_route(route.method, route.path, functools.partial(serve, self, route))
        return app

    async def start(self, app: web.Application | None = None) -> None:
        app = app or self.application()
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, read_bufsize=READ_BUFFER, lingering_time=0.5
        )
        await self._runner.setup()
        for port in (self._port, 0):
            await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url, self.elsewhere = (f"http://127.0.0.1:{address[1]}" for address in self._runner.addresses)
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()

    # -- what goes wrong ---------------------------------------------------------------------------------------------

    def fault(self, *faults: Fault) -> None:
        for each in faults:
            if each.route != "*" and each.route not in ROUTES:
                raise ValueError(f"there is no route {each.route!r}; there are {', '.join(ROUTES)}")
        self.faults.add(faults)

    def someone_commits(
        self, repo_id: str, path: str = "theirs.txt", data: bytes = b"theirs\n", branch: str = BRANCH
    ) -> str:
        """Somebody else's commit of one small file; its oid."""
        repo = self.store.repo(repo_id)
        tree = dict(repo.resolve(branch).tree) | {path: self.store.small(data)}
        return self.store.add(repo, branch, tree, f"Upload {path}", "", "somebody").oid

    def someone_tags(self, repo_id: str, tag: str, revision: str = BRANCH) -> str:
        """Somebody else's tag, put or moved; the commit it is on."""
        repo = self.store.repo(repo_id)
        oid = repo.tags[tag] = repo.resolve(revision).oid
        return oid

    # -- what came of it ---------------------------------------------------------------------------------------------

    def repo(self, repo_id: str) -> Repo:
        return self.store.repo(repo_id)

    def files(self, repo_id: str, revision: str = BRANCH) -> dict[str, bytes]:
        """Every file of a tree with its content: of small trees only."""
        tree = self.repo(repo_id).resolve(revision).tree
        return {path: self.content.read(entry.sha256) for path, entry in tree.items()}

    def stored_bytes(self, repo_id: str) -> int:
        return self.repo(repo_id).stored_bytes()

    def verify(self, repo_id: str) -> list[Finding]:
        """What is wrong with the tags of that repository; nothing is."""
        return judge(self.repo(repo_id), self.content)

    def received(self) -> Counter[str]:
        """Bytes of each large object that came in, however often."""
        counted: Counter[str] = Counter()
        for each in self.requests:
            if each.oid is not None:
                counted[each.oid] += each.received
        return counted

    def resent(self) -> Counter[str]:
        """Bytes of large objects that came in although they were stored."""
        counted: Counter[str] = Counter()
        for each in self.requests:
            if each.oid is not None and each.stored and each.received:
                counted[each.oid] += each.received
        return counted

    def asked(self, route: str) -> list[Recorded]:
        return [each for each in self.requests if each.route == route]

    async def wait_for(self, route: str, count: int = 1, deadline: float = 20.0) -> list[Recorded]:
        """Until so many requests of that route were over (with no answer, where they got none); TimeoutError."""
        async with asyncio.timeout(deadline), self._changes:
            while len(over := [each for each in self.asked(route) if each.seconds is not None]) < count:
                await self._changes.wait()
        return over

    def changed(self) -> None:
        async def tell() -> None:
            async with self._changes:
                self._changes.notify_all()

        note = asyncio.ensure_future(tell())
        self._notes.add(note)
        note.add_done_callback(self._notes.discard)

    # -- for its routes ----------------------------------------------------------------------------------------------

    def who(self, request: web.Request) -> Token | None:
        token = self.tokens.of(request.headers.get("Authorization"))
        if token is not None:
            record_of(request).user = token.user
        return token

    def readable(self, request: web.Request) -> Repo:
        """The repository of that request, where its token may read it."""
        token = self.who(request)
        repo = self._named(request)
        may_read(token, repo)
        return repo

    def writable(self, request: web.Request) -> tuple[Repo, Token]:
        token = self.who(request)
        repo = self._named(request)
        return repo, may_write(token, repo)

    def _named(self, request: web.Request) -> Repo:
        kind = request.match_info.get("kinds", "models").removesuffix("s")
        return self.store.repo(f"{request.match_info['owner']}/{request.match_info['name']}", kind)

    async def until_closed(self, seconds: float | None, request: web.Request | None = None) -> None:
        """Until the hub stops, that time has passed, or the client of `request` is gone."""
        loop = asyncio.get_running_loop()
        end = None if seconds is None else loop.time() + seconds
        while not self._closing.is_set():
            left = 0.05 if end is None else min(0.05, end - loop.time())
            if left <= 0 or (request is not None and (request.transport is None or request.transport.is_closing())):
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), left)
