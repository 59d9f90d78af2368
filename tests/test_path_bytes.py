"""Folders and files whose names are no UTF-8: file systems have such names, and every command takes them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from backup_kit import a_state, relay, rows
from cli_kit import Served
from commander_kit import FakeClock, running, until

from relaytui.commander.http.faults import error_response
from relaytui.commander.store.kept import backups
from relaytui.commander.store.restore import _highest_epoch
from relaytui.wire.errors import Exit, RelayError


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    return tmp_path / os.fsdecode(b"no\xffpe")


def test_a_commander_serves_a_state_folder_of_any_name(odd: Path) -> None:
    served = Served(odd)
    try:
        assert served.call("/api/lease/acquire", {"worker_id": "pod-1", "run_id": "tiny"})["status"] == "granted"
        done = relay("runs", "--json", "--state", odd)
        assert (done.returncode, done.stderr) == (0, "")
        assert [row["run_id"] for row in json.loads(done.stdout)["runs"]] == ["tiny"]
        source = odd.with_name(odd.name + "-file")
        source.write_bytes(b"hello")
        done = relay("artifacts", "attach", "tiny", source, "--name", "notes", "--json", "--state", odd)
        assert (done.returncode, done.stderr) == (0, "")
        number = str(json.loads(done.stdout)["artifact"]["id"])
        goal = odd.with_name(odd.name + "-goal")
        done = relay("artifacts", "fetch", number, "--to", goal, "--json", "--state", odd)
        assert (done.returncode, done.stderr, goal.read_bytes()) == (0, "", b"hello")
        done = relay("artifacts", "extract", goal, "--to", goal.with_name(goal.name + "-x"))
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "is no archive of Relay's" in done.stderr
    finally:
        said = served.stop()
    assert "Traceback" not in said
    assert odd.is_dir()


async def test_backups_go_to_and_come_from_any_name(odd: Path) -> None:
    await a_state(odd)
    for words in ([], ["--to", odd.with_name(odd.name + "-copy")]):
        done = relay("backup", "--json", "--state", odd, *words)
        assert (done.returncode, done.stderr) == (0, ""), words
    copy = odd.with_name(odd.name + "-copy")
    assert len(rows(copy)) == 2
    assert _highest_epoch(copy) == 1
    shutil.rmtree(odd / "backups")
    done = relay("restore", copy, "--yes", "--json", "--state", odd)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(rows(odd / "relay.db")) == 2


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4_096:8_192] = b"garbage " * 512
    path.write_bytes(data)


async def test_what_is_damaged_in_a_folder_of_any_name_is_said_in_one_line(odd: Path) -> None:
    await a_state(odd)
    spoil(odd / "telemetry.db")
    served = Served(odd)
    try:
        assert relay("status", "--state", odd).returncode == 0
        events = json.loads(relay("events", "--json", "--state", odd).stdout)["events"]
        (said,) = [event["message"] for event in events if event["kind"] == "commander.telemetry_replaced"]
        assert "no\ufffdpe/telemetry.db is damaged" in said
    finally:
        words = served.stop()
    assert "Traceback" not in words
    spoil(odd / "relay.db")
    for command, code in (("serve", Exit.STATE), ("backup", Exit.STATE), ("status", Exit.UNAVAILABLE)):
        done = relay(command, "--state", odd)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done.stderr
        assert "no\ufffdpe" in done.stderr


async def test_what_goes_wrong_in_a_folder_of_any_name_is_in_the_history(odd: Path) -> None:
    clock = FakeClock()
    async with running(odd, clock) as kit:
        await (await kit.agent()).acquire("run-1")
        await until(lambda: len(backups(odd)) == 1)
        clock.step_wall(90_000)
        shutil.rmtree(odd / "backups")
        (odd / "backups").write_bytes(b"")
        await kit.commander.backup_if_due()
        events = (await kit.get("/api/events?limit=1000"))[1]["events"]
        (said,) = [event["message"] for event in events if event["kind"] == "commander.backup_failed"]
        assert "no\ufffdpe/backups" in said


def test_an_error_about_a_path_of_any_name_is_answered() -> None:
    name = os.fsdecode(b"no\xffpe")
    body = json.loads(error_response(RelayError("x", f"{name} is bad", f"see {name}"), "/api/lease/acquire").body)
    assert body["error"] == {"code": "x", "message": "no\ufffdpe is bad", "hint": "see no\ufffdpe"}
    assert body["detail"] == "no\ufffdpe is bad. see no\ufffdpe"
