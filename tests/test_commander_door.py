"""At the door: what is no request, who shows no token, and a log that nobody reads - quiet, bounded, in one form."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gzip
import logging
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import orjson
import pytest
from aiohttp import web
from commander_kit import DEADLINE, Kit, running, until

from relaytui.commander import logs
from relaytui.commander.http import door as door_module


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    async with running(tmp_path / "state") as kit:
        yield kit
        assert (await kit.get("/api/whoami"))[0] == 200  # it still serves


def head(kit: Kit, line: str, *headers: str, token: bool = True, host: bool = True) -> bytes:
    said = [line, *headers, "Connection: close"]
    if host:
        said.insert(1, f"Host: 127.0.0.1:{kit.commander.port}")
    if token:
        said.insert(1, f"Authorization: Bearer {kit.operator}")
    return ("\r\n".join(said) + "\r\n\r\n").encode("latin-1")


async def asked(kit: Kit, request: bytes) -> tuple[int, str, dict[str, str]]:
    """(status, content type, error) of the answer to bytes as they are."""
    reader, writer = await asyncio.open_connection("127.0.0.1", kit.commander.port)
    try:
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), DEADLINE)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    said, _, body = answer.partition(b"\r\n\r\n")
    status = int(said.split(b" ", 2)[1])
    kind = next(line for line in said.decode().splitlines() if line.lower().startswith("content-type"))
    return status, kind.partition(":")[2].partition(";")[0].strip(), orjson.loads(body)["error"]


DRAIN = "POST /api/runs/run-1/drain HTTP/1.1"
BODY = b'{"expected_epoch": 1}'
PACKED = gzip.compress(BODY, mtime=0)
LENGTH = f"Content-Length: {len(PACKED)}"


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (("Content-Encoding: gzip", LENGTH), PACKED, 415),
        (("Content-Encoding: gzip", LENGTH), b"x" * len(PACKED), 415),
        (("Content-Encoding: gzip", "Content-Encoding: gzip", LENGTH), PACKED, 415),
        (("Content-Encoding: identity", "Content-Encoding: gzip", LENGTH), PACKED, 415),
        (("Content-Encoding: deflate", LENGTH), b"x" * len(PACKED), 415),
        (("Content-Encoding: br", LENGTH), b"x" * len(PACKED), 415),
        (("Content-Encoding: zstd", LENGTH), b"x" * len(PACKED), 415),
        (("Content-Encoding: gzip, gzip", LENGTH), PACKED, 415),
        (("Content-Encoding: x" + "y" * 5_000, LENGTH), PACKED, 415),
        (("Transfer-Encoding: chunked",), b"zz\r\nnot a chunk", 400),
        (("Transfer-Encoding: chunked",), b"5\r\nabcdefgh\r\n0\r\n\r\n", 400),
        (("Content-Length: -1",), b"", 400),
        (("Content-Length: 5", "Content-Length: 6"), b"hello", 400),
        (("Content-Length: 5", "Transfer-Encoding: chunked"), b"0\r\n\r\n", 400),
        (("Transfer-Encoding: gzip",), b"hello", 400),
    ],
)
async def test_packed_and_broken_bodies_are_refused_in_one_form_and_quietly(
    kit: Kit, caplog: pytest.LogCaptureFixture, headers: tuple[str, ...], body: bytes, status: int
) -> None:
    for token, wanted in ((True, status), (False, 401)):
        got, kind, error = await asked(kit, head(kit, DRAIN, *headers, token=token) + body)
        assert got in (wanted, status)
        assert kind == "application/json"
        assert set(error) == {"code", "message", "hint"}
        assert error["message"]
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /api/runs HTTP/9.9", 400), ("GET  HTTP/1.1", 400), ("nonsense", 400),
        ("G\x00T /api/runs HTTP/1.1", 400), ("GET /" + "x" * 20_000 + " HTTP/1.1", 400),
        ("GET http://[::1 HTTP/1.1", 400), ("\x16\x03\x01\x02\x00\x01", 400), ("PRI * HTTP/2.0", 400),
    ],
)  # fmt: skip
async def test_what_is_no_request_is_answered_in_one_form_and_quietly(
    kit: Kit, caplog: pytest.LogCaptureFixture, request_line: str, status: int
) -> None:
    got, kind, error = await asked(kit, head(kit, request_line))
    assert (got, kind) == (status, "application/json")
    assert error["message"].isprintable()
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def test_headers_too_large_and_expectations_are_answered_in_one_form(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    for line in ("GET /api/runs HTTP/1.1", DRAIN, "GET /nowhere HTTP/1.1", "PUT /api/runs HTTP/1.1"):
        for wanted, header in ((400, "X-Long: " + "x" * 20_000), (417, "Expect: the-unexpected")):
            got, kind, error = await asked(kit, head(kit, line, header))
            assert (got, kind) == (wanted, "application/json")
            assert set(error) == {"code", "message", "hint"}
    got, kind, _ = await asked(kit, head(kit, "GET /api/runs HTTP/1.1", *[f"X-{n}: x" for n in range(2_000)]))
    assert (got, kind) == (400, "application/json")
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


# -- bodies that do not come whole --------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["close", "reset"])
async def test_a_body_that_breaks_off_is_no_news(
    kit: Kit, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    reading = asyncio.Event()
    read = web.Request.read

    async def noted(request: web.Request) -> bytes:
        reading.set()
        return await read(request)

    monkeypatch.setattr(web.Request, "read", noted)
    for line in (DRAIN, "POST /api/lease/acquire HTTP/1.1"):
        before = asyncio.all_tasks()
        _, writer = await stranger(kit, head(kit, line, "Content-Length: 100") + b'{"a":1}')
        await asyncio.wait_for(reading.wait(), DEADLINE)
        reading.clear()
        if way == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()
        await until(lambda before=before: not asyncio.all_tasks() - before)  # type: ignore[misc]
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []


async def test_a_body_that_does_not_come_is_not_waited_for(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaytui.commander.http.bodies.BODY_WITHIN", 0.05)
    for line in (DRAIN, "POST /api/lease/acquire HTTP/1.1", "POST /api/artifacts/uploads HTTP/1.1"):
        reader, writer = await stranger(kit, head(kit, line, "Content-Length: 100") + b'{"a":1}')
        answer = await asyncio.wait_for(reader.readuntil(b"}"), DEADLINE)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"stalled"' in answer
        writer.close()


# -- who shows no token ------------------------------------------------------------------------------------------


async def stranger(kit: Kit, said: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", kit.commander.port)
    writer.write(said)
    return reader, writer


async def cut_off(reader: asyncio.StreamReader) -> bytes:
    """What came before the end."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), DEADLINE)
    return b""


async def test_who_shows_no_token_in_time_is_shown_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "TOKEN_WITHIN", 0.2)
    async with running(tmp_path / "state") as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        feed = await kit.feed()
        host = f"Host: 127.0.0.1:{kit.commander.port}\r\n"
        health = f"GET /api/health HTTP/1.1\r\n{host}\r\n".encode()
        slow = f"POST /api/runs/run-1/drain HTTP/1.1\r\n{host}Content-Length: 1000\r\n\r\n".encode()
        for said in (b"", b"GET /api/ru", b"GET /api/runs HTTP/1.1\r\nX: y\r\n", health, slow, b"\r\n" * 3):
            reader, writer = await stranger(kit, said)
            await cut_off(reader)
            writer.close()
        known, writer = await stranger(
            kit, f"GET /api/whoami HTTP/1.1\r\n{host}Authorization: Bearer {kit.operator}\r\n\r\n".encode()
        )
        await known.readuntil(b"}")
        with pytest.raises(TimeoutError):  # who has shown one stays
            await asyncio.wait_for(known.read(), 1.0)
        writer.close()
        assert (await agent.renew())["type"] == "renewed"
        await agent.close()
        await feed.until(lambda m: m["type"] == "worker" and m["worker"]["status"] == "offline")


async def test_a_stranger_that_asks_now_and_then_may_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "TOKEN_WITHIN", 0.5)
    async with running(tmp_path / "state") as kit:
        reader, writer = await stranger(kit)
        loop = asyncio.get_running_loop()
        end = loop.time() + 1.2
        while loop.time() < end:
            writer.write(f"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1:{kit.commander.port}\r\n\r\n".encode())
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.1)
        writer.close()


async def test_strangers_are_few_and_the_oldest_goes_first(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "STRANGERS", 20)
    agent = await kit.agent()
    await agent.acquire("run-1")
    feed = await kit.feed()
    crowd = [await stranger(kit) for _ in range(100)]
    ended = [asyncio.create_task(cut_off(reader)) for reader, _ in crowd]
    await until(lambda: sum(task.done() for task in ended) >= 80)
    assert all(task.done() for task in ended[:80])
    assert not any(task.done() for task in ended[80:])
    assert (await kit.get("/api/runs"))[0] == 200
    assert (await agent.renew())["type"] == "renewed"
    late = await kit.agent("late")
    await feed.until(lambda m: m["type"] == "worker" and m["worker"]["worker"] == "late")
    await late.close()
    for _, writer in crowd:
        writer.close()
    await asyncio.gather(*ended)


# -- what is logged ----------------------------------------------------------------------------------------------


def record(words: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("relaytui.commander.test", logging.ERROR, "x.py", 1, words, args, None)


def test_the_same_words_are_said_a_few_times_and_then_counted() -> None:
    now = 0.0
    seldom = logs.Seldom(lambda: now)
    assert [seldom.take(record("run %s failed", n)) for n in range(100)] == [0] * 5 + [None] * 95
    assert seldom.take(record("something else")) == 0
    now = 61.0
    assert seldom.take(record("run %s failed", 100)) == 95
    assert seldom.take(record("run %s failed", 101)) == 0


def test_words_that_never_repeat_fill_no_memory() -> None:
    seldom = logs.Seldom(lambda: 0.0)
    said = [seldom.take(record(f"{n} is new")) for n in range(10_000)]
    assert said.count(0) <= logs.KINDS + logs.ALIKE


def test_what_is_logged_reaches_the_handlers_there_are(caplog: pytest.LogCaptureFixture) -> None:
    with logs.aside():
        try:
            raise ValueError("a reason")
        except ValueError:
            logging.getLogger("relaytui.commander.test").exception("it %s", "failed")
    (said,) = caplog.records
    assert said.getMessage() == "it failed"
    assert "a reason" in caplog.text


# -- a process of its own ----------------------------------------------------------------------------------------

SERVE = [sys.executable, "-c", "import sys; from relaytui.cli.main import main; sys.exit(main())"]


@contextlib.asynccontextmanager
async def served(state: Path, runner: str) -> AsyncIterator[tuple[subprocess.Popen[bytes], Kit]]:
    """A commander in a process of its own whose stderr nobody reads."""
    code = RUNNER.replace("# here", runner)
    process = subprocess.Popen([sys.executable, "-c", code, str(state)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = int(await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), DEADLINE))
        async with aiohttp.ClientSession() as session:
            yield process, Kit(Remote(state, port), session)  # type: ignore[arg-type]
    finally:
        process.kill()
        process.communicate()


class Remote:
    """As much of a commander in another process as the kit asks for."""

    def __init__(self, state: Path, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.settings = type("Settings", (), {"state": state, "shared_secret": None})


RUNNER = """
import asyncio, logging, signal, sys
from pathlib import Path
from relaytui.commander.server import Commander
from relaytui.commander.settings import CommanderSettings

log = logging.getLogger("relaytui.commander.test")

async def main():
    commander = Commander(CommanderSettings(state=Path(sys.argv[1]), port=0))
    await commander.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(commander.port, flush=True)
    # here
    await stop.wait()
    await commander.stop()
    print("stopped", flush=True)

asyncio.run(main())
"""


async def test_a_log_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    chatter = "[log.error('trouble %s ' * 50 % ((number,) * 50)) for number in range(5_000)]"
    async with served(tmp_path / "state", chatter) as (process, kit):
        assert (await kit.get("/api/whoami"))[0] == 200
        agent = await kit.agent()
        assert (await agent.acquire("run-1"))["type"] == "granted"
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), DEADLINE) == b"stopped\n"
        await asyncio.wait_for(asyncio.to_thread(process.wait), DEADLINE)


async def test_out_of_descriptors_the_connected_go_on_and_it_is_said_once(tmp_path: Path) -> None:
    async with served(tmp_path / "state", "pass") as (process, kit):
        agent = await kit.agent()
        await agent.acquire("run-1")
        feed = await kit.feed()
        used = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used + 5, hard))
        crowd = [await stranger(kit) for _ in range(60)]
        for number in range(20):
            assert (await agent.renew())["type"] == "renewed"
            await agent.state({"type": "event", "kind": "a.note", "message": str(number)})
            await feed.until(lambda m, number=number: m.get("event", {}).get("message") == str(number))  # type: ignore[misc]
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (hard, hard))
        for _, writer in crowd:
            writer.close()
        assert (await kit.get("/api/runs"))[0] == 200
        process.send_signal(signal.SIGTERM)
        said = (await asyncio.wait_for(asyncio.to_thread(process.communicate), DEADLINE))[1].decode()
        assert "open files" in said
        assert "Traceback" not in said
        assert len(said.splitlines()) < 20, said


async def test_workers_that_hold_nothing_leave_descriptors_for_operators_and_holders(tmp_path: Path) -> None:
    async with served(tmp_path / "state", "pass") as (process, kit):
        holder = await kit.agent("holder")
        await holder.acquire("run-1")
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (96, hard))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            crowd = copy.copy(kit)
            crowd.session = session
            idle = [await crowd.agent(f"idle-{number}") for number in range(120)]
            assert (await holder.renew())["type"] == "renewed", "the oldest of all, but it holds a run"
            assert (await idle[-1].acquire("run-2"))["type"] == "granted"
            await holder.close()
            idle += [await crowd.agent(f"late-{number}") for number in range(3)]
            back = await crowd.agent("holder", holder.incarnation)
            back.run_id, back.epoch, back.token = holder.run_id, holder.epoch, holder.token
            assert (await back.renew())["type"] == "renewed"
        async with aiohttp.ClientSession() as session:
            crowd.session = session
            assert (await crowd.get("/api/runs"))[0] == 200
        process.send_signal(signal.SIGTERM)
        said = (await asyncio.wait_for(asyncio.to_thread(process.communicate), DEADLINE))[1].decode()
        assert "hold no run" in said
        assert "Traceback" not in said


async def test_that_nothing_can_be_accepted_is_said_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    class Loop:
        now = 100.0

        def time(self) -> float:
            return self.now

    loop = Loop()
    trouble = door_module.LoopTrouble()
    for _ in range(4):
        for _ in range(5):  # asyncio tries for each that waits
            trouble(loop, {"message": "socket.accept() out of system resource", "exception": OSError("24")})  # type: ignore[arg-type]
        loop.now += 0.5
    assert len(caplog.messages) == 2


def test_serve_asks_for_as_many_descriptors_as_it_may_have(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*SERVE, "--state", str(tmp_path / "state"), "serve", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 512)),
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (512, 512)
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE)
