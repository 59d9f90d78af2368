"""Who may ask: tokens, roles, Host, Origin, and the commander's own proof of who it is."""

# ruff: noqa: E501 - a table of bad input is read by its rows
from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from commander_kit import Kit, running

from relaytui.commander.listening import listen
from relaytui.commander.settings import CommanderSettings
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.proof import derived_token, proof_key, proven

OPERATOR_ONLY = [
    "/api/runs",
    "/api/runs/run-1",
    "/api/runs/run-1/log",
    "/api/runs/run-1/series",
    "/api/workers",
    "/api/events",
]
SOCKETS = ["/ws/agent", "/ws/feed"]


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    async with running(tmp_path / "state", public_hosts=("relay.example:443", "relay.example")) as kit:
        yield kit


async def raw(kit: Kit, request: bytes) -> bytes:
    """The answer to bytes as they are."""
    reader, writer = await asyncio.open_connection("127.0.0.1", kit.commander.port)
    writer.write(request)
    await writer.drain()
    answer = await asyncio.wait_for(reader.read(65_536), 5)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return answer


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_every_route_but_health_needs_a_token(kit: Kit) -> None:
    assert (await kit.get("/api/health", role=None))[0] == 200
    for path in (*OPERATOR_ONLY, "/api/whoami", *SOCKETS, "/nowhere"):
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Basic {kit.operator}"},
            {"Authorization": kit.operator},
            {"Authorization": "Bearer "},
            {"X-Relay-Secret": ""},
            {"X-Relay-Secret": kit.operator + "0"},
        ):
            status, body = await kit.get(path, role=None, headers=headers)
            assert (status, body["error"]["code"]) == (401, "unauthorized"), (path, headers)
    for path in ("/api/runs/run-1/force-acquire", "/api/runs/run-1/drain", "/api/lease/acquire"):
        assert (await kit.post(path, {}, role=None))[0] == 401


async def test_a_token_never_counts_from_a_url(kit: Kit) -> None:
    for query in ("token", "access_token", "secret"):
        assert (await kit.get(f"/api/runs?{query}={kit.operator}", role=None))[0] == 401


async def test_a_worker_may_work_and_nothing_else(kit: Kit) -> None:
    assert (await kit.get("/api/whoami", role="worker"))[1]["role"] == "worker"
    assert (await kit.get("/api/whoami", role="operator"))[1]["role"] == "operator"
    for path in (*OPERATOR_ONLY, "/ws/feed"):
        status, body = await kit.get(path, role="worker")
        assert (status, body["error"]["code"]) == (403, "forbidden"), path
    for path in ("force-acquire", "drain"):
        assert (await kit.post(f"/api/runs/run-1/{path}", {"expected_epoch": 0}, role="worker"))[0] == 403


async def test_a_worker_may_hear_how_a_run_stands_that_it_names(kit: Kit) -> None:
    assert "run" not in (await kit.get("/api/whoami", role="worker"))[1]
    assert (await kit.get("/api/whoami?run=run-1", role="worker"))[1]["run"] is None
    await (await kit.agent("px1")).acquire("run-1")
    standing = {"status": "leased", "mode": "sft", "holder": "px1", "epoch": 1}
    assert (await kit.get("/api/whoami?run=run-1", role="worker"))[1]["run"] == standing, "and nothing else of it"
    assert (await kit.get("/api/whoami?run=../x", role="worker"))[0] == 422
    assert (await kit.get("/api/whoami?run=run-1", role=None))[0] == 401


async def test_both_headers_are_a_token_and_two_tokens_are_none(kit: Kit) -> None:
    assert (await kit.get("/api/runs", role=None, headers={"X-Relay-Secret": kit.operator}))[0] == 200
    both = {"Authorization": f"Bearer {kit.operator}", "X-Relay-Secret": kit.operator}
    assert (await kit.get("/api/runs", role=None, headers=both))[0] == 401
    host = f"127.0.0.1:{kit.commander.port}"
    twice = f"GET /api/runs HTTP/1.1\r\nHost: {host}\r\n" + f"Authorization: Bearer {kit.operator}\r\n" * 2
    assert status_of(await raw(kit, f"{twice}Connection: close\r\n\r\n".encode())) in (400, 401)


async def test_strange_tokens_are_refused_not_failed_at(kit: Kit) -> None:
    host = f"127.0.0.1:{kit.commander.port}"
    for token in ("ünïcode", "日本", "x" * 7_000, "\x80\xff"):
        head = f"GET /api/runs HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nX-Relay-Secret: "
        answer = await raw(kit, head.encode() + token.encode("utf-8") + b"\r\n\r\n")
        assert status_of(answer) == 401, token[:10]
        answer = await raw(kit, head.encode() + token.encode("latin-1", "replace") + b"\r\n\r\n")
        assert status_of(answer) == 401, token[:10]
    answer = await raw(kit, head.encode() + b"x" * (1 << 20) + b"\r\n\r\n")
    assert status_of(answer) in (400, 401)


async def test_the_shared_secret_is_a_workers_and_replaces_the_derived_token(tmp_path: Path) -> None:
    async with running(tmp_path / "state", shared_secret="hunter2-hunter2") as kit:
        assert (await kit.get("/api/whoami", role=None, headers={"X-Relay-Secret": "hunter2-hunter2"}))[1][
            "role"
        ] == "worker"
        derived = derived_token(kit.key, "worker")
        assert (await kit.get("/api/whoami", role=None, headers={"X-Relay-Secret": derived}))[0] == 401


@pytest.mark.parametrize(
    "host",
    ["evil.test", "127.0.0.1", "127.evil.test:{port}", "localhost:1", "localhost.:{port}", "127.0.0.1:{port}.evil.test", "",
     "user@127.0.0.1:{port}", "relay.example:444", "xrelay.example"],
)  # fmt: skip
async def test_other_hosts_are_not_served(kit: Kit, host: str) -> None:
    named = host.format(port=kit.commander.port)
    for path in ("/api/health", "/api/runs"):
        request = f"GET {path} HTTP/1.1\r\nHost: {named}\r\nX-Relay-Secret: {kit.operator}\r\nConnection: close\r\n\r\n"
        assert status_of(await raw(kit, request.encode())) in (400, 421)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{port}", "LocalHost:{port}", "[::1]:{port}", "relay.example", "relay.example:443"]
)
async def test_its_own_hosts_are_served(kit: Kit, host: str) -> None:
    named = host.format(port=kit.commander.port)
    request = f"GET /api/runs HTTP/1.1\r\nHost: {named}\r\nX-Relay-Secret: {kit.operator}\r\nConnection: close\r\n\r\n"
    assert status_of(await raw(kit, request.encode())) == 200


async def test_pages_of_other_origins_may_not_ask(kit: Kit) -> None:
    port = kit.commander.port
    for origin in (
        "null",
        "http://evil.test",
        f"http://127.evil.test:{port}",
        f"http://127.0.0.1:{port}.evil.test",
        "http://127.0.0.1",
    ):
        for path in ("/api/runs", "/ws/feed", "/api/health"):
            status, body = await kit.get(path, headers={"Origin": origin})
            assert (status, body["error"]["code"]) == (403, "wrong_origin")
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await kit.session.ws_connect(
                kit.commander.url + "/ws/feed", headers=kit.headers("operator") | {"Origin": origin}
            )
    assert (await kit.get("/api/runs", headers={"Origin": f"http://127.0.0.1:{port}"}))[0] == 200


async def test_the_commander_proves_who_it_is(kit: Kit) -> None:
    assert "proof" not in (await kit.get("/api/health", role=None))[1]
    nonce = "0123456789abcdef" * 4
    proof = (await kit.get("/api/health", role=None, headers={"X-Relay-Challenge": nonce}))[1]["proof"]
    host = f"127.0.0.1:{kit.commander.port}"
    assert proven(proof_key(kit.operator), nonce, host, proof["operator"])
    assert proven(proof_key(kit.worker), nonce, host, proof["worker"])
    assert not proven(proof_key(kit.operator), nonce, f"localhost:{kit.commander.port}", proof["operator"])
    assert not proven(proof_key(kit.operator), "f" * 64, host, proof["operator"])
    for bad in ("", "xyz", "F" * 64, "a" * 65, "a" * 31):
        assert (await kit.get("/api/health", role=None, headers={"X-Relay-Challenge": bad}))[0] == 422


async def test_health_says_nothing_of_runs(kit: Kit) -> None:
    await (await kit.agent()).acquire("secret-project")
    assert set((await kit.get("/api/health", role=None))[1]) == {"ok", "name", "version"}


async def test_who_acted_is_in_the_history(kit: Kit) -> None:
    await (await kit.agent()).acquire("run-1")
    await kit.post("/api/runs/run-1/drain", {"expected_epoch": 1}, headers={"X-Relay-Actor": "ann\u202e@laptop"})
    assert (await kit.events("run-1"))[-1]["actor"] == "ann@laptop"


async def test_no_token_reaches_the_databases(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.tell({"type": "log", "n": 1, "lines": ["hello"]})
    await agent.renew()
    await kit.commander.stop()
    stored = b"".join(path.read_bytes() for path in kit.commander.settings.state.glob("*.db*"))
    assert b"hello" in stored
    for secret in (agent.token, kit.operator, kit.worker):
        assert secret.encode() not in stored
        assert bytes.fromhex(secret) not in stored


def test_an_open_address_needs_a_secret_and_a_word_on_tls(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "relay.example"):
        with pytest.raises(RelayError, match="RELAY_SHARED_SECRET") as caught:
            CommanderSettings(state=tmp_path, host=host).check_exposure()
        assert caught.value.exit_code == Exit.USAGE
        with pytest.raises(RelayError, match="RELAY_TLS_PROXY"):
            CommanderSettings(state=tmp_path, host=host, shared_secret="s" * 20).check_exposure()
        CommanderSettings(state=tmp_path, host=host, shared_secret="s" * 20, tls_proxy=True).check_exposure()
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        CommanderSettings(state=tmp_path, host=host).check_exposure()


def test_what_is_wrong_with_an_address_is_said_of_what_named_it(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "http://x", "no such host"):
        for given, option, named in (({"RELAY_HOST": host}, None, "RELAY_HOST"), ({}, host, "--host")):
            with pytest.raises(RelayError) as caught:
                CommanderSettings.from_env(given, state=tmp_path, host=option).check_exposure()
            assert caught.value.message.startswith(f"{named}: ")
            assert ("RELAY_HOST" in str(caught.value)) == (named == "RELAY_HOST")
    with pytest.raises(RelayError) as caught:
        listen("192.0.2.1", 0, "--host")  # an address of nobody's
    assert "see --host and the port" in caught.value.hint


async def test_it_listens_on_loopback_alone(kit: Kit) -> None:
    name = socket.gethostbyname(socket.gethostname())
    if name.startswith("127."):
        pytest.skip("this machine has no address of its own")
    with pytest.raises(OSError):
        await asyncio.open_connection(name, kit.commander.port)
