"""One commander a state folder, whatever is deleted in it while that runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from commander_kit import running

from relaytui.commander.folder import StateFolder
from relaytui.commander.owner import Owner
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.state import ADDRESS_FILE, read_address


async def test_without_its_lock_file_a_folder_still_has_one_owner(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running(state) as kit:
        (state / "lock").unlink()
        with pytest.raises(RelayError, match="belongs to a commander that runs"):
            StateFolder(state)
        assert kit.commander.url in str(read_address(state)), "and its address stays"
        (state / "lock").unlink(missing_ok=True)
        kit.commander.look()
        assert (state / "lock").exists(), "made again"
        assert not kit.commander.lost.is_set()
        with pytest.raises(RelayError, match="belongs to a commander that runs"):
            StateFolder(state)
    StateFolder(state).close()


async def test_another_lock_file_in_its_place_ends_it(tmp_path: Path) -> None:
    """A commander that knows no lock of folders may have come in."""
    state = tmp_path / "state"
    async with running(state) as kit:
        (state / "lock").rename(state / "lock.was")
        (state / "lock").touch()
        kit.commander.look()
        assert kit.commander.lost.is_set()
        trouble = kit.commander.trouble
        assert trouble is not None
        assert trouble.exit_code == Exit.STATE
        assert "lock was replaced under the running commander" in trouble.message
        assert trouble.hint


def test_where_folders_take_no_lock_a_file_that_is_gone_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relaytui.commander.owner._lock_folder", lambda folder: -1)
    owner = Owner(tmp_path)
    assert owner.trouble() is None
    (tmp_path / "lock").unlink()
    trouble = owner.trouble()
    assert trouble is not None
    assert "lock was deleted under the running commander" in trouble.message
    Owner(tmp_path).close()
    owner.close()


@pytest.mark.parametrize("damage", ["gone", "another's", "garbage", "link"])
async def test_its_address_is_said_again(tmp_path: Path, damage: str) -> None:
    state = tmp_path / "state"
    async with running(state) as kit:
        file = state / ADDRESS_FILE
        before = read_address(state)
        file.unlink()
        if damage == "another's":
            file.write_text('{"url":"http://127.0.0.1:1","pid":1,"version":"0","started_at":1}')
        elif damage == "garbage":
            file.write_text("{")
        elif damage == "link":
            file.symlink_to("/dev/zero")
        kit.commander.look()
        assert read_address(state) == before
        assert not file.is_symlink()
        assert file.stat().st_mode & 0o777 == 0o600
        kit.commander.look()
    assert not file.exists()
