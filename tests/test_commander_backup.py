"""Backups that are whole or not there, and a restore that is old or new at any moment, with no run trained twice."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from backup_kit import AT, a_state, put_back, relay, rows
from commander_kit import FakeClock, published, running, until

from relaytui.client.api import whoami_here
from relaytui.commander.folder import StateFolder
from relaytui.commander.store.backup import KEPT, back_up, copy_whole, is_due
from relaytui.commander.store.kept import backups
from relaytui.commander.store.restore import EPOCHS_APART, finish, restore
from relaytui.shell.interrupt import INTERRUPTED
from relaytui.wire.errors import Exit, RelayError


@pytest.fixture
def state(tmp_path: Path) -> Path:
    asyncio.run(a_state(tmp_path / "state"))
    return tmp_path / "state"


# -- backups -------------------------------------------------------------------------------------------------------


async def test_a_backup_of_a_commander_at_work_is_whole(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        made = []
        for n in range(5):
            await agent.send("state", published(n + 1))
            made.append(await asyncio.to_thread(back_up, tmp_path / "state", AT + n))
        for path in made:
            assert rows(path, "PRAGMA integrity_check") == [("ok",)]
            assert rows(path) == [("run-1", "leased", 1)]
            assert path.stat().st_mode & 0o077 == 0
            assert [left.name for left in path.parent.glob(f"{path.name}-*")] == []
        assert made[0].parent.stat().st_mode & 0o077 == 0


def test_the_newest_backups_are_kept(state: Path) -> None:
    other = state / "backups" / "mine.db"
    made = [back_up(state, AT + n * 3_600) for n in range(KEPT + 3)]
    other.write_bytes(b"x")
    made += [back_up(state, AT + 99 * 3_600), back_up(state, AT + 99 * 3_600)]
    assert made[-1] != made[-2]
    assert backups(state) == made[::-1][:KEPT]
    assert other.exists()


def test_a_backup_is_due_once_a_day(state: Path) -> None:
    assert is_due(state, AT)
    back_up(state, AT)
    assert not is_due(state, AT + 5)
    assert not is_due(state, AT + 86_000)
    assert is_due(state, AT + 86_500)
    assert is_due(state, AT - 7_200), "made in the future: somebody set the clock"


async def test_a_commander_makes_them_by_itself(state: Path) -> None:
    clock = FakeClock()
    async with running(state, clock) as kit:
        await until(lambda: len(backups(state)) == 1)
        clock.step_wall(90_000)
        await kit.commander.backup_if_due()
        assert len(backups(state)) == 2
        await kit.commander.backup_if_due()
        assert len(backups(state)) == 2
        # One that cannot be made is said once, and harms nothing.
        clock.step_wall(90_000)
        shutil.rmtree(state / "backups")
        (state / "backups").write_bytes(b"")
        await kit.commander.backup_if_due()
        await kit.commander.backup_if_due()
        kinds = [event["kind"] for event in (await kit.get("/api/events?limit=1000"))[1]["events"]]
        assert kinds.count("commander.backup_failed") == 1


@pytest.mark.parametrize("harm", ["DELETE FROM runs", "DROP TABLE orders", "UPDATE runs SET status = 'odd'"])
def test_what_is_not_whole_becomes_no_backup(state: Path, tmp_path: Path, harm: str) -> None:
    db = sqlite3.connect(state / "relay.db")
    db.execute(harm)
    db.commit()
    db.close()
    with pytest.raises(RelayError) as caught:
        copy_whole(state / "relay.db", tmp_path / "out.db")
    assert caught.value.exit_code == Exit.STATE
    assert str(state / "relay.db") in str(caught.value)
    assert ".part" not in str(caught.value)
    assert not [path.name for path in tmp_path.iterdir() if "out" in path.name]


def test_a_backup_replaces_nothing(state: Path, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("letter", "link", "no-folder/out.db"):
        with pytest.raises(RelayError) as caught:
            copy_whole(state / "relay.db", tmp_path / name)
        assert caught.value.exit_code == Exit.STATE
    assert (tmp_path / "letter").read_text() == "dear"
    with pytest.raises(RelayError, match="not there"):
        copy_whole(tmp_path / "nothing.db", tmp_path / "out.db")


# -- restores ------------------------------------------------------------------------------------------------------


def test_a_restore_keeps_what_it_replaced_and_is_another_history(state: Path) -> None:
    saved = back_up(state, AT)
    spoiled = sqlite3.connect(state / "relay.db")
    spoiled.execute("UPDATE runs SET epoch = 77 WHERE run_id = 'run-2'")
    spoiled.execute("UPDATE runs SET message = 'after'")
    spoiled.commit()
    spoiled.close()
    before = (state / "relay.db").read_bytes()
    done = put_back(state, saved)
    assert done.aside.read_bytes() == before
    assert done.epoch_floor == 77 + EPOCHS_APART
    assert rows(state / "relay.db") == [("run-1", "queued", 1), ("run-2", "completed", 1)]
    key = "SELECT value FROM meta WHERE key = 'generation'"
    assert rows(state / "relay.db", key) != rows(saved, key)
    assert not list(state.glob(".relay.db*"))
    assert [path.name for path in state.glob("relay.db*") if path.name.endswith(("-shm", "-wal"))] == []


@pytest.mark.parametrize("kind", ["garbage", "empty", "telemetry", "newer", "damaged", "missing", "folder"])
def test_what_is_no_backup_changes_nothing(state: Path, tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source"
    if kind == "folder":
        source.mkdir()
    elif kind == "telemetry":
        shutil.copy(state / "telemetry.db", source)
    elif kind in ("newer", "damaged"):
        shutil.copy(state / "relay.db", source)
        db = sqlite3.connect(source)
        db.execute("PRAGMA user_version = 99" if kind == "newer" else "UPDATE leases SET state = 'odd'")
        db.commit()
        db.close()
    elif kind != "missing":
        source.write_bytes(b"" if kind == "empty" else b"garbage " * 999)
    before = {path.name: path.read_bytes() for path in state.iterdir() if path.is_file()}
    with pytest.raises(RelayError) as caught:
        put_back(state, source)
    assert caught.value.exit_code == Exit.STATE
    assert str(source) in str(caught.value)
    assert "relay-tui restore" not in caught.value.hint, "that is what they did"
    assert "--state" not in caught.value.hint
    if kind == "newer":
        assert "upgrade" in caught.value.hint
    else:
        assert "nothing has changed; name another backup (`relay-tui backup` makes them)" in caught.value.hint
    assert {path.name: path.read_bytes() for path in state.iterdir() if path.is_file()} == before
    if kind != "newer":
        back_up(state, AT)
        with pytest.raises(RelayError, match="source") as caught:
            put_back(state, source)
        assert str(backups(state)[0]) in caught.value.hint


def test_a_damaged_state_is_restored_all_the_same(state: Path) -> None:
    saved = back_up(state, AT)
    for content in (b"garbage " * 1_000, b"", None):
        (state / "relay.db").unlink()
        if content is not None:
            (state / "relay.db").write_bytes(content)
        put_back(state, saved)
        assert rows(state / "relay.db") == [("run-1", "queued", 1), ("run-2", "completed", 1)]


async def test_a_log_that_was_left_is_not_taken_for_the_new_ones(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running(state) as kit:
        await (await kit.agent()).acquire("run-1")
        saved = back_up(state, AT)
        await (await kit.agent("two")).acquire("run-2")
        copy = tmp_path / "killed"  # as kill -9 leaves it: with its log
        shutil.copytree(state, copy)
    assert (copy / "relay.db-wal").stat().st_size > 0
    (copy / "commander.json").unlink()
    done = put_back(copy, copy / "backups" / saved.name)
    assert rows(copy / "relay.db") == [("run-1", "queued", 1)]
    assert rows(done.aside)[1][0] == "run-2", "what was set aside has its log beside it"


# -- killed on the way ---------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As kill -9: no handler of ours may make a difference."""


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, number: int, when: str) -> Iterator[list[str]]:
    """Dies at the `number`-th call that changes the disk, before or after it is carried out. What was called."""
    calls: list[str] = []

    def dying(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if calls and calls[-1] == "killed":
                raise Killed  # nothing of what comes after, `finally` included, reaches the disk
            calls.append(name)
            if len(calls) - 1 == number:
                if when == "after":
                    with suppress(OSError):
                        real(*args, **more)
                calls.append("killed")
                raise Killed
            return real(*args, **more)

        return call

    with monkeypatch.context() as patch:
        for owner, name in ((Path, "rename"), (Path, "unlink"), (os, "fsync"), (os, "open"), (Path, "mkdir")):
            patch.setattr(owner, name, dying(name, getattr(owner, name)))
        yield calls


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_restore_killed_at_any_step_is_old_or_new(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    saved = back_up(state, AT)
    db = sqlite3.connect(state / "relay.db")
    db.execute("UPDATE runs SET message = 'old'")
    db.commit()
    db.close()
    old = [("old",), ("old",)]
    seen: list[str] = []
    for number in range(200):
        copy = Path(shutil.copytree(state, tmp_path / f"{when}-{number}"))
        (copy / "relay.db-journal").write_bytes(b"")  # what is beside it moves along
        folder = StateFolder(copy, keyless=True)
        with killed_at(monkeypatch, number, when) as calls:
            try:
                restore(copy, copy / "backups" / saved.name, AT)
                died = False
            except Killed:
                died = True
        folder.close()
        # Whoever opens the folder next finds one or the other, and never both or neither.
        StateFolder(copy).close()
        found = rows(copy / "relay.db", "SELECT message FROM runs ORDER BY run_id")
        seen.append("old" if found == old else "new")
        assert rows(copy / "relay.db", "PRAGMA integrity_check") == [("ok",)]
        kept = list(copy.glob("relay.db.replaced-*Z"))
        assert len(kept) == (seen[-1] == "new")
        if kept:
            assert rows(kept[0], "SELECT message FROM runs ORDER BY run_id") == old
        assert not list(copy.glob("relay.db.restoring-*"))
        assert finish(copy) is None
        if not died:
            break
    assert seen == sorted(seen, reverse=True), "old up to one step, new from there on"
    assert seen[0] == "old"
    assert seen[-1] == "new"
    assert seen.count("new") > 5
    assert len(calls) > 12


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_backup_killed_at_any_step_is_whole_or_not_there(
    state: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    died = True
    for number in range(100):
        with killed_at(monkeypatch, number, when):
            try:
                back_up(state, AT + number)
                died = False
            except Killed:
                pass
        for path in backups(state):
            assert rows(path) == [("run-1", "running", 1), ("run-2", "completed", 1)]
        if not died:
            break
    assert not died
    assert number > 3
    # What a killed one left behind goes, in time.
    parts = list((state / "backups").glob(".*.part"))
    for part in parts:
        os.utime(part, (1.0, 1.0))
    back_up(state, time.time())
    assert not list((state / "backups").glob(".*.part"))


# -- from the shell ------------------------------------------------------------------------------------------------


async def events_of(state: Path) -> str:
    async with running(state):
        return (await asyncio.to_thread(relay, "events", "--json", "--state", state)).stdout


async def test_the_commands_say_it_to_programs_too(state: Path, tmp_path: Path) -> None:
    before = time.time()
    done = await asyncio.to_thread(relay, "backup", "--json", "--state", state)
    said = json.loads(done.stdout)
    assert said.keys() == {"path", "bytes", "at", "seconds", "verified"}
    made = backups(state)[0]
    assert (said["path"], said["bytes"], said["verified"]) == (str(made), made.stat().st_size, True)
    assert before <= said["at"] <= time.time()
    assert said["seconds"] >= 0
    done = await asyncio.to_thread(relay, "restore", made, "--json", "--yes", "--state", state)
    said = json.loads(done.stdout)
    assert said.keys() == {"path", "at", "replaced", "epoch_floor"}
    assert said["path"] == str(made)
    assert Path(said["replaced"]).name.startswith("relay.db.replaced-")
    assert said["epoch_floor"] > 0
    assert done.stderr == ""
    missing = await asyncio.to_thread(relay, "backup", "--json", "--state", state, "--to", made)
    assert (missing.returncode, missing.stdout) == (Exit.USAGE, "")


async def test_the_commands(state: Path, tmp_path: Path) -> None:
    done = await asyncio.to_thread(relay, "backup", "--state", state)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == backups(state)[0]
    done = await asyncio.to_thread(relay, "backup", "--state", state, "--to", tmp_path / "mine.db")
    assert done.stdout.strip() == str(tmp_path / "mine.db")
    async with running(state):
        refused = await asyncio.to_thread(relay, "restore", tmp_path / "mine.db", "--state", state)
        assert refused.returncode == Exit.STATE
        assert "belongs to a commander" in refused.stderr
        assert "stop it with `relay-tui --state" in refused.stderr, "what a restore needs comes first"
        assert refused.stderr.count("\n") == 1
    done = await asyncio.to_thread(relay, "restore", tmp_path / "mine.db", "--yes", "--state", state)
    assert done.returncode == 0, done.stderr
    assert "replaced" in done.stderr
    assert done.stdout == ""
    who = [event for event in json.loads(await events_of(state))["events"] if event["kind"] == "commander.restored"]
    assert [event["actor"] for event in who] == [whoami_here()], "as of every act of an operator"
    (tmp_path / "a file").write_bytes(b"")
    for arguments, words in (
        (("restore", tmp_path / "nothing"), "is not there"),
        (("restore", tmp_path), "is a folder"),
        (("backup", "--to", tmp_path / "mine.db"), "is there already"),
        (("backup", "--to", tmp_path), "is there already"),
        (("backup", "--to", tmp_path / "no folder" / "mine.db"), "no folder"),
        (("backup", "--to", tmp_path / "a file" / "mine.db"), "no folder"),
    ):
        refused = await asyncio.to_thread(relay, *arguments, "--state", state)
        assert refused.returncode == Exit.USAGE, "it is what was asked for that cannot be"
        assert words in refused.stderr
        assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["relay.db", "telemetry.db"])
def test_the_state_is_no_backup_of_itself(state: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to(state / name)
    before = (state / name).read_bytes()
    for source in (state / name, tmp_path / "link"):
        with pytest.raises(RelayError, match="is the state itself") as caught:
            put_back(state, source)
        assert "relay-tui backup" in caught.value.hint
    assert (state / name).read_bytes() == before
    assert sorted(state.glob("relay.db.replaced-*")) == []


def test_a_state_that_is_there_is_replaced_on_a_yes_alone(state: Path, tmp_path: Path) -> None:
    saved = back_up(state, AT)
    os.utime(saved, (time.time() - 10_900,) * 2)
    before = (state / "relay.db").read_bytes()
    for answer in ("n\n", ""):
        done = relay("restore", saved, "--state", state, said=answer)
        assert done.returncode == INTERRUPTED
        assert done.stderr.startswith(f"{state / 'relay.db'}, last written ")
        assert f" gives way to {saved}: " in done.stderr
        assert "reported since the backup, 3h ago, goes with it" in done.stderr
        assert "restore relay.db? [y/N]: " in done.stderr
        assert ("--yes" in done.stderr) == (not answer)
        assert (state / "relay.db").read_bytes() == before
        assert not list(state.glob("relay.db.re*"))
    done = relay("restore", saved, "--state", state, said="y\n")
    assert (done.returncode, done.stdout) == (0, "")
    assert [path.read_bytes() for path in state.glob("relay.db.replaced-*Z")] == [before]
    # Where nothing is there nothing is asked.
    done = relay("restore", saved, "--state", tmp_path / "empty", said="")
    assert (done.returncode, "[y/N]" in done.stderr) == (0, False), done.stderr
    assert rows(tmp_path / "empty" / "relay.db") == [("run-1", "queued", 1), ("run-2", "completed", 1)]


@pytest.mark.parametrize("kind", ["garbage", "empty", "cut", "damaged", "itself"])
def test_of_what_is_no_backup_it_is_said_and_nothing_is_asked(state: Path, tmp_path: Path, kind: str) -> None:
    source = state / "relay.db" if kind == "itself" else tmp_path / "source"
    if kind == "damaged":
        shutil.copy(state / "relay.db", source)
        db = sqlite3.connect(source)
        db.execute("UPDATE leases SET state = 'odd'")
        db.commit()
        db.close()
    elif kind != "itself":
        whole = (state / "relay.db").read_bytes()
        source.write_bytes({"garbage": b"garbage " * 999, "empty": b"", "cut": whole[: len(whole) // 2]}[kind])
    before = (state / "relay.db").read_bytes()
    done = relay("restore", source, "--state", state, said="y\n")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (Exit.STATE, "", 1), done.stderr
    assert str(source) in done.stderr
    assert "[y/N]" not in done.stderr
    assert (state / "relay.db").read_bytes() == before
    assert not list(state.glob("relay.db.re*"))
    assert not list(state.glob(".relay.db.re*"))
