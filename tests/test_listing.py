"""What lies on the volume is told whole, and a commander that was restored lists it as it is."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_rig import Rig, eventually, mock, rigged
from backup_kit import put_back
from checkpoint_kit import ManualClock, new_run, put, take
from takeover_kit import ORPHAN, kill

from relay_agent.checkpoints import listing, manifest
from relay_agent.checkpoints.listing import AGAIN_AFTER, Listing, listed
from relay_agent.checkpoints.manifest import MANIFEST, read
from relay_agent.checkpoints.tree import Tree, Unreadable
from relay_agent.volume.volume import RunFolder
from relaytui.commander.store.backup import back_up
from relaytui.wire.reports import Listed, StateReport


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return new_run(tmp_path)


def steps(told: Listed | None) -> tuple[list[int], list[int]]:
    assert told is not None
    return [one.step for one in told.line], [one.step for one in told.beside]


def test_the_line_is_told_in_its_order_and_apart_from_it_what_is_not_on_it(run: RunFolder) -> None:
    for step in (100, 300, 200):  # a counter that began again
        put(run, 1, step)
    take(run, 2, "step_00000300")
    put(run, 2, 400)
    told = listed(run, 2e9)
    assert steps(told) == ([100, 300, 400], [200])
    assert told is not None
    sealed = read(run.ckpt / "step_00000400")
    newest = told.line[-1]
    assert (newest.name, newest.epoch, newest.manifest) == ("step_00000400", 2, sealed.sha256)
    assert (newest.bytes, newest.files, newest.at) == (
        sealed.manifest.total_bytes, len(sealed.manifest.files), sealed.manifest.created_at,
    )  # fmt: skip
    assert [one.at for one in (listed(run, 5.0) or told).line] == [5.0] * 3, "none is of the future"


def test_what_is_damaged_is_not_there(run: RunFolder) -> None:
    for step in (100, 200, 300):
        put(run, 1, step)
    (run.ckpt / "step_00000100" / MANIFEST).write_text("{")
    (run.ckpt / "step_00000200" / "weights.bin").write_bytes(b"short")
    assert steps(listed(run, 2e9)) == ([300], [])


@pytest.mark.parametrize("trouble", [OSError(errno.EIO, "Input/output error"), Unreadable("it answered with EIO")])
def test_what_cannot_be_read_now_is_not_gone(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    for step in (100, 200):
        put(run, 1, step)
    whole = manifest.walk

    def walk(root: int, **how: Any) -> Tree:
        if Path(f"/proc/self/fd/{root}").readlink().name == "step_00000100":
            raise trouble
        return whole(root, **how)

    monkeypatch.setattr(manifest, "walk", walk)
    with pytest.raises(OSError):
        listed(run, 2e9)


def test_more_than_can_be_told_is_not_told_in_part(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_CHECKPOINTS", 1)
    put(run, 1, 100)
    assert steps(listed(run, 2e9)) == ([100], [])
    put(run, 1, 200)
    assert listed(run, 2e9) is None


async def test_it_is_told_once_and_again_where_that_is_wanted_or_the_volume_could_not_be_read(run: RunFolder) -> None:
    told: list[StateReport] = []
    clock = ManualClock()
    one = Listing(run, clock, told.append)
    claims = run.root / "claims"
    away = claims.rename(run.root / "away")
    claims.write_text("no folder")
    await one.tell()
    claims.unlink()
    away.rename(claims)
    await one.tell()
    assert told == []
    clock.now += AGAIN_AFTER
    for _ in range(3):
        await one.tell()
    assert len(told) == 1
    one.want()
    await one.tell()
    assert len(told) == 2


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rigged(tmp_path, lease_seconds=3.0) as rig:
        yield rig


def listing_of(rig: Rig) -> dict[str, Any]:
    answer: dict[str, Any] = rig.call(f"/api/runs/{rig.run_id}")
    return answer


def there(rig: Rig) -> list[str]:
    """What the commander says is on the volume."""
    return sorted(row["name"] for row in listing_of(rig)["checkpoints"] if "pruned_at" not in row)


def put_back_from(rig: Rig, backup: Path) -> float:
    rig.kill_commander()
    at = float(int(time.time()))
    put_back(rig.state, backup, at)
    rig.start_commander()
    return at


def test_a_holder_that_comes_back_to_a_restored_commander_tells_it_what_is_there(rig: Rig) -> None:
    rig.serving = {"RELAY_CKPT_KEEP_LAST_N": "2"}
    rig.kill_commander()
    rig.start_commander()
    command = mock("--steps", 600, "--step-seconds", 0.05, "--save-every", 10)
    first = rig.agent(command, **ORPHAN)
    eventually(lambda: rig.run()["newest_step"] >= 20, "two checkpoints")
    backup = back_up(rig.state, time.time())
    eventually(lambda: rig.run()["newest_step"] >= 50, "later ones")
    kill(first)
    agent = rig.agent(command, **ORPHAN)  # it keeps nothing of what the one before it had acknowledged
    eventually(lambda: rig.run()["newest_step"] >= 80, "later ones still")
    put_back_from(rig, backup)
    eventually(lambda: listing_of(rig)["restored_at"] is None, "it is told what is there")
    assert agent.process.poll() is None, "long before its end"
    agent.process.terminate()
    agent.wait()
    assert there(rig) == rig.checkpoints()
    assert len(there(rig)) == 2
    answer = listing_of(rig)
    gone = [row for row in answer["checkpoints"] if "pruned_at" in row]
    assert answer["run"]["published"] - answer["run"]["checkpoints"] == len(gone)


def test_an_attempt_begins_with_what_is_there(rig: Rig) -> None:
    command = mock("--steps", 40, "--step-seconds", 0.02, "--save-every", 10, "--crash-at", 35)
    first = rig.agent(command)
    eventually(lambda: rig.run()["newest_step"] >= 10, "a checkpoint")
    backup = back_up(rig.state, time.time())
    first.wait()
    at = put_back_from(rig, backup)
    assert listing_of(rig)["restored_at"] == at
    later = rig.agent(mock("--steps", 40, "--step-seconds", 0.02, "--save-every", 10), "pod-b")
    assert later.wait() == 0, later.says()
    answer = listing_of(rig)
    assert (answer["restored_at"], there(rig)) == (None, rig.checkpoints())
    published = {row["step"]: row["published_at"] for row in answer["checkpoints"]}
    assert published[20] < at + 1, "when it was sealed, not when it was heard of again"
