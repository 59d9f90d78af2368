"""How a cloud's metadata service is asked: briefly, past every proxy, and with nothing it says taken on trust."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import aiohttp

ADDRESS = "http://169.254.169.254"
"""The same in all of these clouds: link-local, answered by the host itself."""
TIMEOUT = 2.0
"""Seconds for an answer that is there or is not."""
MAX_ANSWER = 64 << 10
"""Bytes of one that are read; what follows is somebody else's."""


class Unanswered(Exception):  # noqa: N818 - what happened, not whose mistake it was
    """There was no answer, or none that can be read. Its words say why, and hold nothing that is secret."""


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str


class Metadata:
    """One session, opened when it is first needed. `address`: of the service, for places that have it elsewhere."""

    def __init__(self, address: str = "") -> None:
        self._address = (address or ADDRESS).rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self, path: str, headers: Mapping[str, str], *, put: bool = False, patience: float = TIMEOUT
    ) -> Answer:
        """Unanswered where nobody answers within `patience` seconds. Redirects are not followed: these services know
        none, and whoever sends one is somebody else."""
        from relay_agent.link.web import aiohttp, beginning, connector  # loaded by the link already; not by `--help`

        if self._session is None:
            # trust_env stays off: a token for this service is nothing to hand to a proxy
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                headers={"Accept-Encoding": "identity"},
                connector=await connector(self._address),
            )
        timeout = aiohttp.ClientTimeout(total=patience, connect=min(patience, TIMEOUT))
        try:
            async with self._session.request(
                "PUT" if put else "GET", self._address + path, headers=headers, timeout=timeout, allow_redirects=False
            ) as answer:
                if answer.headers.get("Content-Encoding", "identity") != "identity":
                    raise Unanswered("something packed, which nobody asked for")
                body = await beginning(answer, MAX_ANSWER)
                return Answer(answer.status, answer.headers, body.decode(errors="replace").strip())
        except TimeoutError:
            raise Unanswered("no answer in time") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unanswered(type(error).__name__) from None  # never its words: they may hold what was asked

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
