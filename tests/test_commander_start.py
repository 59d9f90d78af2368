"""Starting and stopping: one owner of a state folder, clear words for what is in the way, a quick and clean end."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import aiohttp
import orjson
import pytest
from commander_kit import DEADLINE, FakeClock, running, until

from relaytui.cli import serve
from relaytui.client.discover import local_endpoint
from relaytui.client.link import LinkState
from relaytui.client.mirror import Mirror
from relaytui.commander import listening
from relaytui.commander.embedded import EmbeddedCommander
from relaytui.commander.server import Commander
from relaytui.commander.settings import CommanderSettings
from relaytui.commander.store.filesystem import file_system
from relaytui.dashboard.session import Opened, Session
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.files import private_folder
from relaytui.wire.ids import shown


def settings(state: Path, **more: object) -> CommanderSettings:
    return CommanderSettings(**({"state": state, "port": 0} | more))  # type: ignore[arg-type]


async def refusal(state: Path, **more: object) -> RelayError:
    with pytest.raises(RelayError) as caught:
        await Commander(settings(state, **more)).start()
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return caught.value


async def test_it_says_where_it_is_and_takes_that_back(tmp_path: Path) -> None:
    state = tmp_path / "deep" / "state"
    async with running(state) as kit:
        address = orjson.loads((state / "commander.json").read_bytes())
        assert address["url"] == kit.commander.url
        assert address["pid"] == os.getpid()
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        for name in ("key", "commander.json", "relay.db", "telemetry.db", "lock"):
            assert stat.S_IMODE((state / name).stat().st_mode) == 0o600, name
    assert not (state / "commander.json").exists()
    key = (state / "key").read_bytes()
    async with running(state):
        assert (state / "key").read_bytes() == key


async def test_a_second_commander_on_the_same_state_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as kit:
        error = await refusal(tmp_path / "state")
        assert error.exit_code == Exit.STATE
        assert kit.commander.url in str(error)
        assert str(os.getpid()) in str(error)
        assert (await kit.get("/api/whoami"))[0] == 200
    async with running(tmp_path / "state"):
        pass


async def test_a_port_in_use_is_named_and_the_state_left_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "ASK_WITHIN", 0.05)  # who has it says nothing
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        error = await refusal(tmp_path / "state", port=port)
        assert error.exit_code == Exit.UNAVAILABLE
        assert str(port) in str(error)
        assert "--port" in str(error)
    async with running(tmp_path / "state"):
        pass


async def test_an_address_of_no_machine_is_named(tmp_path: Path) -> None:
    error = await refusal(tmp_path / "state", host="203.0.113.7", shared_secret="s" * 20, tls_proxy=True)
    assert error.exit_code == Exit.UNAVAILABLE
    assert "203.0.113.7" in str(error)


@pytest.mark.parametrize("name", ["relay.db", "telemetry.db"])
@pytest.mark.parametrize(
    "content",
    [b"this is no database, it is a letter " * 100, b"\x00" * 8_192, b"SQLite format 3\x00" + b"\xff" * 4_096],
)
async def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path, name: str, content: bytes) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / name).write_bytes(content)
    error = await refusal(state)
    assert error.exit_code == Exit.STATE
    assert str(state / name) in str(error)
    assert (state / name).read_bytes() == content


async def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    other = sqlite3.connect(state / "relay.db")
    other.execute("CREATE TABLE cookies (x)")
    other.close()
    assert "another program" in str(await refusal(state))


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running(state):
        pass
    newer = sqlite3.connect(state / "relay.db")
    newer.execute("PRAGMA user_version=99")
    newer.close()
    error = await refusal(state)
    assert "newer" in str(error)
    assert error.hint == "upgrade relay-tui"


async def test_the_originals_state_file_is_not_taken_for_a_folder(tmp_path: Path) -> None:
    state = tmp_path / "commander_state.json"
    state.write_text('{"active_lease": null}')
    error = await refusal(state)
    assert error.exit_code == Exit.STATE
    assert "folder" in str(error)
    assert state.read_text() == '{"active_lease": null}'


async def test_what_is_no_address_is_said_before_who_could_reach_it(tmp_path: Path) -> None:
    error = await refusal(tmp_path / "state", host="nope.invalid")
    assert "nope.invalid is no address of this machine" in str(error)
    with pytest.raises(RelayError, match="is no address of this machine"):
        serve.check(settings(tmp_path / "state", host="nope.invalid"))


async def test_a_folder_of_somebody_elses_is_not_closed_to_them(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (home / "letter.txt").write_text("dear")
    assert "other files" in str(await refusal(home))
    assert stat.S_IMODE(home.stat().st_mode) == 0o755
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o755)
    async with running(empty):
        assert stat.S_IMODE(empty.stat().st_mode) == 0o700


async def test_an_open_folder_of_relays_own_names_is_closed_and_taken(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "log").mkdir(parents=True)
    (state / "log" / "dashboard.log").write_text("")
    for name in ("lock", "commander.json.gone", "telemetry.db-wal.damaged-20260101T000000Z", "serve.log"):
        (state / name).touch()
    state.chmod(0o755)
    (state / "commander.json.gone").rename(state / "letter.txt")
    assert "other files" in str(await refusal(state))
    assert stat.S_IMODE(state.stat().st_mode) == 0o755
    (state / "letter.txt").unlink()
    async with running(state):
        assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_whoever_makes_a_private_folder_makes_all_of_its_way_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        private_folder(tmp_path / "state" / "log")
        private_folder(tmp_path / "state" / "log")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("state", "state/log")] == [0o700, 0o700]


async def test_a_damaged_key_is_no_key(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running(state):
        pass
    (state / "key").write_bytes(b"short")
    assert "not a Relay key" in str(await refusal(state))


def test_network_file_systems_are_seen(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda / ext4 rw 0 0\nnas:/x /mnt/my\\040nas nfs4 rw 0 0\nbucket /mnt/my\\040nas/b fuse.s3fs rw 0 0\n"
        "tmpfs /mnt/my\\040nas/local tmpfs rw 0 0\n"
    )
    for path, kind in (
        ("/etc/x", "ext4"), ("/mnt/my nas/state", "nfs4"), ("/mnt/my nas/b/state", "fuse.s3fs"),
        ("/mnt/my nas/local/state", "tmpfs"), ("/mnt/my nasty/state", "ext4"),
    ):  # fmt: skip
        assert file_system(Path(path), mounts) == kind


async def test_stop_with_open_sockets_is_quick_and_says_goodbye(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as kit:
        agents = [await kit.agent(f"pod-{n}") for n in range(20)]
        feeds = [await kit.feed() for _ in range(5)]
        for agent in agents:
            await agent.acquire(f"run-{agent.worker}")
        idle = await asyncio.open_connection("127.0.0.1", kit.commander.port)
        stuck = await kit.feed()
        stuck.ws._response.connection.transport.pause_reading()  # type: ignore[union-attr]
        loop = asyncio.get_running_loop()
        start = loop.time()
        await kit.commander.stop()
        assert loop.time() - start < 2
        for ws in [agent.ws for agent in agents] + [feed.ws for feed in feeds]:
            while (message := await ws.receive(timeout=DEADLINE)).type is aiohttp.WSMsgType.TEXT:
                pass
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1001)
        idle[1].close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", kit.commander.port)
        await kit.commander.stop()  # once more is harmless


async def test_a_failed_start_leaves_no_thread_and_no_file_open(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "telemetry.db").write_bytes(b"no database " * 1_000)
    before = {thread.name for thread in threading.enumerate()}
    await refusal(state)
    assert not {t.name for t in threading.enumerate() if t.name.startswith("relay-")} - before
    (state / "telemetry.db").unlink()
    async with running(state):
        pass


def test_embedded_in_a_thread_of_its_own(tmp_path: Path) -> None:
    embedded = EmbeddedCommander(settings(tmp_path / "state"))
    url = embedded.start()

    async def ask() -> None:
        async with aiohttp.ClientSession() as session, session.get(url + "/api/health") as answer:
            assert (await answer.json())["ok"] is True

    asyncio.run(ask())
    second = EmbeddedCommander(settings(tmp_path / "state"))
    with pytest.raises(RelayError, match="belongs to a commander"):
        second.start()
    second.stop()
    embedded.stop()
    embedded.stop()
    assert not (tmp_path / "state" / "commander.json").exists()


async def test_a_dashboard_whose_own_commander_lost_its_state_ends_with_the_reason(tmp_path: Path) -> None:
    embedded = EmbeddedCommander(settings(tmp_path / "state"))
    await asyncio.to_thread(embedded.start)
    endpoint = local_endpoint(tmp_path / "state")
    assert endpoint is not None
    opened = Opened(endpoint, embedded=True, trouble=lambda: embedded.trouble)
    mirror = Mirror()

    def seen() -> None:
        if mirror.link.state is LinkState.LIVE:
            (tmp_path / "state" / "relay.db").unlink(missing_ok=True)

    session = Session(lambda: opened, mirror, seen)
    with pytest.raises(RelayError, match="deleted under the running commander"):
        await asyncio.wait_for(session.run(), 10)
    await asyncio.to_thread(embedded.stop)


# -- settings ----------------------------------------------------------------------------------------------------


def test_settings_come_from_the_environment_with_arguments_above(tmp_path: Path) -> None:
    environ = {
        "RELAY_COMMANDER_STATE": str(tmp_path / "a"), "RELAY_LEASE_SECONDS": "45.5",
        "RELAY_SHARED_SECRET": " s3cret \n",
        "RELAY_L1_ROOT": "/data", "RELAY_CKPT_INTERVAL": "60", "RELAY_CKPT_KEEP_LAST_N": "5", "RELAY_HF_REPO": "me/m",
        "RELAY_HF_SYNC_INTERVAL": "30", "RELAY_HF_PUSH_ON_IMPROVE": "True", "PORT": "9000",
        "RELAY_PUBLIC_HOSTS": "Relay.example, [::2]:443,", "RELAY_HOST": "",
    }  # fmt: skip
    found = CommanderSettings.from_env(environ)
    assert found == CommanderSettings(
        state=tmp_path / "a", lease_seconds=45.5, shared_secret="s3cret", l1_root="/data", ckpt_interval=60,
        ckpt_keep_last_n=5, hf_repo="me/m", hf_sync_interval=30, hf_push_on_improve=True, port=9000,
        public_hosts=("relay.example", "[::2]:443"),
    )  # fmt: skip
    above = CommanderSettings.from_env(environ, state=tmp_path / "b", port=0, host="::1", lease_seconds=7)
    assert (above.state, above.port, above.host, above.lease_seconds) == (tmp_path / "b", 0, "::1", 7)
    assert "s3cret" not in repr(found)
    empty = CommanderSettings.from_env({"RELAY_COMMANDER_STATE": "", "RELAY_SHARED_SECRET": ""})
    assert empty.shared_secret is None
    assert empty.state.name == "relay-tui"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "eighty"), ("PORT", "99999"), ("PORT", "-1"), ("PORT", "8_080"), ("PORT", "08080"),
        ("PORT", "٨٠٨٠"), ("RELAY_LEASE_SECONDS", "3_0"), ("RELAY_LEASE_SECONDS", "٣٠"),
        ("RELAY_LEASE_SECONDS", "0300"), ("RELAY_ARTIFACT_QUOTA", "0100"), ("RELAY_ARTIFACT_QUOTA", "1_0G"),
        ("RELAY_LEASE_SECONDS", "10m"),
        ("RELAY_LEASE_SECONDS", "0"), ("RELAY_LEASE_SECONDS", "nan"), ("RELAY_LEASE_SECONDS", "inf"),
        ("RELAY_CKPT_INTERVAL", "1.5"), ("RELAY_CKPT_KEEP_LAST_N", "-1"), ("RELAY_HF_PUSH_ON_IMPROVE", "maybe"),
        ("RELAY_SHARED_SECRET", "zwei Wörter"), ("RELAY_SHARED_SECRET", "a\x1bb"), ("RELAY_PUBLIC_HOSTS", "http://x"),
    ],
)  # fmt: skip
def test_ill_typed_settings_name_their_variable(name: str, value: str) -> None:
    with pytest.raises(RelayError, match=name) as caught:
        CommanderSettings.from_env({name: value})
    assert caught.value.exit_code == Exit.USAGE
    assert name != "RELAY_SHARED_SECRET" or value not in str(caught.value)


def test_settings_load_nothing_heavy() -> None:
    code = (
        "import sys, relaytui.commander.settings, relaytui.commander.embedded\n"
        "print([name for name in ('aiohttp', 'aiosqlite', 'textual') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


async def test_forgotten_workers_go_and_holders_stay(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        gone, holder = await kit.agent("gone"), await kit.agent("holder")
        await holder.acquire("run-1")
        await gone.close()
        await holder.close()
        await until(lambda: all(not view.connected for view in kit.commander.core.board.workers.values()))
        feed = await kit.feed()
        clock.step_wall(3_590)
        await kit.commander.core.workers.tidy()
        assert len((await kit.get("/api/workers"))[1]["workers"]) == 2
        clock.step_wall(20)
        await kit.commander.core.workers.tidy()
        names = [row["worker"] for row in (await kit.get("/api/workers"))[1]["workers"]]
        assert names == ["holder"]
        assert (await feed.until(lambda m: m["type"] == "worker_gone"))["incarnation"] == shown("gone-1")


# -- addresses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("127.0.0.1", "127.0.0.1"), ("localhost", "localhost"), ("LOCALHOST", "localhost"), ("LocalHost.", "localhost"),
        ("::1", "::1"), ("[::1]", "::1"), ("0:0:0:0:0:0:0:1", "::1"), ("127.1", "127.0.0.1"), ("127.0.1", "127.0.0.1"),
        ("2130706433", "127.0.0.1"), ("0x7f.1", "127.0.0.1"), ("127.9.9.9", "127.9.9.9"), (" 127.0.0.1 ", "127.0.0.1"),
        ("::ffff:127.0.0.1", "127.0.0.1"), ("[::FFFF:7F00:1]", "127.0.0.1"),
    ],
)  # fmt: skip
def test_this_machine_is_known_however_it_is_written(given: str, meant: str) -> None:
    found = CommanderSettings.from_env({"RELAY_HOST": given})
    assert (found.host, found.loopback) == (meant, True)
    found.check_exposure()
    assert CommanderSettings.from_env({}, host=given).host == meant


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("0.0.0.0", "0.0.0.0"), ("0", "0.0.0.0"), ("::", "::"), ("[::]", "::"), ("10.0.0.7", "10.0.0.7"),
        ("128.1", "128.0.0.1"), ("::ffff:10.0.0.7", "10.0.0.7"), ("[FE80::1]", "fe80::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("Pod.Example", "pod.example"), ("localhost.example", "localhost.example"), ("127.example", "127.example"),
    ],
)  # fmt: skip
def test_what_others_can_reach_is_known_too(given: str, meant: str) -> None:
    found = CommanderSettings.from_env({"RELAY_HOST": given})
    assert (found.host, found.loopback) == (meant, False)
    with pytest.raises(RelayError, match="RELAY_SHARED_SECRET"):
        found.check_exposure()


@pytest.mark.parametrize(
    "given",
    [
        "http://127.0.0.1", "127.0.0.1:8080", "[::1", "::1]", "[::1]:8080", "[127.0.0.1]", "a b", "a/b", "user@host",
        "-host", "host..name", "ho\x1bst", "h" * 254, "1.2.3.4.5", "256.1.1.1", "1:2:3", "[]", "\u2603.example",
    ],
)  # fmt: skip
def test_what_is_no_address_is_said_at_once(given: str) -> None:
    with pytest.raises(RelayError, match="RELAY_HOST") as caught:
        CommanderSettings.from_env({"RELAY_HOST": given})
    assert caught.value.exit_code == Exit.USAGE
    assert caught.value.hint
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("host", ["LOCALHOST", "[::1]", "127.1"])
async def test_it_listens_on_this_machine_however_it_is_written(tmp_path: Path, host: str) -> None:
    async with running(tmp_path / "state", host=host) as kit:
        assert (await kit.get("/api/whoami"))[0] == 200
