"""What the operator's commands say, and leave, where the disk that they write to is full for real."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from artifact_kit import some
from backup_kit import a_state, relay
from cli_kit import Served
from disks import small

from relaytui.wire.errors import Exit


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    with small(tmp_path / "full", "100k") as place:
        yield place


def test_a_backup_that_has_no_room_names_its_file_and_leaves_nothing(full: Path, tmp_path: Path) -> None:
    asyncio.run(a_state(tmp_path / "state"))
    done = relay("backup", "--to", full / "copy.db", "--state", tmp_path / "state")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (Exit.STATE, "", 1)
    assert f"{full / 'copy.db'} cannot be written: there is no room on its disk" in done.stderr
    assert "make room there, or name a file on another disk" in done.stderr
    assert "relay.db" not in done.stderr
    assert list(full.iterdir()) == []


def test_a_restore_that_has_no_room_names_the_state_folder_and_changes_nothing(full: Path, tmp_path: Path) -> None:
    asyncio.run(a_state(tmp_path / "state"))
    copy = tmp_path / "copy.db"
    assert relay("backup", "--to", copy, "--state", tmp_path / "state").returncode == 0
    state = full / "state"
    done = relay("restore", copy, "--yes", "--state", state)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (Exit.STATE, "", 1)
    assert f"{state} cannot be written: there is no room on its disk" in done.stderr
    assert "nothing has changed; make room there and restore it again" in done.stderr
    assert not [path for path in state.iterdir() if "relay.db" in path.name]


def test_an_artifact_that_has_no_room_is_said_and_goes_on_later(full: Path, tmp_path: Path) -> None:
    state, source = tmp_path / "state", tmp_path / "plain"
    source.write_bytes(some(300_000))
    served = Served(state)
    try:
        served.call("/api/lease/acquire", {"worker_id": "pod-1", "run_id": "tiny"})
        row = json.loads(relay("artifacts", "attach", "tiny", source, "--json", "--state", state).stdout)["artifact"]
        fetch = ("artifacts", "fetch", str(row["id"]), "--to", full / "x", "--state", state)
        done = relay(*fetch)
        [part] = full.iterdir()
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (Exit.STATE, "", 1)
        assert f"{part} cannot be written: No space left on device" in done.stderr
        assert "make room there and fetch it again: it goes on from there" in done.stderr
        assert "or remove that file" in done.stderr
        shutil.move(part, tmp_path / part.name)
        done = relay(*fetch[:4], tmp_path / "x", *fetch[5:])
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "x").read_bytes() == source.read_bytes()
        assert not (tmp_path / part.name).exists()
    finally:
        served.stop()
