"""What listens at a commander's address is none, or is spoken to in the wrong way: agent and client say so alike."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from relay_agent.link import contact as contact_module
from relay_agent.link.contact import Contact
from relaytui.client.endpoint import Endpoint
from relaytui.client.proving import open_session, prove_commander
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.scheme import spoken_instead

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SECRET = "a-shared-secret-of-some-length"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """Signed by itself."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout k.pem -out c.pem -days 2"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *words.split(), *names], cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "c.pem", folder / "k.pem")
    return context


@asynccontextmanager
async def listening(serve: Serve, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """HOST:PORT of one that serves each connection so, and closes it then."""

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(once, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As most servers do where a first line is none."""
    line = await reader.readline()
    good = line.startswith(b"GET /")
    writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello" if good else b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()


async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    await reader.read(1000)


async def mixed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As nginx does: in plain words that it wants TLS."""
    first = await reader.read(1000)
    plain = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nThe plain HTTP request was sent to HTTPS port"
    writer.write(plain if first.startswith(b"GET") else b"\x15\x03\x03\x00\x02\x02\x28")
    await writer.drain()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1000):
        pass


async def by_agent(url: str) -> RelayError:
    contact = Contact(url, SECRET)
    async with contact.session() as session:
        with pytest.raises(RelayError) as caught:
            await contact.health(session)
    return caught.value


async def by_client(url: str) -> RelayError:
    async with open_session(url) as session:
        with pytest.raises(RelayError) as caught:
            await prove_commander(session, Endpoint(url, SECRET))
    return caught.value


BOTH = pytest.mark.parametrize("asks", [by_agent, by_client])


@BOTH
async def test_https_to_one_that_speaks_http(asks: Callable[[str], Awaitable[RelayError]]) -> None:
    async with listening(http) as address:
        error = await asks(f"https://{address}")
    assert "this speaks http, not https" in error.message
    assert f"write http://{address}" in error.hint
    assert error.exit_code == Exit.UNAVAILABLE
    assert "ssl" not in error.message.lower()


@BOTH
async def test_http_to_one_that_speaks_https(
    asks: Callable[[str], Awaitable[RelayError]], certificate: ssl.SSLContext
) -> None:
    async with listening(http, certificate) as address:
        error = await asks(f"http://{address}")
    assert "this speaks https, not http" in error.message
    assert f"write https://{address}" in error.hint
    assert error.exit_code == Exit.UNAVAILABLE


@BOTH
async def test_http_to_one_that_asks_for_https(asks: Callable[[str], Awaitable[RelayError]]) -> None:
    async with listening(mixed) as address:
        error = await asks(f"http://{address}")
    assert "this speaks https, not http" in error.message


@BOTH
async def test_a_certificate_that_nobody_signed_is_said_in_plain_words(
    asks: Callable[[str], Awaitable[RelayError]], certificate: ssl.SSLContext
) -> None:
    async with listening(http, certificate) as address:
        error = await asks(f"https://{address}")
    assert "its certificate is not trusted (self-signed certificate)" in error.message
    assert "_ssl.c" not in error.message


ASKS = """
import asyncio, sys
from relay_agent.link.contact import Contact
from relay_agent.link.web import aiohttp
from relaytui.client.endpoint import Endpoint
from relaytui.client.proving import open_session, prove_commander

async def ask(url):
    async with open_session(url) as session:
        try:
            await prove_commander(session, Endpoint(url, "a-shared-secret-of-some-length"))
        except Exception as error:
            print(error.code)
    contact = Contact(url, "a-shared-secret-of-some-length")
    async with contact.session() as session:
        try:
            await contact.health(session)
        except Exception as error:
            print(error)
    async with aiohttp.ClientSession() as forgetful:
        try:
            await forgetful.get(url)
        except aiohttp.ClientConnectorCertificateError:
            print("trusts nobody")

asyncio.run(ask(sys.argv[1]))
"""


async def test_agent_and_client_trust_whom_their_system_trusts_and_nobody_by_mistake(
    certificate: ssl.SSLContext, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In a process of its own: it loads aiohttp without any certificates."""
    folder = max(tmp_path_factory.getbasetemp().glob("tls*"), key=lambda path: path.stat().st_mtime)
    async with listening(http, certificate) as address:
        agent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ASKS, f"https://{address}", env={"SSL_CERT_FILE": str(folder / "c.pem")},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, _ = await asyncio.wait_for(agent.communicate(), 30)
    client, health, forgetful = said.decode().splitlines()
    assert client == "unproven", "it came as far as to be asked for its proof"
    assert "answers a health check with something else" in health
    assert forgetful == "trusts nobody"


@BOTH
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_what_speaks_neither_is_not_called_one_of_them(
    asks: Callable[[str], Awaitable[RelayError]], scheme: str
) -> None:
    async with listening(other) as address:
        error = await asks(f"{scheme}://{address}")
    assert "this speaks" not in error.message
    assert error.exit_code in (Exit.UNAVAILABLE, Exit.AUTH)


async def test_a_silent_one_is_not_waited_for_long_and_not_called_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contact_module, "PROOF_TIMEOUT", 0.2)
    async with listening(silent) as address:
        before = time.monotonic()
        error = await by_agent(f"http://{address}")
    assert time.monotonic() - before < contact_module.TIMEOUT / 2
    assert "listens there and did not answer within 0.2 s" in error.message
    assert error.exit_code == Exit.UNAVAILABLE


async def test_who_speaks_right_is_not_called_wrong(certificate: ssl.SSLContext) -> None:
    async with listening(http) as plain, listening(http, certificate) as secure, listening(other) as neither:
        assert [await spoken_instead(f"http://{each}") for each in (plain, secure, neither)] == ["", "https", ""]
        assert [await spoken_instead(f"https://{each}") for each in (plain, secure, neither)] == ["http", "", ""]
    assert await spoken_instead("http://127.0.0.1:9") == ""
    assert await spoken_instead("http://127.0.0.1:99999") == ""


async def test_an_answer_that_comes_in_pieces_is_read_to_its_end() -> None:
    body = b'{"role":"worker","commander":"c","now":1.5}'

    async def pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        for at in range(0, len(body), 20):
            writer.write(body[at : at + 20])
            await writer.drain()
            await asyncio.sleep(0.01)

    async with listening(pieces) as address:
        contact = Contact(f"http://{address}", "a-token")
        async with contact.session() as session:
            assert (await contact.whoami(session)).commander == "c"


async def test_what_a_commander_that_is_in_trouble_says_to_do_is_said() -> None:
    body = b'{"error":{"code":"internal","message":"the commander failed at this","hint":"see its log"}}'

    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 Oh\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async with listening(broken) as address:
        contact = Contact(f"http://{address}", "a-token")
        async with contact.session() as session:
            with pytest.raises(RelayError) as caught:
                await contact.whoami(session)
    assert str(caught.value) == f"http://{address} answers 500: the commander failed at this. see its log"
