"""Folders and files whose names are no UTF-8: file systems have such names, and every command takes them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from backup_kit import a_state, relay, rows
from cli_kit import Served

from relaytui.commander.store.restore import _highest_epoch


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
