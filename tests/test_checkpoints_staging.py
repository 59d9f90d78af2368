"""When what a trainer saved is whole, and when it never will be."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from checkpoint_kit import FaultyDisk, ManualClock, mine, new_run, stage

from relay_agent.checkpoints import staging as staging_module
from relay_agent.checkpoints.aside import set_aside
from relay_agent.checkpoints.publish import publish
from relay_agent.checkpoints.staging import FIRST, StagingWatch
from relay_agent.volume.volume import RunFolder

SETTLE = 5.0


class Watched:
    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.clock = ManualClock()
        self.watch = StagingWatch(run.staging(1), SETTLE, self.clock)

    def look(self, seconds: float = 0.0, exited: int | None = None) -> list[int]:
        """Time passes with looks, then one: the steps that are whole."""
        for _ in self.clock.watch(seconds):
            self.watch.scan()
        return self.next(0.0, exited)

    def next(self, seconds: float, exited: int | None = None) -> list[int]:
        """The next look comes so much later only."""
        self.clock.now += seconds
        return [staged.step for staged in self.watch.scan(self.clock.boot(), exited)]

    def torn(self) -> list[str]:
        return [torn.name for torn in self.watch.torn()]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(new_run(tmp_path))


def test_marked_is_whole_at_once(watched: Watched) -> None:
    stage(watched.run, 1, 5)
    assert watched.look() == [5]
    assert watched.look(exited=-9) == [5]
    assert watched.torn() == []


def test_unmarked_is_whole_once_nothing_changed_for_a_while(watched: Watched) -> None:
    staged = stage(watched.run, 1, 5, marker=False)
    assert watched.look() == []
    assert watched.look(4.9) == []
    (staged.path / "shard" / "1.bin").write_bytes(b"more")
    assert watched.look(0.2) == []
    assert watched.look(4.9) == []
    assert watched.look(0.2) == [5]
    (staged.path / "weights.bin").write_bytes(b"again")
    assert watched.look(0.1) == [], "written to again, it is no longer whole"


def test_a_trainer_that_died_between_two_looks_has_not_kept_still(watched: Watched) -> None:
    """Publishing the one before it took long, and it died in the middle of this one meanwhile."""
    stage(watched.run, 1, 5, marker=False)
    assert watched.look() == []
    assert watched.next(60, exited=143) == []
    assert watched.torn() == ["step_5"]


def test_a_pod_that_stood_still_proves_nothing(watched: Watched) -> None:
    """Its trainer goes on with the save when the pod does, and only what is looked on counts."""
    stage(watched.run, 1, 5, marker=False)
    assert watched.look() == []
    assert watched.next(3600) == []
    assert watched.look(3.9) == []
    assert watched.look(0.2) == [5]


def test_a_rewrite_of_the_same_size_is_a_change(watched: Watched) -> None:
    staged = stage(watched.run, 1, 5, marker=False)
    assert watched.look() == []
    weights = staged.path / "weights.bin"
    before = weights.stat()
    weights.write_bytes(b"x" * before.st_size)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert watched.next(0.5) == []
    assert watched.look(4.9) == []
    assert watched.look(0.2) == [5]


def test_an_empty_folder_never_settles(watched: Watched) -> None:
    (watched.run.staging(1) / "step_5").mkdir()
    assert watched.look() == []
    assert watched.look(60) == []
    assert watched.look(exited=0) == []
    assert watched.torn() == ["step_5"]


def test_exit_with_0_makes_it_whole(watched: Watched) -> None:
    stage(watched.run, 1, 5, marker=False)
    assert watched.look(exited=0) == [5]


@pytest.mark.parametrize("code", [1, 143, -9])
def test_a_trainer_that_died_leaves_the_unsettled_torn(watched: Watched, code: int) -> None:
    stage(watched.run, 1, 1, marker=False)
    assert watched.look() == []
    assert watched.look(6) == [1]
    stage(watched.run, 1, 2, marker=False)
    stage(watched.run, 1, 3)
    assert watched.look(exited=code) == [1, 3]
    assert watched.torn() == ["step_2"]
    assert watched.look(60, exited=code) == [1, 3], "after the end nothing settles"
    (torn,) = watched.watch.torn()
    assert ("signal 9" if code < 0 else str(code)) in torn.reason
    aside = set_aside(watched.run, torn.path)
    assert aside.parent == watched.run.bad
    assert (aside / "weights.bin").exists()
    assert watched.look(exited=code) == [1, 3]
    assert watched.torn() == []


def test_oldest_first_is_the_order_of_saving(watched: Watched) -> None:
    for age, step in enumerate((30, 100, 20)):
        staged = stage(watched.run, 1, step)
        for path in (staged.path / "COMPLETE", staged.path / "weights.bin", staged.path / "shard" / "0.bin"):
            os.utime(path, (1000 + age, 1000 + age))
    assert watched.look() == [30, 100, 20]


def test_any_zero_padding_names_a_step(watched: Watched) -> None:
    root = watched.run.staging(1)
    for name in ("step_7", "step_0000000008", "step_0"):
        (root / name).mkdir()
        (root / name / "w").write_bytes(b"w")
        (root / name / "COMPLETE").touch()
    assert sorted(watched.look()) == [0, 7, 8]


def test_other_names_are_left_alone(watched: Watched) -> None:
    root = watched.run.staging(1)
    for name in (
        *(".step_5", "step_5.tmp", "step_", "step_-1", "step_final", "step_5 ", "step_٣", "xstep_5", "tmp"),
        *("step_" + "9" * 40, "step_5\n", "step_\x1b[2J", "latest"),
    ):
        (root / name).mkdir()
        (root / name / "w").write_bytes(b"w")
        (root / name / "COMPLETE").touch()
    assert watched.look(exited=0) == []
    assert watched.torn() == []


def test_what_can_be_no_checkpoint_is_torn_at_once(watched: Watched) -> None:
    root = watched.run.staging(1)
    outside = root.parent / "outside"
    (outside / "inner").mkdir(parents=True)
    (root / "step_1").symlink_to(outside)
    (root / "step_2").touch()
    os.mkfifo(stage(watched.run, 1, 3).path / "pipe")
    (stage(watched.run, 1, 4).path / "link").symlink_to("/etc")
    (root / "step_5").mkdir()
    (root / "step_5" / "COMPLETE").touch()
    assert watched.look() == []
    assert watched.torn() == ["step_1", "step_2", "step_3", "step_4", "step_5"]
    for torn in watched.watch.torn():
        set_aside(watched.run, torn.path)
    assert (outside / "inner").is_dir()
    assert len(list(watched.run.bad.iterdir())) == 5


def test_no_folder_yet_is_no_error(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    watch = StagingWatch(run.staging(9), SETTLE, ManualClock())
    assert watch.scan() == []
    assert watch.torn() == []


def test_sealed_by_a_publish_that_failed_is_still_whole(watched: Watched) -> None:
    """Its marker is gone by then, and its trainer may be too."""
    staged = stage(watched.run, 1, 5)
    number = 0
    while (staged.path / "COMPLETE").exists():
        with pytest.raises(OSError, match="refused"):
            publish(watched.run, staged, 1, mine, disk=FaultyDisk(number, lambda: OSError(errno.EIO, "refused")))
        number += 1
    assert watched.look(exited=143) == [5]
    (staged.path / "weights.bin").write_bytes(b"written to again")
    assert StagingWatch(watched.run.staging(1), SETTLE, watched.clock).scan(0.0, 143) == []


@pytest.mark.parametrize("call", ["write", "create"])
@pytest.mark.parametrize("linked", [False, True])
def test_what_is_whole_at_the_end_stays_so_when_the_volume_has_no_room_for_it(
    watched: Watched, call: str, linked: bool
) -> None:
    """A publish that failed leaves traces in the folder: they unsettle nothing, and are no part of the next try."""
    path = stage(watched.run, 1, 5, marker=False).path
    if linked:
        (path / "weights.bin").unlink()
        (watched.run.output(1) / "w").write_bytes(b"weights" * 100)
        (path / "weights.bin").hardlink_to(watched.run.output(1) / "w")
    (staged,) = watched.watch.scan(watched.clock.boot(), 0)
    first = 1 if linked else 4  # what makes a file is a copy, or the manifest after three flushes
    disk = FaultyDisk(-1, lambda: OSError(errno.ENOSPC, "No space left on device"), half=True)
    disk.at = first + (call == "write")
    with pytest.raises(OSError, match="No space left"):
        publish(watched.run, staged, 1, mine, disk=disk)
    assert disk.calls[disk.at].startswith(call)
    assert watched.look(exited=0) == [5]
    assert watched.torn() == []
    done = publish(watched.run, watched.watch.scan(watched.clock.boot(), 0)[0], 1, mine)
    assert {file.name for file in done.path.rglob("*") if file.is_file()} == {"weights.bin", "0.bin", "manifest.json"}


@pytest.fixture
def unknown(tmp_path: Path) -> Watched:
    watched = Watched(new_run(tmp_path))
    watched.watch.marks = None
    return watched


def test_a_trainer_that_marked_one_has_not_saved_what_it_did_not_mark(watched: Watched) -> None:
    stage(watched.run, 1, 5)
    half = stage(watched.run, 1, 6, marker=False)
    assert watched.look() == [5]
    shutil.rmtree(watched.run.staging(1) / "step_5")
    assert watched.look(100) == [], "however long it pauses in a save"
    assert watched.watch.unmarked == ["step_6"]
    (half.path / "COMPLETE").touch()
    assert watched.look(0.5) == [6]
    stage(watched.run, 1, 7, marker=False)
    assert watched.look(100) == [6]
    assert watched.look(100, exited=-9) == [6]
    assert watched.torn() == ["step_7"]


def test_what_a_trainer_that_marks_did_not_mark_is_torn_however_it_exits(watched: Watched) -> None:
    """Its interpreter may have cut a thread that saves."""
    watched.watch.marks = True
    stage(watched.run, 1, 5, marker=False)
    assert watched.look() == watched.look(1000) == []
    assert watched.look(exited=0) == []
    (torn,) = watched.watch.torn()
    assert torn.reason == "the trainer exited and had not written COMPLETE into it, as it does into what is whole"


def test_what_keeps_still_while_its_trainer_is_stopped_says_nothing(watched: Watched) -> None:
    stopped = False
    watched.watch.watching.frozen = lambda: stopped
    stage(watched.run, 1, 5, marker=False)
    assert watched.look(SETTLE - 1) == []
    stopped = True
    assert watched.look(100) == []
    stopped = False
    assert watched.look(0.5) == []
    assert watched.look(1.0) == [5]


def test_the_first_one_of_a_run_waits_longer_for_its_mark(unknown: Watched) -> None:
    half = stage(unknown.run, 1, 5, marker=False)
    assert unknown.look() == unknown.look(SETTLE) == unknown.look(10 * SETTLE) == []
    (half.path / "COMPLETE").touch()
    assert unknown.look() == [5]
    assert unknown.watch.marks is True


def test_the_first_one_settles_without_a_mark(unknown: Watched) -> None:
    stage(unknown.run, 1, 5, marker=False)
    assert unknown.look() == unknown.look(FIRST * SETTLE - 1) == []
    assert unknown.look(1) == [5]
    assert unknown.watch.scan()[0].settled
    assert unknown.watch.scan()[0].marks is None


def test_two_without_a_mark_show_that_there_are_none(unknown: Watched) -> None:
    stage(unknown.run, 1, 5, marker=False)
    assert unknown.look() == unknown.look(2 * SETTLE) == []
    stage(unknown.run, 1, 6, marker=False)
    assert unknown.look() == unknown.look(SETTLE - 0.5) == []
    assert unknown.look(0.5) == [5, 6]
    assert unknown.watch.marks is False


def test_two_saves_side_by_side_show_nothing(unknown: Watched) -> None:
    """Each pauses before it goes on to its mark."""
    stage(unknown.run, 1, 5, marker=False)
    assert unknown.look() == unknown.look(3) == []
    second = stage(unknown.run, 1, 6, marker=False)
    assert unknown.look() == unknown.look(2 * SETTLE) == []
    (second.path / "COMPLETE").touch()
    assert unknown.look(0.5) == [6]


def test_a_look_that_is_only_remembered_shows_no_stillness(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a volume where one takes long, or in one during which the agent stood still."""
    staged = stage(watched.run, 1, 5, marker=False)
    real = staging_module._look_at

    def slow(root: int, name: str) -> staging_module._Look:
        watched.clock.now += 0.5
        return real(root, name)

    monkeypatch.setattr(staging_module, "_look_at", slow)
    assert watched.look() == []
    for number in range(8):
        assert watched.look(1) == [], "it is written to all the time"
        (staged.path / f"{number}.bin").write_bytes(b"more")
    looks = [watched.look(10) for _ in range(3)]
    assert looks[-1] == [5]


def test_an_exit_of_0_says_nothing_of_a_save_that_it_may_have_cut(watched: Watched) -> None:
    stage(watched.run, 1, 4, marker=False)
    assert watched.look() == []
    assert watched.look(SETTLE) == [4]
    stage(watched.run, 1, 5, marker=False)
    stage(watched.run, 1, 6, marker=False)
    watched.watch.may_be_cut = {"step_4", "step_5"}.__contains__
    assert watched.look(exited=0) == [4, 6]
    assert watched.torn() == ["step_5"]


def test_a_first_one_that_its_trainer_died_over_is_torn(unknown: Watched) -> None:
    stage(unknown.run, 1, 5, marker=False)
    assert unknown.look() == unknown.look(2 * SETTLE) == []
    assert unknown.look(exited=-9) == []
    assert unknown.torn() == ["step_5"]


def test_one_in_doubt_has_to_settle_anew(watched: Watched) -> None:
    stage(watched.run, 1, 5, marker=False)
    assert watched.look() == []
    assert watched.look(SETTLE) == [5]
    watched.watch.doubt("step_5")
    assert watched.look(SETTLE - 1) == []
    assert watched.look(1) == [5]


def test_a_mark_that_an_agent_left_says_nothing_of_the_trainer(unknown: Watched) -> None:
    staged = stage(unknown.run, 1, 5)
    os.utime(staged.path / "COMPLETE", ns=(0, 0))
    assert unknown.look() == [5]
    assert unknown.watch.marks is None
