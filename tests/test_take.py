"""Taking from the trainer's own folder: never torn, never twice, never by touching what is the trainer's."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checkpoint_kit import Crash, FaultyDisk, ObjectDisk
from taking_kit import SETTLE, Taker, contents, in_memory, never_torn, state
from writers import hf_trainer, megatron, single_file, staging
from writers.kit import Steps, run, torch_zip

from relay_agent.checkpoints import adapters
from relay_agent.checkpoints.bring import Bringer
from relay_agent.checkpoints.disk import Disk, folder
from relay_agent.checkpoints.line import published
from relay_agent.checkpoints.manifest import verify
from relay_agent.checkpoints.salvage import Salvage
from relay_agent.checkpoints.tree import Torn, Unsettled, never, walk
from relay_agent.volume.volume import Claim, claim


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=in_memory(tmp_path)) as path:
        yield Path(path)


def hf_whole(out: Path, step: int) -> dict[str, bytes]:
    return contents(out / f"checkpoint-{step}")


def megatron_whole(out: Path, step: int) -> dict[str, bytes]:
    found = {f"iter_{step:07d}/{name}": data for name, data in contents(out / f"iter_{step:07d}").items()}
    state = out / "rollout" / f"global_dataset_state_dict_{step}.pt"
    if state.exists():
        found[f"rollout/{state.name}"] = state.read_bytes()
    return found | {megatron.TRACKER: str(step).encode()}


def ranks_of_two(out: Path, step: int) -> Steps:
    return hf_trainer.save(out, step, ranks=2)


def slime(out: Path, step: int) -> Steps:
    return megatron.save(out, step, slime=True)


@pytest.mark.parametrize(
    ("kind", "save", "whole"),
    [
        ("hf_trainer", hf_trainer.save, hf_whole),
        ("hf_trainer", ranks_of_two, hf_whole),
        ("megatron", megatron.save, megatron_whole),
        ("megatron", megatron.save_legacy, megatron_whole),
        ("megatron", slime, megatron_whole),
        ("single_file", single_file.save, lambda out, step: contents(out)),
    ],
)
def test_whenever_it_dies_nothing_torn_is_published(
    place: Path,
    kind: str,
    save: Callable[[Path, int], Steps],
    whole: Callable[[Path, int], dict[str, bytes]],
) -> None:
    def one(out: Path, step: int) -> dict[str, bytes]:
        return {name: data for name, data in whole(out, step).items() if step in (1, 2)}

    assert 2 in never_torn(place, save, one, kinds=(adapters.BY_NAME[kind],))


def test_a_trainer_that_deletes_while_one_looks(place: Path) -> None:
    seen = never_torn(place, hf_trainer.save, hf_whole, after=hf_trainer.rotate, kinds=adapters.KINDS)
    assert seen == {1, 2}


# -- how it comes ------------------------------------------------------------------------------------------------


class Reflinks(Disk):
    """A filesystem that has them, in effect."""

    def clone(self, source: int, target: int) -> None:
        os.write(target, os.pread(source, 1 << 20, 0))


class Nothing(Disk):
    """One that can do nothing but read and write."""

    def clone(self, source: int, target: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    def link_at(self, source: str, source_fd: int, target: str, target_fd: int) -> None:
        raise OSError(errno.EPERM, "not permitted")

    def copy(self, source: int, target: int, count: int) -> int:
        raise OSError(errno.EXDEV, "cross-device")


class Told(Disk):
    """Without reflinks; remembers what was to be brought to the disk, and what was waited for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int, int]] = []

    def clone(self, source: int, target: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    def write_back(self, fd: int, start: int, count: int) -> None:
        self.calls.append(("write back", str(Path(f"/proc/self/fd/{fd}").readlink()), start, count))
        super().write_back(fd, start, count)

    def fsync(self, fd: int) -> None:
        self.calls.append(("fsync", str(Path(f"/proc/self/fd/{fd}").readlink()), 0, 0))
        super().fsync(fd)


def test_the_disk_begins_to_write_a_copy_before_all_of_it_is_there(place: Path) -> None:
    size = (20 << 20) + 5
    (place / "weights").write_bytes(b"x" * size)
    (place / "new").mkdir()
    disk = Told()
    with folder(place) as root:
        (found,) = walk(root).files
        Bringer(root, place / "new", size, True, never, disk).bring("weights", found)
    began = [call for call in disk.calls if call[1] == str(place / "new" / "weights")]
    assert [(what, start, count) for what, _, start, count in began] == [
        ("write back", 0, 16 << 20),
        ("write back", 16 << 20, size - (16 << 20)),
        ("fsync", 0, 0),
    ]
    assert (place / "new" / "weights").read_bytes() == b"x" * size


@pytest.mark.parametrize(("disk", "ways"), [(Reflinks(), ("reflink",)), (Nothing(), ("copy",)), (Disk(), None)])
def test_the_cheapest_way_that_works(place: Path, disk: Disk, ways: tuple[str, ...] | None) -> None:
    taker = Taker(place, disk=disk)
    run(hf_trainer.save(taker.out, 5))
    before = state(taker.out)
    (taken,) = taker.look()
    assert taken.ways == ways or (ways is None and taken.ways in (("reflink",), ("hard link",)))
    assert [done.step for done in taker.publish()] == [5]
    assert contents(taker.run.ckpt / "step_00000005") == hf_whole(taker.out, 5)
    assert state(taker.out) == before
    assert taker.adapters() == {"hf_trainer"}


def test_what_was_linked_is_not_copied_again(place: Path) -> None:
    """And that its trainer deletes the other name meanwhile changes nothing."""
    taker = Taker(place)
    run(hf_trainer.save(taker.out, 5))
    (taken,) = taker.look()
    if taken.ways != ("hard link",):
        pytest.skip("this filesystem has reflinks")
    inode = (taker.out / "checkpoint-5" / "optimizer.pt").stat().st_ino
    shutil.rmtree(taker.out / "checkpoint-5")
    (done,) = taker.publish()
    assert (done.path / "optimizer.pt").stat().st_ino == inode
    verify(done.path)


def test_what_is_written_in_place_is_never_linked(place: Path) -> None:
    taker = Taker(place)
    run(single_file.save(taker.out, 5))
    (taken,) = taker.look()
    assert "hard link" not in taken.ways
    (done,) = taker.publish()
    run(single_file.save(taker.out, 6))
    verify(done.path)
    assert taker.steps() == [6]
    assert [sealed.manifest.step for sealed in sorted(published(taker.run)[0], key=lambda one: one.manifest.seq)] == [
        5,
        6,
    ]


class Meddling(Disk):
    """Something happens in the trainer's folder in the middle of a taking."""

    def __init__(self, what: Callable[[], object]) -> None:
        self.what: Callable[[], object] | None = what

    def set_time(self, fd: int, mtime_ns: int) -> None:
        if self.what is not None:
            what, self.what = self.what, None
            what()
        super().set_time(fd, mtime_ns)

    def clone(self, source: int, target: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    def link_at(self, source: str, source_fd: int, target: str, target_fd: int) -> None:
        raise OSError(errno.EPERM, "not permitted")


@pytest.mark.parametrize(
    "meddle",
    [
        lambda path: (path / "optimizer.pt").write_bytes(torch_zip("other", size=4096)),
        lambda path: (path / "trainer_state.json").unlink(),
        lambda path: (path / "more.bin").write_bytes(b"more"),
        lambda path: shutil.rmtree(path),
        lambda path: path.rename(path.with_name("gone")),
        lambda path: (path / "scheduler.pt").rename(path / "training_args.bin"),
    ],
)
def test_what_changes_or_vanishes_while_it_is_taken_is_dropped(place: Path, meddle: Callable[[Path], object]) -> None:
    taker = Taker(place, kinds=(adapters.BY_NAME["hf_trainer"],))
    run(hf_trainer.save(taker.out, 5))
    taker.disk = Meddling(lambda: meddle(taker.out / "checkpoint-5"))
    taker.begin()
    taker.watch._seen = {}
    (ready,) = taker.watch.scan()
    with pytest.raises(Unsettled):
        taker.watch.take(ready)
    assert [path.name for path in taker.staging.iterdir() if path.name != ".seen.json"] == []


def test_no_room_is_said_before_the_first_byte(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taker = Taker(place, disk=Nothing())
    run(hf_trainer.save(taker.out, 5))
    with (taker.out / "checkpoint-5" / "sparse.dat").open("wb") as file:
        file.truncate(1 << 40)
        file.write(b"x")
    (ready,) = taker.watch.scan()
    with pytest.raises(OSError, match="No space") as caught:
        taker.watch.take(ready)
    assert caught.value.errno == errno.ENOSPC


# -- once, and only this attempt's -------------------------------------------------------------------------------


def test_none_is_taken_twice(place: Path) -> None:
    taker = Taker(place)
    run(hf_trainer.save(taker.out, 5))
    assert taker.steps() == [5]
    assert taker.steps(60) == []
    taker.begin()  # another agent goes on with the attempt
    assert taker.steps(60, 0) == []
    shutil.rmtree(taker.out / "checkpoint-5")
    run(hf_trainer.save(taker.out, 5, seed="again"))
    assert taker.steps() == [5], "saved again, as after a rollback"
    assert len(published(taker.run)[0]) == 2


def test_what_lay_there_before_is_not_this_attempts(place: Path) -> None:
    taker = Taker(place)
    run(hf_trainer.save(taker.out, 5))
    run(single_file.save(taker.out, 5))
    (taker.staging / ".seen.json").unlink()
    taker.begin()
    assert taker.before == ["checkpoint-5", "ckpt.pt"]
    assert taker.steps(60, 0) == []
    run(single_file.save(taker.out, 6))
    assert taker.steps() == [6], "what was seeded is written again: that is a save"


def test_it_is_known_whether_one_is_to_keep_still(place: Path) -> None:
    taker = Taker(place)
    taker.look()
    assert taker.watch.waiting == []
    (taker.out / "last.bin").write_bytes(b"nothing marks its end")
    taker.look()
    assert taker.watch.waiting == ["last.bin"]
    assert len(taker.look(SETTLE)) == 1
    taker.look()
    assert taker.watch.waiting == []
    (taker.out / "checkpoint-9").mkdir()
    (taker.out / "checkpoint-9" / "model.safetensors").write_bytes(b"its mark is missing, however still it keeps")
    taker.look()
    assert taker.watch.waiting == []


def test_two_of_one_step_follow_one_another(place: Path) -> None:
    taker = Taker(place)
    run(hf_trainer.save(taker.out / "a", 5))
    run(hf_trainer.save(taker.out / "b", 5, seed="other"))
    assert taker.steps() == [5]
    assert taker.steps() == [5]
    assert sorted(path.name for path in taker.run.ckpt.glob("step_*")) == ["step_00000005", "step_00000005.e00000001"]


def test_the_step_that_nothing_tells_is_the_trainers_last(place: Path) -> None:
    taker = Taker(place)
    (taker.out / "last.pt").write_bytes(torch_zip("x"))
    assert taker.steps() == [77]


# -- what is none ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: (path / "optimizer.pt").write_bytes(b"\0" * 4096), "zeros"),
        (lambda path: (path / "model.safetensors").write_bytes(b""), "empty"),
        (lambda path: os.truncate(path / "optimizer.pt", 3000), "end record"),
        (lambda path: (path / "link").symlink_to("/etc/passwd"), "a symbolic link"),
        (lambda path: os.mkfifo(path / "fifo"), "a FIFO"),
        (lambda path: (path / "manifest.json").write_text("{}"), "manifest.json of its own"),
        (lambda path: (path / os.fsdecode(b"\xff")).write_text("x"), "not UTF-8"),
    ],
)
def test_damaged_ones_are_not_taken_and_said_why(place: Path, spoil: Callable[[Path], object], why: str) -> None:
    taker = Taker(place, kinds=(adapters.BY_NAME["hf_trainer"],))
    run(hf_trainer.save(taker.out, 5))
    spoil(taker.out / "checkpoint-5")
    assert taker.look() == []
    assert taker.look(60) == []
    (doubt,) = taker.watch.doubts()
    assert why in doubt.why
    assert [path.name for path in taker.staging.iterdir() if path.name != ".seen.json"] == []


def test_what_was_torn_is_looked_at_again_when_it_changed(place: Path) -> None:
    taker = Taker(place)
    run(hf_trainer.save(taker.out, 5))
    whole = (taker.out / "checkpoint-5" / "optimizer.pt").read_bytes()
    (taker.out / "checkpoint-5" / "optimizer.pt").write_bytes(whole[:-1])
    assert taker.look() == []
    (taker.out / "checkpoint-5" / "optimizer.pt").write_bytes(whole)
    assert taker.steps() == [5]


def test_many_files_and_a_folder_that_is_gone(place: Path) -> None:
    taker = Taker(place)
    for number in range(3000):
        (taker.out / f"sample-{number}.txt").touch()
    run(hf_trainer.save(taker.out, 5))
    assert taker.steps() == [5]
    shutil.rmtree(taker.out)
    assert taker.steps(60) == []
    assert taker.steps(60, 0) == []


# -- the world ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("save", [staging.save, single_file.save])
def test_a_crash_while_taking_leaves_nothing_to_be_taken_for_whole(
    place: Path, save: Callable[[Path, int], Steps], atomic: bool
) -> None:
    """At every call, and halfway through each write: the next agent of the attempt takes it; or the next attempt finds
    it whole or nothing."""
    kind = FaultyDisk if atomic else ObjectDisk
    counted = kind()
    taker = Taker(place / "counted", atomic=atomic, disk=counted)
    counted.calls.clear()
    run(save(taker.out, 5))
    taker.look()
    count = len(counted.calls)
    assert count > 10
    ended = set()
    for number in range(count + 1):
        for half in (False, True):
            disk = kind()
            taker = Taker(place / f"world-{number}-{half}", atomic=atomic, disk=disk)
            run(save(taker.out, 5))
            disk.at, disk.half = len(disk.calls) + number, half
            try:
                taker.look()
            except Crash:
                ended.add(number)
            wanted = contents(taker.out / "step_5", ("COMPLETE",)) or contents(taker.out)
            if half:  # another attempt
                claim(taker.run, Claim(2, "pod-2", "incarnation-2", None, "config", 1.7e9))
                Salvage(taker.run, 2, lambda: True).work()
                assert not taker.staging.exists() or list(taker.staging.iterdir()) == []
            else:  # another agent of this one
                taker.disk = Disk()
                taker.begin()
                taker.steps(0.5)
                taker.steps(0.5)
                assert [sealed.manifest.step for sealed in published(taker.run)[0]] == [5], disk.calls[-1]
                assert all(".seen.json" in path.name for path in taker.staging.iterdir())
            for sealed in published(taker.run)[0]:
                verify(sealed.path)
                assert contents(sealed.path) == wanted
                assert sealed.manifest.adapter in ("staging", "single_file")
            shutil.rmtree(taker.run.root.parents[1])
    assert len(ended) == count


def test_a_refusal_while_taking_leaves_nothing(place: Path) -> None:
    counted = FaultyDisk()
    taker = Taker(place / "counted", disk=counted)
    counted.calls.clear()
    run(single_file.save(taker.out, 5))
    taker.look()
    count = len(counted.calls)
    for number in range(count):
        disk = FaultyDisk(fault=lambda: OSError(errno.EIO, "refused"))
        taker = Taker(place / f"world-{number}", disk=disk)
        run(single_file.save(taker.out, 5))
        disk.at = len(disk.calls) + number
        (ready,) = taker.watch.scan()
        try:
            taker.watch.take(ready)
        except Torn as torn:
            pytest.fail(f"a refusal is no damage: {torn}")
        except OSError:
            pass
        assert taker.steps(0.5) == [5], disk.calls[disk.at]
        shutil.rmtree(taker.run.root.parents[1])


def test_what_is_saved_again_under_its_name_is_copied_from_then_on(place: Path) -> None:
    """A script that trains twice into one folder writes over its own checkpoints."""
    taker = Taker(place)
    run(hf_trainer.save(taker.out, 5))
    (taken,) = taker.look()
    taker.publish()
    run(hf_trainer.save(taker.out, 5, seed="again"))
    (again,) = taker.look()
    assert "hard link" not in again.ways
    assert taken.ways != again.ways or "reflink" in taken.ways


def test_an_inode_that_changes_by_itself_makes_no_new_save(place: Path) -> None:
    """As on mounts that number their files anew whenever they forgot them."""
    taker = Taker(place, atomic=False)
    run(hf_trainer.save(taker.out, 5))
    assert taker.steps() == [5]
    state_file = taker.out / "checkpoint-5" / "trainer_state.json"
    info = state_file.stat()
    data = state_file.read_bytes()
    state_file.unlink()
    (taker.out / "keeps the inode").touch()
    state_file.write_bytes(data)
    os.utime(state_file, ns=(info.st_mtime_ns, info.st_mtime_ns))
    assert taker.steps(60) == []


def test_a_note_that_finds_no_room_undoes_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taker = Taker(place)
    run(hf_trainer.save(taker.out, 5))

    def refuses(*rest: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("relay_agent.checkpoints.output_watch.replace_file", refuses)
    assert taker.steps() == [5]
    assert taker.steps(60) == []
