"""What should not be sent: each gets one clear answer, a 4xx or a `problem`, and harms nobody else."""

# ruff: noqa: E501 - a table of bad input is read by its rows
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from commander_kit import DEADLINE, Kit, log, running, started, step
from yarl import URL

BAD_IDS = [
    ".",
    "..",
    "%2e%2e",
    "a%2Fb",
    "a%5Cb",
    "%00",
    "a%0Ab",
    "x" * 129,
    "-x",
    "%C3%BC",
    "a%20b",
    "%E2%80%AEa",
    "..;",
]


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    async with running(tmp_path / "state") as kit:
        yield kit
        assert (await kit.get("/api/whoami"))[0] == 200  # it still serves


@pytest.mark.parametrize("run_id", BAD_IDS)
async def test_ids_in_addresses(kit: Kit, run_id: str) -> None:
    for path in (f"/api/runs/{run_id}", f"/api/runs/{run_id}/log", f"/api/runs/{run_id}/series"):
        url = kit.commander.url + path
        async with kit.session.get(URL(url, encoded=True), headers=kit.headers("operator")) as answer:
            body = await answer.json()
            assert answer.status in (404, 422), path
            assert body["error"]["message"]


async def test_queries(kit: Kit) -> None:
    await (await kit.agent()).acquire("run-1")
    for query in (
        "limit=x",
        "limit=-1",
        "limit=1e3",
        "limit=" + "9" * 400,
        "epoch=",
        "before=5",
        "limit=%00",
        "limit=٣",
    ):
        assert (await kit.get(f"/api/runs/run-1/log?{query}"))[0] == 422, query
    for query in ("after=x", "run=../x", "before=" + "9" * 30):
        assert (await kit.get(f"/api/events?{query}"))[0] == 422, query
    assert (await kit.get("/api/runs/run-1/series?metric=" + "m" * 500))[0] == 422
    assert (await kit.get("/api/runs/run-1/log?limit=999999999"))[0] == 200
    assert (await kit.get("/api/runs/run-1/series?metric=%1B%5B2J&points=2"))[1]["points"] == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"not json", 400), (b"{", 400), (b"[" * 100_000, 400), (b'{"a":' * 50_000, 400), (b"\xff\xfe", 400),
        (b"\xef\xbb\xbf{}", 400), (b'{"expected_epoch": NaN}', 400), (b'{"expected_epoch": 1e999}', 400), (b"[]", 422),
        (b"null", 422), (b'"x"', 422), (b"{}", 422), (b'{"expected_epoch": "1"}', 422), (b'{"expected_epoch": 1.5}', 422),
        (b'{"expected_epoch": -1}', 422), (b'{"expected_epoch": 99999999999999999999}', 422),
        (b'{"expected_epoch": true}', 422), (b'{"expected_epoch": 1, "why": 5}', 422),
        (b'{"expected_epoch": 1, "why": "\\ud800"}', 400), (b'{"expected_epoch": 1, "why": "' + b"x" * 2_000 + b'"}', 422),
        (b'{"expected_epoch": 1, "pod_gone": "yes"}', 422), (b'{"expected_epoch": 1, "expected_epoch": 2}', 400),
        (b'{"expected_epoch": 1, "why": {"a": 1, "\\u0061": 2}}', 400),
    ],
)  # fmt: skip
async def test_bodies(kit: Kit, body: bytes, status: int) -> None:
    got, answer = await kit.post("/api/runs/run-1/force-acquire", body)
    assert got == status
    assert set(answer["error"]) == {"code", "message", "hint"}
    assert answer["error"]["message"]


async def test_bodies_too_large_and_packed(kit: Kit) -> None:
    assert (await kit.post("/api/runs/run-1/drain", b" " * (21 << 20)))[0] == 413
    packed = {"Content-Encoding": "gzip"}
    assert (await kit.post("/api/runs/run-1/drain", b"\x1f\x8b", headers=packed))[0] in (400, 415)


async def test_methods_and_paths(kit: Kit) -> None:
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "HEAD"):
        async with kit.session.request(
            method, kit.commander.url + "/api/runs", headers=kit.headers("operator")
        ) as answer:
            assert answer.status == 405, method
    for path in ("/", "/api", "/api/runs/", "/favicon.ico", "/api/../../etc/passwd", "/static/x"):
        assert (await kit.get(path))[0] == 404, path
    for path in ("/ws/agent", "/ws/feed"):
        status, body = await kit.get(path)
        assert (status, body["error"]["code"]) == (426, "no_upgrade")


async def hung_up(ws: aiohttp.ClientWebSocketResponse) -> tuple[str | None, int | None]:
    """(code of the problem said before, close code) of a commander that hangs up."""
    said = None
    while True:
        message = await ws.receive(timeout=DEADLINE)
        if message.type is aiohttp.WSMsgType.TEXT:
            body = orjson.loads(message.data)
            if body["type"] == "problem":
                assert body["message"]
                said = body["code"]
        else:
            return said, ws.close_code


async def connect(kit: Kit, path: str = "/ws/agent") -> aiohttp.ClientWebSocketResponse:
    return await kit.session.ws_connect(kit.commander.url + path, headers=kit.headers("operator"))


HELLO = {"type": "hello", "protocol": 1, "worker": "w", "incarnation": "i"}


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ({"type": "renew", "request": 1, "run_id": "r", "epoch": 1, "token": "x" * 64}, "no_hello"),
        (HELLO | {"protocol": 2}, "protocol"), (HELLO | {"worker": "../x"}, "bad_field"), (HELLO | {"worker": ""}, "bad_field"),
        (HELLO | {"incarnation": "x" * 129}, "bad_field"), ({"type": "hello"}, "bad_field"), ({"type": "hallo"}, "bad_field"),
        ({}, "bad_field"), ([], "bad_field"), ("hello", "bad_field"), (None, "bad_field"),
        (HELLO | {"capability": {"gpus": -1}}, "bad_field"), (HELLO | {"labels": {"a": 5}}, "bad_field"),
        (HELLO | {"version": "x" * 5_000}, "bad_field"),
    ],
)  # fmt: skip
async def test_first_messages(kit: Kit, first: Any, code: str) -> None:
    ws = await connect(kit)
    await ws.send_str(orjson.dumps(first).decode())
    assert await hung_up(ws) == (code, 1008)


LEASE = {"run_id": "run-1", "epoch": 1, "token": "x" * 64}
TELEMETRY = {"type": "reports", "stream": "telemetry", "first_seq": 1} | LEASE


@pytest.mark.parametrize(
    "message",
    [
        HELLO, {"type": "nothing"}, {"type": "acquire"}, {"type": "acquire", "request": 1, "request_id": "q", "run_id": "a/b", "mode": "sft"},
        {"type": "acquire", "request": 1, "request_id": "q", "run_id": "a", "mode": "../x"},
        {"type": "acquire", "request": -1, "request_id": "q", "run_id": "a", "mode": "sft"},
        {"type": "acquire", "request": 1, "request_id": "q", "run_id": "a", "mode": "sft", "highest_epoch": 2**60},
        {"type": "renew", "request": 1, "run_id": "r", "epoch": "1", "token": "x" * 64},
        {"type": "renew", "request": 1, "run_id": "r", "epoch": -1, "token": "x" * 64},
        {"type": "renew", "request": 1, "run_id": "r", "epoch": 1.5, "token": "x" * 64},
        {"type": "renew", "request": 1, "run_id": "r", "epoch": 1, "token": ""},
        {"type": "order_ack", "order_id": "x"},
        TELEMETRY | {"reports": []}, TELEMETRY | {"reports": {}}, TELEMETRY | {"reports": [{}]}, TELEMETRY | {"reports": ["x"]},
        TELEMETRY | {"reports": [{"type": "log", "t": 1, "n": 1, "lines": "abc"}]},
        TELEMETRY | {"reports": [{"type": "log", "t": 1, "n": 1, "lines": ["x" * 20_000]}]},
        TELEMETRY | {"reports": [{"type": "log", "t": 1, "n": 1, "lines": ["x"] * 1_001}]},
        TELEMETRY | {"reports": [{"type": "log", "t": "now", "n": 1, "lines": []}]},
        TELEMETRY | {"reports": [{"type": "step", "t": 1, "step": -1}]}, TELEMETRY | {"reports": [{"type": "step", "t": 1, "step": 2**60}]},
        TELEMETRY | {"reports": [{"type": "step", "t": 1, "step": 1, "metrics": {"a": "NaN"}}]},
        TELEMETRY | {"reports": [{"type": "step", "t": 1, "step": 1, "metrics": {"": 1.0}}]},
        TELEMETRY | {"reports": [{"type": "step", "t": 1, "step": 1, "metrics": {str(n): 1.0 for n in range(300)}}]},
        TELEMETRY | {"reports": [{"type": "log", "t": 1, "n": 1, "lines": []}] * 1_001}, TELEMETRY | {"first_seq": 0, "reports": [{"type": "gap", "t": 1, "n": 1, "count": 1}]},
        TELEMETRY | {"stream": "other", "reports": [{"type": "gap", "t": 1, "n": 1, "count": 1}]},
        TELEMETRY | {"stream": "state", "reports": [{"type": "gap", "t": 1, "n": 1, "count": 1}]},
        TELEMETRY | {"stream": "state", "reports": [{"type": "ended", "t": 1, "outcome": "fine"}]},
        TELEMETRY | {"stream": "state", "reports": [{"type": "published", "t": 1, "name": "a", "step": 1, "bytes": 1, "files": 1, "manifest": "xyz"}]},
        TELEMETRY | {"stream": "state", "reports": [{"type": "event", "t": 1, "kind": "a b", "message": ""}]},
    ],
)  # fmt: skip
async def test_messages(kit: Kit, message: dict[str, Any]) -> None:
    ws = await connect(kit)
    await ws.send_str(orjson.dumps(HELLO).decode())
    await ws.send_str(orjson.dumps(message).decode())
    said, code = await hung_up(ws)
    assert (said in ("bad_field", "bad_message"), code) == (True, 1008), said


async def test_reports_of_the_other_stream_from_a_true_holder(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.send("telemetry", log(1, "fine"), started())
    assert await hung_up(agent.ws) == ("bad_field", 1008)
    assert await kit.lines("run-1") == []


@pytest.mark.parametrize(
    "data",
    ["", "{", "not json", "[" * 100_000, '{"a":' * 20_000, "\u0000", '{"type":"renew"} x', '{"type": NaN}', '{"t":1e999}',
     "\ufeff{}"],
)  # fmt: skip
async def test_frames_that_are_not_json(kit: Kit, data: str) -> None:
    ws = await connect(kit)
    await ws.send_str(orjson.dumps(HELLO).decode())
    await ws.send_str(data)
    said, code = await hung_up(ws)
    assert said in ("bad_json", "bad_field")
    assert code == 1008


async def test_frames_that_are_no_text_or_too_large(kit: Kit) -> None:
    ws = await connect(kit)
    await ws.send_str(orjson.dumps(HELLO).decode())
    await ws.send_bytes(b"{}")
    assert await hung_up(ws) == ("bad_frame", 1008)
    ws = await connect(kit)
    await ws.send_str(orjson.dumps(HELLO).decode())
    await ws.send_str("x" * ((1 << 20) + 1))
    assert (await hung_up(ws))[1] == 1009


async def test_bad_utf8_in_a_text_frame(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    frame = orjson.dumps(
        TELEMETRY | LEASE | {"token": agent.token, "reports": [{"type": "log", "t": 1, "n": 1, "lines": ["QQ"]}]}
    )
    await agent.ws._writer.send_frame(frame.replace(b"QQ", b"\xff\xfe"), aiohttp.WSMsgType.TEXT)
    said, _ = await hung_up(agent.ws)
    assert said in ("bad_json", "bad_field")


async def test_a_peer_that_says_nothing_is_not_waited_for(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaytui.commander.http.ws_agent.HELLO_WITHIN", 0.05)
    assert await hung_up(await connect(kit)) == ("no_hello", 1008)


async def test_one_bad_agent_disturbs_no_other(kit: Kit) -> None:
    good = await kit.agent("good")
    await good.acquire("run-1")
    for _ in range(5):
        ws = await connect(kit)
        await ws.send_str("{")
        await hung_up(ws)
    assert (await good.renew())["type"] == "renewed"
    assert (await good.tell(step(1, loss=1.0)))["type"] == "ack"


@pytest.mark.parametrize(
    "data",
    [
        "", "{", "[]", '{"type":"watch"}', '{"type":"watch","runs":5}', '{"type":"watch","runs":["a"],"backlog":-1}',
        '{"type":"watch","runs":["a","../x"]}', '{"type":"watch","runs":["a\\u0000"]}', '{"type":"watch","runs":["a\\n"]}',
        '{"type":"watch","runs":[""]}', '{"type":"watch","runs":["**"]}',
    ],
)  # fmt: skip
async def test_bad_watches(kit: Kit, data: str) -> None:
    ws = await connect(kit, "/ws/feed")
    await ws.receive()
    await ws.send_str(data)
    assert (await hung_up(ws))[1] == 1008


async def test_a_thousand_idle_sockets_and_it_still_answers(kit: Kit) -> None:
    connections = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", kit.commander.port) for _ in range(300)))
    assert (await kit.get("/api/runs"))[0] == 200
    for _, writer in connections:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for _, writer in connections), return_exceptions=True)
