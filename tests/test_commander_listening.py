"""A port that is taken: who has it, where that says so, and what to do next."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commander_kit import Kit

from relaytui.commander import listening
from relaytui.commander.listening import listen
from relaytui.commander.server import Commander
from relaytui.commander.settings import CommanderSettings
from relaytui.wire.errors import Exit, RelayError

ANOTHER = "name another with --port (0 takes a free one)"


def taken(host: str, port: int, key: bytes | None = None) -> RelayError:
    with pytest.raises(RelayError) as caught:
        listen(host, port, "RELAY_HOST", key)
    assert caught.value.exit_code == Exit.UNAVAILABLE
    assert "\n" not in str(caught.value)
    return caught.value


async def test_it_is_said_that_another_folder_s_commander_has_it(kit: Kit, tmp_path: Path) -> None:
    port = kit.commander.port
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    (other / "key").write_bytes(b"o" * 32)
    with pytest.raises(RelayError) as caught:
        await Commander(CommanderSettings(state=other, port=port)).start()
    assert caught.value.message == f"port {port} on 127.0.0.1 is taken by a Relay commander of another state folder"
    assert caught.value.hint == f"{ANOTHER}, or that commander's folder with --state"
    for host, key in (("localhost", None), ("0.0.0.0", b"o" * 32)):
        error = await asyncio.to_thread(taken, host, port, key)
        assert error.message.endswith(" is taken by a Relay commander of another state folder")


async def test_or_this_folder_s(kit: Kit) -> None:
    error = await asyncio.to_thread(taken, "127.0.0.1", kit.commander.port, b"k" * 32)
    assert error.message == f"port {kit.commander.port} on 127.0.0.1 is taken by the commander of this state folder"
    assert error.hint == "`relay-tui` attaches to it, `relay-tui stop` stops it"


@contextmanager
def stranger(answer: bytes | None) -> Iterator[int]:
    """A port whose owner answers so and hangs up; None: it says nothing, and keeps the line."""
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()

        def serve() -> None:
            connection, _ = owner.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer or b"")

        thread = threading.Thread(target=serve, daemon=True)
        if answer is not None:
            thread.start()
        yield owner.getsockname()[1]
        if answer is not None:
            thread.join(10)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n<html>relay</html>",
        b'HTTP/1.1 200 OK\r\n\r\n{"name": "\xff"}',
        b'HTTP/1.1 200 OK\r\n\r\n["relay"]',
        b'HTTP/1.1 200 OK\r\n\r\n{"name": "other"}',
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
    ],
)
def test_of_anybody_else_nothing_is_said(monkeypatch: pytest.MonkeyPatch, answer: bytes | None) -> None:
    monkeypatch.setattr(listening, "ASK_WITHIN", 5.0 if answer is not None else 0.05)
    with stranger(answer) as port:
        error = taken("127.0.0.1", port, b"k" * 32)
        assert (error.message, error.hint) == (f"port {port} on 127.0.0.1 is taken", ANOTHER)


def test_who_calls_itself_a_commander_and_proves_nothing_is_not_this_folder_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "ASK_WITHIN", 5.0)
    for proof in ('{"operator": "00"}', '{"operator": 1}', "[]", "1"):
        with stranger(f'HTTP/1.1 200 OK\r\n\r\n{{"name": "relay", "proof": {proof}}}'.encode()) as port:
            assert taken("127.0.0.1", port, b"k" * 32).message.endswith("of another state folder")
