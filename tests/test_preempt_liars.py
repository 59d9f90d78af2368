"""A metadata service that lies, stalls or floods: no notice is believed that was none, none is lost, nothing grows."""

from __future__ import annotations

import asyncio
import gzip
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from commander_kit import FakeClock

from relay_agent.preempt.aws import Aws
from relay_agent.preempt.azure import Azure
from relay_agent.preempt.gcp import Gcp
from relay_agent.preempt.metadata import MAX_ANSWER, Metadata, Unanswered
from relay_agent.preempt.notice import Notice, Poller, Surroundings, moment
from relay_agent.preempt.watch import watch

NOW = 1_772_359_200.0
EVENTS = b'{"Events":[{"EventType":"Preempt","Resources":["vm"],"NotBefore":"Sun, 01 Mar 2026 10:00:30 GMT"}]}'
KINDS: dict[str, Callable[[Surroundings], Poller]] = {"aws": Aws, "azure": Azure, "gcp": Gcp}


def http(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Liar:
    """Says these pieces to whoever connects, with a moment between them; then hangs, or closes."""

    def __init__(self, *pieces: bytes, hangs: bool = False, repeats: int = 1) -> None:
        self.pieces, self.hangs, self.repeats = pieces, hangs, repeats
        self.heard: list[bytes] = []
        self.connections: list[asyncio.StreamWriter] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            self.heard.append(await reader.readuntil(b"\r\n\r\n"))
            for _ in range(self.repeats):
                for piece in self.pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.01)
        if not self.hangs:
            writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for writer in self.connections:
                writer.close()


async def asked(liar: Liar, patience: float = 2.0) -> str:
    """What it is understood to say; why not, in brackets."""
    async with liar.listening() as url:
        metadata = Metadata(url)
        try:
            return (await metadata.ask("/", {}, patience=patience)).text
        except Unanswered as why:
            return f"[{why}]"
        finally:
            await metadata.close()


async def test_an_answer_in_pieces_is_read_to_its_end() -> None:
    whole = http(EVENTS)
    assert await asked(Liar(whole[:60], whole[60:90], whole[90:])) == EVENTS.decode()
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert await asked(Liar(chunked, b"3\r\nTRU\r\n", b"1\r\nE\r\n", b"0\r\n\r\n")) == "TRUE"


async def test_one_that_drips_is_not_waited_for() -> None:
    assert await asked(Liar(b"HTTP/1.1 200 OK\r\nX: ", *[b"T"] * 200), 0.2) == "[no answer in time]"
    assert await asked(Liar(http(b"", length=999), *[b"x"] * 200), 0.2) == "[no answer in time]"
    assert await asked(Liar(hangs=True), 0.1) == "[no answer in time]"


async def test_of_a_flood_the_beginning_is_read() -> None:
    assert await asked(Liar(http(b"x" * (40 * MAX_ANSWER)))) == "x" * MAX_ANSWER


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_a_redirect_leads_nowhere_and_hands_nobody_a_token(status: str) -> None:
    elsewhere = Liar(http(b"a-token"))
    async with elsewhere.listening() as there:
        liar = Liar(http(b"", f"Location: {there}/latest/api/token", "Set-Cookie: a=b", status=status))
        async with liar.listening() as url:
            metadata = Metadata(url)
            for kind in KINDS.values():
                with pytest.raises(Unanswered):
                    await kind(Surroundings(metadata, {}, lambda: NOW, 120.0)).look()
            await metadata.close()
        assert (len(liar.heard), elsewhere.heard) == (3, [])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (http(gzip.compress(bytes(60_000_000), 1), "Content-Encoding: gzip"), "packed"),
        (http(b"\x1b\x00", "Content-Encoding: br"), "packed"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"y" * 200_000 + b"\r\n\r\n", ""),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Many: y\r\n" * 20_000 + b"\r\n", ""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, ""),
        (http(b"short", length=10**15), ""),
        (http(b"", length=-1), ""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx", ""),
        (b"HTTP/1.1 9999 ?\r\n\r\n", ""),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", ""),
        (b"\0" * 10_000, ""),
        (b"", ""),
    ],
    ids=lambda said: repr(said[:24]) if isinstance(said, bytes) else said,
)
async def test_what_is_no_answer_of_such_a_service_is_none_and_costs_little(said: bytes, words: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = await asked(Liar(said), 1.0)
    assert answer.startswith("["), answer[:100]
    assert words in answer
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32_000, "KiB"


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<!DOCTYPE html><title>Log in</title>", "text/html"),
        (b"\xff\xfe\x00", "application/octet-stream"),
        (b"\xef\xbb\xbf{}", "application/json"),
        (b"[" * 60_000, "application/json"),
        (b'{"Events": 7, "action": ["terminate"], "time": {}}', "application/json"),
        (b'{"Events": [{"EventType": "Preempt", "NotBefore": 7}]}', "application/json"),
        (b"null", "application/json"),
        (b"", "text/plain"),
    ],
)
async def test_a_portal_or_another_service_gives_no_notice(name: str, body: bytes, kind: str) -> None:
    async with Liar(http(body, f"Content-Type: {kind}", "Metadata-Flavor: Google")).listening() as url:
        metadata = Metadata(url)
        heard: list[Notice] = []
        with suppress(Unanswered):
            heard = await KINDS[name](Surroundings(metadata, {}, lambda: NOW, 120.0)).look()
        await metadata.close()
        assert heard == []


@pytest.mark.parametrize(
    "text",
    [
        "0000-00-00T00:00:00Z", "2026-13-41T25:61:61Z", "9999-12-31T23:59:59.999999-23:59", "0001-01-01T00:00:00+23:59",
        "Sun, 00 Mar 2026 10:00:30 GMT", "Sun, 01 Mar 99999 10:00:30 GMT", "Sun, 01 Mar 2026 10:00:30 +9999999",
        "\0" * 9, "1e99999999", "٢٠٢٦-٠٣-٠١T10:00:00Z", "-" * 64, "2026-03-01T10:02:00Z" * 9,
    ],
)  # fmt: skip
def test_a_date_that_is_none_is_no_error(text: str) -> None:
    found = moment(text)
    assert found is None or isinstance(found, float)


def test_a_token_as_long_as_a_page_is_none() -> None:
    """It would go back in a header of every question."""

    async def work() -> None:
        async with Liar(http(b"x" * 5000)).listening() as url:
            metadata = Metadata(url)
            with pytest.raises(Unanswered, match="instead of a token"):
                await Aws(Surroundings(metadata, {}, lambda: NOW, 120.0)).look()
            await metadata.close()

    asyncio.run(work())


async def test_whatever_it_says_the_watch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real poller on a liar, until it has been asked several times."""
    said: list[str] = []
    looks = asyncio.Event()
    liar = Liar(b"\0" * 100)
    async with liar.listening() as url:
        metadata = Metadata(url)

        async def sleep(seconds: float) -> None:
            if len(liar.heard) >= 4:
                looks.set()
            await asyncio.sleep(0)

        poller = Azure(Surroundings(metadata, {}, FakeClock().wall, 120.0))
        task = asyncio.create_task(watch("azure", poller, pytest.fail, said.append, sleep))
        async with asyncio.timeout(10):
            await looks.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await metadata.close()
    assert len(said) == 1
    assert "gives no answer" in said[0]
