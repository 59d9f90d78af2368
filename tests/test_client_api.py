"""The client's calls and how it finds a commander."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from aiohttp import ClientTimeout
from scripted_commander import NOW, TOKEN, ScriptedCommander

from relaytui.client import proving
from relaytui.client.api import CommanderClient
from relaytui.client.discover import local_endpoint, remote_endpoint, running_commander, state_folder
from relaytui.client.endpoint import Endpoint, clean_url
from relaytui.commander.services import artifact_readings, uploads
from relaytui.wire.artifacts import ArtifactKind, BeginUpload
from relaytui.wire.codec import encode, parse
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.proof import derived_token
from relaytui.wire.rows import RunRow
from relaytui.wire.state import Address
from relaytui.wire.status import OrderKind, RunStatus

ROW = RunRow(run_id="r1", mode="sft", status=RunStatus.RUNNING, epoch=3, created_at=NOW, updated_at=NOW)


@pytest.fixture
async def commander() -> AsyncIterator[ScriptedCommander]:
    scripted = await ScriptedCommander().start()
    yield scripted
    await scripted.stop()


async def test_rows_come_back_typed(commander: ScriptedCommander) -> None:
    commander.answers["GET", "/api/runs"] = (200, {"now": NOW, "runs": [ROW]})
    async with CommanderClient(commander.endpoint, actor="ada") as client:
        answer = await client.runs()
    assert answer.runs == [ROW]
    assert commander.requests[-1][2]["X-Relay-Actor"] == "ada"


async def test_an_override_carries_the_epoch_and_a_changed_one_comes_back_as_said(commander: ScriptedCommander) -> None:
    commander.answers["POST", "/api/runs/r1/force-acquire"] = (
        409,
        {"error": {"code": "epoch_changed", "message": "r1 is at epoch 4", "hint": "look again"}},
    )
    async with CommanderClient(commander.endpoint) as client:
        with pytest.raises(RelayError) as caught:
            await client.force_acquire("r1", expected_epoch=3, why="stuck", pod_gone=True)
    assert (caught.value.code, caught.value.status) == ("epoch_changed", 409)
    assert parse(commander.requests[-1][3]) == {"expected_epoch": 3, "why": "stuck", "pod_gone": True}


@pytest.mark.parametrize("kind", ["drain", "cancel", "save", "sync"])
async def test_an_order_carries_the_epoch_and_comes_back_with_its_number(
    commander: ScriptedCommander, kind: str
) -> None:
    commander.answers["POST", f"/api/runs/r1/{kind}"] = (200, {"run": ROW, "order_id": 7})
    async with CommanderClient(commander.endpoint) as client:
        answer = await client.order(OrderKind(kind), "r1", expected_epoch=3, why="now")
    assert (answer.run, answer.order_id) == (ROW, 7)
    assert parse(commander.requests[-1][3]) == {"expected_epoch": 3, "why": "now"}


async def test_what_is_done_at_once_has_no_order(commander: ScriptedCommander) -> None:
    commander.answers["POST", "/api/runs/r1/cancel"] = (200, {"run": ROW, "order_id": None})
    async with CommanderClient(commander.endpoint) as client:
        assert (await client.order(OrderKind.CANCEL, "r1", expected_epoch=3)).order_id is None


async def test_a_stranger_gets_no_call(commander: ScriptedCommander) -> None:
    commander.proof_token = "someone else"
    async with CommanderClient(commander.endpoint) as client:
        with pytest.raises(RelayError, match="did not prove") as caught:
            await client.runs()
    assert caught.value.exit_code == Exit.AUTH
    assert [path for _, path, _, _ in commander.requests] == ["/api/health"]


async def test_an_answer_without_end_is_not_read_to_its_end(
    commander: ScriptedCommander, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relaytui.client.api.MAX_ANSWER", 1 << 20)
    commander.answers["GET", "/api/runs"] = (200, {"now": NOW, "runs": [], "more": "x" * (2 << 20)})
    async with CommanderClient(commander.endpoint) as client:
        with pytest.raises(RelayError, match="larger than 1 MiB"):
            await client.runs()
        monkeypatch.setattr("relaytui.client.api.MAX_ANSWER", 4 << 20)
        assert (await client.runs()).runs == []


async def test_a_redirect_is_not_followed_with_a_token(commander: ScriptedCommander) -> None:
    commander.answers["GET", "/api/runs"] = (302, {})
    async with CommanderClient(commander.endpoint) as client:
        with pytest.raises(RelayError, match="answered 302"):
            await client.runs()


async def test_what_a_commander_takes_its_time_for_is_waited_for() -> None:
    """Of an upload of what is there already it reads the bytes again first, and waits for another one's turn: who gave
    up before its answer said that no commander answers."""

    class Nobody:
        timeout = ClientTimeout(total=15)
        waited: ClassVar[list[ClientTimeout]] = []

        def request(self, *_: object, timeout: ClientTimeout, **__: object) -> None:
            self.waited.append(timeout)
            raise ConnectionRefusedError

    client = CommanderClient(Endpoint("http://127.0.0.1:1", TOKEN))
    client._session, client._proven = cast("Any", Nobody()), True
    upload = BeginUpload("run-1", ArtifactKind.FILE, "config", "0" * 64, 1)
    calls = (
        lambda: client.begin_upload(upload),
        lambda: client.upload_offset("0" * 32),
        lambda: client.send_chunk("0" * 32, 0, b"x"),
        lambda: client.finish_upload("0" * 32),
        lambda: client.verify_artifact(1),
    )
    for call in calls:
        client._proven = True
        with pytest.raises(RelayError):
            await call()
    patience = artifact_readings.BEGIN_WITHIN + 2 * uploads.TURN_WITHIN
    assert len(Nobody.waited) == len(calls)
    for waited in Nobody.waited:
        assert waited.total is None
        assert (waited.sock_read or 0) > patience


async def test_nobody_there() -> None:
    async with CommanderClient(Endpoint("http://127.0.0.1:9", TOKEN)) as client:
        with pytest.raises(RelayError, match="no commander answers") as caught:
            await client.runs()
    assert caught.value.exit_code == Exit.UNAVAILABLE


async def test_an_answer_that_is_none_is_an_error_in_words(commander: ScriptedCommander) -> None:
    commander.answers["GET", "/api/runs"] = (200, {"now": NOW, "runs": [{"run_id": "r1", "status": "flying"}]})
    async with CommanderClient(commander.endpoint) as client:
        with pytest.raises(RelayError, match="not understood"):
            await client.runs()


def write_state(folder: Path, url: str) -> None:
    (folder / "key").write_bytes(b"k" * 32)
    (folder / "commander.json").write_bytes(encode(Address(url=url, pid=1, version="0.1.0", started_at=NOW)))


async def test_the_state_folder_leads_to_its_commander(tmp_path: Path) -> None:
    token = derived_token(b"k" * 32, "operator")
    commander = await ScriptedCommander(proof_token=token, token=token).start()
    write_state(tmp_path, f"http://127.0.0.1:{commander.port}")
    found = await running_commander(tmp_path)
    await commander.stop()
    assert found == Endpoint(f"http://127.0.0.1:{commander.port}", token)
    assert token not in repr(found)
    assert await running_commander(tmp_path) is None  # it stopped without taking its address back


async def test_a_stranger_on_the_folders_port_is_said(tmp_path: Path, commander: ScriptedCommander) -> None:
    write_state(tmp_path, f"http://127.0.0.1:{commander.port}")
    with pytest.raises(RelayError, match="did not prove"):
        await running_commander(tmp_path)


async def test_a_stranger_that_takes_the_challenge_and_says_nothing_is_said_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that answers a byte at a time keep anybody waiting."""
    monkeypatch.setattr(proving, "PROOF_SECONDS", 0.4)
    assert proving.PROOF_SECONDS < 5

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()
        left.set()

    left = asyncio.Event()
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        write_state(tmp_path, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with asyncio.timeout(5):
            with pytest.raises(RelayError, match=r"something listens at .* and did not answer within 0\.4 s") as caught:
                await running_commander(tmp_path)
            await left.wait()
    assert caught.value.exit_code == Exit.UNAVAILABLE
    assert caught.value.code not in ("unreachable", "no_commander"), "nobody starts another one there"


def test_a_token_that_no_header_carries_is_refused() -> None:
    for token in ("a b", "a\nb", "\udcff", "caf\xe9"):
        with pytest.raises(RelayError, match="RELAY_TOKEN") as caught:
            Endpoint("http://h:1", token)
        assert caught.value.exit_code == Exit.USAGE


def test_an_empty_or_missing_folder_has_no_commander(tmp_path: Path) -> None:
    assert local_endpoint(tmp_path) is None
    assert local_endpoint(tmp_path / "not there") is None


def test_a_garbled_address_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_state(tmp_path, "http://127.0.0.1:1")
    (tmp_path / "commander.json").write_text("{")
    with pytest.raises(RelayError, match=r"commander\.json") as caught:
        local_endpoint(tmp_path)
    assert caught.value.exit_code == Exit.STATE


def test_where_the_token_of_connect_comes_from(tmp_path: Path) -> None:
    both = {"RELAY_TOKEN": "op", "RELAY_SHARED_SECRET": "sh"}
    assert remote_endpoint("http://h:1", tmp_path, both).token == "op"
    assert remote_endpoint("http://h:1", tmp_path, {"RELAY_SHARED_SECRET": "sh"}).token == "sh"
    with pytest.raises(RelayError, match="no token") as caught:
        remote_endpoint("http://h:1", tmp_path, {})
    assert caught.value.exit_code == Exit.AUTH


def test_state_folder_order(tmp_path: Path) -> None:
    assert state_folder(tmp_path, {"RELAY_COMMANDER_STATE": "/x"}) == tmp_path
    assert state_folder(None, {"RELAY_COMMANDER_STATE": "/x"}) == Path("/x")


@pytest.mark.parametrize(
    ("given", "cleaned"),
    [
        ("http://Pod.Example:8080/", "http://pod.example:8080"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("https://relay.example", "https://relay.example"),
        ("https://relay.example:443", "https://relay.example"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_addresses_as_people_write_them(given: str, cleaned: str) -> None:
    assert clean_url(given) == cleaned


@pytest.mark.parametrize(
    "given",
    [
        "ftp://h", "http://", "http://h:99999", "http://u:p@h", "http://h/path", "http://h?x=1", "http://a b", "",
        "http://[", "http://[zz]:1", "http://a..b", f"http://{'a' * 64}", "http://h:0", "http://h:-1", "http://a\nb",
        "http://caf\xe9", "http://h\udcff", "http://h#x", "None:None",
    ],
)  # fmt: skip
def test_addresses_that_are_none(given: str) -> None:
    with pytest.raises(RelayError) as caught:
        clean_url(given)
    assert caught.value.exit_code == Exit.USAGE
