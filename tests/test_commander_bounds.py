"""Every field a pod can fill, with values at and beyond its range: a refusal or something that can be shown."""

# ruff: noqa: E501 - a table of bad input is read by its rows
from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, get_args

import aiohttp
import msgspec
import orjson
import pytest
from commander_kit import DEADLINE, MANIFEST, Agent, Kit, running

from relaytui.client import answers
from relaytui.commander.http.frames import read_frame
from relaytui.wire import messages, reports
from relaytui.wire.codec import decode
from relaytui.wire.errors import RelayError
from relaytui.wire.feed import ServerFeed

RAW_INFINITY = "@1e999@"
EXTREMES: list[Any] = [
    None, True, False, -1, 0, 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**31) - 1, -(2**63), 10**400,
    0.5, -0.0, 5e-324, 1e308, -1e308, 1e12, 253_000_000_000, RAW_INFINITY, "nan", "inf", "NaN", "", "x", "lost", "..", "a/b",
    "x" * 1_024, "x" * 20_000, "\U0010ffff" * 1_024, "\x1b]0;t\x07\x00\u202e\n", "\u0301" * 900, "\u20dd" * 900, [], {}, [[]],
    ["x" * 16_384] * 60, ["x"] * 1_001, ["\U0001f600" * 4_000] * 16, {"": ""}, {"k": None}, {"k": []}, {"k": 10**400},
    {"k": "v" * 5_000}, {f"k{n:02}" + "x" * 120: "v" * 1_024 for n in range(64)}, {str(n): "v" for n in range(65)},
    {str(n): 1.0 for n in range(257)}, {"loss": 1e308, "lr": "nan", "reward": -1e308}, {"\x1b[31m": "x"}, {"gpus": 10**400},
]  # fmt: skip

FILLED: dict[type, dict[str, Any]] = {
    reports.Step: {"step": 1, "total": 2, "metrics": {"loss": 1.0}, "rate": 1.0},
    reports.Log: {"n": 1, "lines": ["x"]},
    reports.Gap: {"n": 1, "count": 1},
    reports.Transfer: {
        "kind": "hub",
        "step": 1,
        "checkpoint": "step_1",
        "phase": "uploading",
        "done": 1,
        "total": 2,
        "rate": 1.0,
        "attempt": 1,
        "error": "x",
        "synced": 0,
    },
    reports.Started: {"step": 0, "checkpoint": "step_1", "pid": 1},
    reports.Published: {"name": "step_1", "step": 1, "bytes": 1, "files": 1, "manifest": MANIFEST},
    reports.Pruned: {"name": "step_1"},
    reports.Listed: {
        "line": [
            {"name": "step_1", "step": 1, "epoch": 1, "bytes": 1, "files": 1, "manifest": MANIFEST, "at": 1.0},
        ],
        "beside": [],
    },
    reports.Event: {"kind": "a.b", "message": "m", "data": {"k": "v"}},
    reports.Ended: {"outcome": "preempted", "exit_code": 1, "step": 1, "message": "m", "ending": "crash"},
}
TELEMETRY = get_args(reports.TelemetryReport)


def tag(kind: type) -> str:
    return str(kind.__struct_config__.tag)  # type: ignore[attr-defined]


def variants(kind: type, filled: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each of the type's fields in turn with each extreme value."""
    for field in msgspec.structs.fields(kind):
        assert field.name in filled, f"{kind.__name__}.{field.name} is new: give it a value here"
        for value in EXTREMES:
            yield f"{kind.__name__}.{field.name} = {str(value)[:60]}", filled | {field.name: value}


def text(message: dict[str, Any]) -> str:
    """JSON, whose numbers may be larger than orjson writes."""
    return msgspec.json.encode(message, enc_hook=str).decode().replace(f'"{RAW_INFINITY}"', "1e999")


@pytest.fixture
async def kit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Kit]:
    async with running(tmp_path / "state") as kit:
        yield kit
        await still_whole(kit)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def still_whole(kit: Kit) -> None:
    """What a dashboard asks for can be had, and can be understood."""
    feed = await kit.session.ws_connect(kit.commander.url + "/ws/feed", headers=kit.headers("operator"))
    snapshot = await feed.receive(timeout=DEADLINE)
    decode(snapshot.data, ServerFeed)  # type: ignore[arg-type]
    await feed.close()
    pages: dict[str, Any] = {
        "/api/runs": answers.Runs, "/api/workers": answers.Workers, "/api/events?limit=1000": answers.Events
    }  # fmt: skip
    for run_id in list(kit.commander.core.board.runs)[::25]:
        pages |= {f"/api/runs/{run_id}": answers.RunDetail, f"/api/runs/{run_id}/log": answers.Log}
        pages[f"/api/runs/{run_id}/series"] = answers.Series
    for path, kind in pages.items():
        async with kit.session.get(kit.commander.url + path, headers=kit.headers("operator")) as answer:
            assert answer.status == 200, path
            decode(await answer.read(), kind)


async def outcome(ws: aiohttp.ClientWebSocketResponse) -> str:
    """What came of it: an answer's type, the code of a problem, or how the socket was closed."""
    while True:
        message = await ws.receive(timeout=DEADLINE)
        if message.type is not aiohttp.WSMsgType.TEXT:
            return f"closed {ws.close_code}"
        body = orjson.loads(message.data)
        if body["type"] == "problem":
            return f"problem {body['code']}"
        if body["type"] not in ("welcome", "order"):
            return str(body["type"])


class Sent:
    """Which frames go the whole way: all that can be read, and one of those that are refused for a field in one way. Of
    the others the commander's own reader says that they are refused, and a connection ends with what that says."""

    def __init__(self) -> None:
        self._refused: set[tuple[str, str]] = set()

    def goes(self, name: str, frame: str) -> bool:
        try:
            read_frame(frame.encode())
        except RelayError as error:
            code = error.code
        else:
            return True
        assert f"problem {code}" in REFUSED, name
        way = (name.partition(" = ")[0], code)
        first = way not in self._refused
        self._refused.add(way)
        return first


REFUSED = {"problem bad_field", "problem bad_json", "problem bad_message", "problem protocol", "closed 1009"}


@pytest.mark.parametrize("kind", get_args(reports.AnyReport), ids=tag)
async def test_no_value_in_a_report_is_more_than_a_refusal(kit: Kit, kind: type) -> None:
    stream = "telemetry" if kind in TELEMETRY else "state"
    agent: Agent | None = None
    sent = Sent()
    for number, (name, report) in enumerate(variants(kind, {"t": 1.0} | FILLED[kind])):
        if agent is None or kind is reports.Ended:
            agent = agent or await kit.agent()
            assert (await agent.acquire(f"run-{number}"))["type"] == "granted", name
        frame = {
            "type": "reports", "stream": stream, "first_seq": agent.seq[stream] + 1, "run_id": agent.run_id,
            "epoch": agent.epoch, "token": agent.token, "reports": [{"type": tag(kind)} | report],
        }  # fmt: skip
        if not sent.goes(name, text(frame)):
            continue
        await agent.ws.send_str(text(frame))
        said = await outcome(agent.ws)
        if said == "ack":
            agent.seq[stream] += 1
        else:
            assert said in REFUSED, name
            await agent.close()
            agent = None
    if agent is not None:
        assert (await agent.acquire("last"))["type"] == "granted"


FIELDS: dict[str, Any] = {
    "protocol": 1, "worker": "w", "incarnation": "i", "version": "v", "host": "h", "labels": {"a": "b"},
    "capability": {"gpu": "g", "gpus": 1, "cpus": 1, "memory": 1}, "request": 1, "request_id": "q", "run_id": "run-1",
    "mode": "sft", "highest_epoch": 0, "config_hash": "c", "epoch": 1, "token": "x" * 64, "stream": "telemetry",
    "first_seq": 1, "last_seq": 2, "why": "w", "reports": [{"type": "gap", "t": 1, "n": 1, "count": 1}], "order_id": 1,
    "accepted": False, "message": "m", "now": 1.0,
}  # fmt: skip
"""What each field of an agent's messages is filled with while another has its extremes."""
PLACES = {"capability": messages.Capability}
"""Fields that are objects with fields of their own."""
ANSWERS = {"refused", "granted", "denied", "renewed", "ack"}


def filled(kind: type, **known: Any) -> dict[str, Any]:
    names = [field.name for field in msgspec.structs.fields(kind)]
    assert set(names) <= set(FIELDS), f"{kind.__name__} has a new field: give it a value here"
    return {name: known.get(name, FIELDS[name]) for name in names}


@pytest.mark.parametrize("kind", get_args(messages.AgentMessage), ids=tag)
async def test_no_value_in_a_message_is_more_than_a_refusal(kit: Kit, kind: type) -> None:
    hello, renewal = filled(messages.Hello), filled(messages.Renew)
    holder = await kit.agent("w", "i")
    await holder.acquire("run-1")
    await holder.close()
    message = filled(kind, epoch=holder.epoch, token=holder.token)
    cases = list(variants(kind, message))
    if "stream" in message:
        cases += [(f"state: {name}", changed | {"stream": "state"}) for name, changed in cases]
    for field, inner in PLACES.items():
        if field in message:
            cases += [(name, message | {field: value}) for name, value in variants(inner, message[field])]
    sent = Sent()
    for name, message in cases:
        if not sent.goes(name, text({"type": tag(kind)} | message)):
            continue
        ws = await kit.session.ws_connect(kit.commander.url + "/ws/agent", headers=kit.headers("worker"))
        if kind is not messages.Hello:
            await ws.send_str(text({"type": "hello"} | hello))
        await ws.send_str(text({"type": tag(kind)} | message))
        # Not every message has an answer: a renewal of nobody's lease has, and comes after it.
        await ws.send_str(text({"type": "renew"} | renewal))
        said = await outcome(ws)
        assert said in REFUSED | ANSWERS, f"{name}: {said}"
        await ws.close()
