"""What may lie in a state folder: a key that is lost is said, what is no plain file is never opened."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from commander_kit import FakeClock, running, started

from relaytui.cli.dashboard import leave_running
from relaytui.cli.options import Target
from relaytui.client.discover import local_endpoint, read_key
from relaytui.commander.folder import StateFolder
from relaytui.commander.server import Commander
from relaytui.commander.settings import CommanderSettings
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.files import append_plain
from relaytui.wire.proof import derived_token


async def refusal(state: Path, **more: object) -> RelayError:
    """What a start is refused with: one line, the state folder's exit code."""
    with pytest.raises(RelayError) as caught:
        await Commander(CommanderSettings(**({"state": state, "port": 0} | more))).start()  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert caught.value.exit_code == Exit.STATE
    return caught.value


async def test_a_lost_key_is_not_replaced_unasked(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running(state) as kit:
        await (await kit.agent()).acquire("run-1")
    (state / "key").unlink()
    error = await refusal(state)
    assert str(state / "key") in str(error)
    assert "backup" in error.hint
    assert "serve --new-key" in error.hint
    assert not (state / "key").exists()
    # Given back, everything is as it was.
    (state / "key").write_bytes(b"k" * 32)
    async with running(state) as kit:
        assert (await kit.run("run-1"))["holder"] == "pod"


async def test_a_new_key_is_made_on_the_operators_word_and_said(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running(state):
        pass
    (state / "key").unlink()
    async with running(state, new_key=True) as kit:
        assert kit.key != b"k" * 32
        assert len(kit.key) == 32
        assert stat.S_IMODE((state / "key").stat().st_mode) == 0o600
        (event,) = [e for e in (await kit.get("/api/events"))[1]["events"] if e["kind"] == "key.changed"]
        assert "worker token" in event["message"]
        assert (await kit.get("/api/runs", headers={"Authorization": f"Bearer {kit.operator}"}))[0] == 200
        old = {"Authorization": f"Bearer {derived_token(b'k' * 32, 'operator')}"}
        assert (await kit.get("/api/runs", role=None, headers=old))[0] == 401
    # Asked for once more, a key that is whole stays.
    key = (state / "key").read_bytes()
    assert "--new-key" in str(await refusal(state, new_key=True))
    assert (state / "key").read_bytes() == key
    async with running(state) as kit:
        assert [e["kind"] for e in (await kit.get("/api/events"))[1]["events"]].count("key.changed") == 1


async def test_a_damaged_key_gives_way_to_a_new_one_and_is_kept(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running(state):
        pass
    (state / "key").write_bytes(b"short")
    assert "--new-key" in (await refusal(state)).hint
    async with running(state, new_key=True) as kit:
        assert len(kit.key) == 32
    (kept,) = state.glob("key.damaged-*")
    assert kept.read_bytes() == b"short"


async def test_a_folder_whose_databases_alone_are_left_has_lost_its_key(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running(state):
        pass
    (state / "key").unlink()
    (state / "relay.db").unlink()
    assert "key" in str(await refusal(state))


async def test_another_whole_key_is_said(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running(state):
        pass
    (state / "key").write_bytes(b"o" * 32)
    async with running(state) as kit:
        assert "key.changed" in [e["kind"] for e in (await kit.get("/api/events"))[1]["events"]]


async def test_a_retry_under_another_key_gets_a_grant_that_holds(tmp_path: Path) -> None:
    state, clock = tmp_path / "state", FakeClock()
    async with running(state, clock) as kit:
        first = await (await kit.agent(incarnation="one")).acquire("run-1", request_id="same")
        lost = await (await kit.agent("other", incarnation="two")).acquire("run-2", request_id="same")
    (state / "key").unlink()
    async with running(state, clock, new_key=True) as kit:
        # The old token holds as before: what was granted stays granted.
        agent = await kit.agent(incarnation="one")
        agent.run_id, agent.epoch, agent.token = "run-1", 1, first["token"]
        assert (await agent.renew())["type"] == "renewed"
        again = await agent.acquire("run-1", request_id="same")
        assert (again["type"], again["epoch"]) == ("granted", 2)
        assert (await agent.renew())["type"] == "renewed"
        await agent.state(started())
        assert [row.get("outcome") for row in await kit.attempts("run-1")] == ["superseded", None]
        # The same where the lease has run out meanwhile.
        await kit.pass_time(clock, 302)
        other = await kit.agent("other", incarnation="two")
        again = await other.acquire("run-2", request_id="same")
        assert (again["epoch"], again["token"] != lost["token"]) == (2, True)
        assert (await other.renew())["type"] == "renewed"


# -- what is no plain file -----------------------------------------------------------------------------------------


def fifo(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix, contextlib.chdir(path.parent):
        unix.bind(path.name)  # a socket's whole path may have 107 bytes, a test's folder has more


def link(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.write_bytes(b"k" * 32)
    path.symlink_to(target)


def dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


STRANGE: dict[str, Callable[[Path], None]] = {
    "a FIFO": fifo, "a socket": bound_socket, "a folder": Path.mkdir, "a symbolic link": link, "dangling": dangling,
    "device": device,
}  # fmt: skip
NAMES = ("key", "commander.json", "lock", "relay.db", "telemetry.db", "relay.db-wal", "telemetry.db-journal")


@pytest.mark.parametrize("what", STRANGE)
@pytest.mark.parametrize("name", NAMES)
async def test_a_start_opens_nothing_but_plain_files(tmp_path: Path, name: str, what: str) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "key").write_bytes(b"k" * 32)
    if name == "key":
        (state / "key").unlink()
    STRANGE[what](state / name)
    before = os.lstat(state / name)
    error = await refusal(state)
    assert str(state / name) in str(error)
    assert (what if what.startswith("a ") else "a symbolic link") in str(error)
    after = os.lstat(state / name)
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)


@pytest.mark.parametrize("what", STRANGE)
@pytest.mark.parametrize("name", ["key", "commander.json"])
def test_a_client_reads_nothing_but_plain_files(tmp_path: Path, name: str, what: str) -> None:
    if name != "key":
        (tmp_path / "key").write_bytes(b"k" * 32)
    STRANGE[what](tmp_path / name)
    with pytest.raises(RelayError) as caught:
        local_endpoint(tmp_path)
    assert caught.value.exit_code == Exit.STATE
    assert str(tmp_path / name) in str(caught.value)
    assert caught.value.hint


def test_a_client_reads_no_file_without_end(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    with (tmp_path / "commander.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(RelayError, match="too large") as caught:
        local_endpoint(tmp_path)
    assert caught.value.exit_code == Exit.STATE
    (tmp_path / "commander.json").unlink()
    for content in (b"", b"short", b"k" * 33, b"k" * 10_000_000):
        (tmp_path / "key").write_bytes(content)
        with pytest.raises(RelayError, match="not a Relay key"):
            read_key(tmp_path)


@pytest.mark.parametrize("what", STRANGE)
def test_a_commander_that_is_left_running_logs_to_nothing_but_a_plain_file(tmp_path: Path, what: str) -> None:
    STRANGE[what](tmp_path / "serve.log")
    before = os.lstat(tmp_path / "serve.log")
    with pytest.raises(RelayError) as caught:
        leave_running(Target(tmp_path, None), "http://127.0.0.1:9")
    assert caught.value.exit_code == Exit.STATE
    assert str(tmp_path / "serve.log") in str(caught.value)
    assert os.lstat(tmp_path / "serve.log") == before
    assert not (tmp_path / "nowhere").exists()


def test_a_log_that_is_there_is_added_to(tmp_path: Path) -> None:
    for words in (b"one\n", b"two\n"):
        with append_plain(tmp_path / "serve.log") as file:
            file.write(words)
    assert (tmp_path / "serve.log").read_bytes() == b"one\ntwo\n"
    assert stat.S_IMODE((tmp_path / "serve.log").stat().st_mode) == 0o600


async def test_a_second_owner_is_refused_whatever_the_address_has_become(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as kit:
        (tmp_path / "state" / "commander.json").unlink()
        os.mkfifo(tmp_path / "state" / "commander.json")
        assert "belongs to a commander" in str(await refusal(tmp_path / "state"))
        assert (await kit.get("/api/whoami"))[0] == 200


def test_a_key_of_a_fresh_folder_is_durable_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    folder = StateFolder(tmp_path / "state")
    folder.close()
    assert synced == ["file", "folder"]


# -- where it lies -------------------------------------------------------------------------------------------------

LOCAL = ("ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", "fuseblk", "fuse.fuse-overlayfs", "")
NETWORK = (
    "nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "lustre", "glusterfs", "afs", "fuse", "fuse.sshfs",
    "fuse.s3fs",
    "fuse.rclone", "fuse.mount-s3", "fuse.glusterfs", "fuse.something-new",
)  # fmt: skip


@pytest.mark.parametrize("kind", NETWORK)
def test_a_network_file_system_is_refused_before_anything_is_made_there(tmp_path: Path, kind: str) -> None:
    state = tmp_path / "new" / "state"
    with pytest.raises(RelayError) as caught:
        StateFolder(state, probe=lambda path: kind)
    assert kind in str(caught.value)
    assert str(state) in str(caught.value)
    assert "RELAY_ALLOW_NETWORK_STATE=1" in caught.value.hint
    assert caught.value.exit_code == Exit.STATE
    assert not state.parent.exists()
    StateFolder(state, probe=lambda path: kind, allow_network=True).close()


@pytest.mark.parametrize("kind", LOCAL)
def test_a_local_file_system_is_taken(tmp_path: Path, kind: str) -> None:
    StateFolder(tmp_path / "state", probe=lambda path: kind).close()


async def test_a_start_asks_where_the_folder_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def probe(path: Path) -> str:
        asked.append(path)
        return "nfs4"

    monkeypatch.setattr("relaytui.commander.folder.file_system", probe)
    assert "nfs4" in str(await refusal(tmp_path / "state"))
    assert asked == [tmp_path / "state"]
    word = CommanderSettings.from_env({"RELAY_ALLOW_NETWORK_STATE": "1"})
    assert word.allow_network_state
    async with running(tmp_path / "state", allow_network_state=True) as kit:
        assert (await kit.get("/api/whoami"))[0] == 200
