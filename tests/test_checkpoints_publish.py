"""Publishing: sealed, flushed in order, fenced, never twice, never from a folder that is not what it seems."""

from __future__ import annotations

import errno
import itertools
import json
import mmap
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_kit import FaultyDisk, mine, names, new_run, not_mine, put, stage, take, whole_names

from relay_agent.checkpoints.disk import Disk
from relay_agent.checkpoints.manifest import MANIFEST, read, verify
from relay_agent.checkpoints.publish import Fenced, Torn, Unsettled, publish
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.staging import Staged
from relay_agent.checkpoints.tree import Cancelled
from relay_agent.volume.volume import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return new_run(tmp_path)


def leftovers(run: RunFolder) -> list[str]:
    """What lies about besides checkpoints and pointers."""
    found = [str(path.relative_to(run.ckpt)) for path in (run.ckpt / ".staging").glob("*/*")]
    return sorted(found + [path.name for path in [*run.trash.iterdir(), *run.bad.iterdir()]])


def test_what_was_staged_is_published_whole(run: RunFolder) -> None:
    done = put(run, 1, 500, mode="sft", trainer="launch_sft.sh")
    assert (done.name, done.step, done.files, done.fresh) == ("step_00000500", 500, 2, True)
    assert done.path == run.ckpt / "step_00000500"
    manifest = verify(done.path, run.run_id)
    assert done.bytes == manifest.total_bytes
    assert done.manifest_sha256 == read(done.path).sha256
    assert (manifest.mode, manifest.trainer, manifest.adapter) == ("sft", "launch_sft.sh", "staging")
    assert sorted(path.name for path in done.path.iterdir()) == [MANIFEST, "shard", "weights.bin"]
    assert leftovers(run) == []


def test_each_is_based_on_the_one_before(run: RunFolder) -> None:
    for step in (10, 20, 15):
        put(run, 1, step)
    take(run, 2, "step_00000015")
    put(run, 2, 25)
    manifests = [verify(run.ckpt / name, run.run_id) for name in names(run)]
    assert {manifest.name: (manifest.seq, manifest.base) for manifest in manifests} == {
        "step_00000010": (1, None),
        "step_00000020": (2, "step_00000010"),
        "step_00000015": (3, "step_00000020"),
        "step_00000025": (4, "step_00000015"),
    }


def test_pointers_for_people_follow(run: RunFolder) -> None:
    put(run, 1, 10)
    second = put(run, 1, 20)
    assert (run.ckpt / "latest").readlink() == Path("step_00000020")
    latest = json.loads((run.ckpt / "latest.json").read_bytes())
    assert latest["name"] == "step_00000020"
    assert latest["manifest"] == second.manifest_sha256
    assert not list(run.ckpt.glob(".latest*"))


def test_a_stale_holder_publishes_in_its_own_line_and_moves_no_pointer(run: RunFolder) -> None:
    put(run, 1, 10)
    take(run, 2, "step_00000010")
    put(run, 1, 20)
    assert (run.ckpt / "latest").readlink() == Path("step_00000010")
    assert json.loads((run.ckpt / "latest.json").read_bytes())["name"] == "step_00000010"
    assert verify(run.ckpt / "step_00000020", run.run_id).epoch == 1


@pytest.mark.parametrize("planted", ["folder", "file", "loop", "outside", "nothing"])
def test_pointers_never_fail_a_publish(run: RunFolder, tmp_path: Path, planted: str) -> None:
    latest = run.ckpt / "latest"
    if planted == "folder":
        (latest / "full").mkdir(parents=True)
    elif planted == "file":
        latest.write_text("x")
    elif planted == "loop":
        latest.symlink_to("latest")
    elif planted == "outside":
        (tmp_path / "precious").mkdir()
        latest.symlink_to(tmp_path / "precious")
    put(run, 1, 10)
    assert whole_names(run) == ["step_00000010"]
    if planted == "folder":
        assert (latest / "full").is_dir()
    else:
        assert latest.readlink() == Path("step_00000010")


def test_a_volume_without_links_publishes_all_the_same(run: RunFolder) -> None:
    class NoLinks(Disk):
        def symlink(self, target: str, name: str | Path, *, dir_fd: int | None = None) -> None:
            raise OSError(errno.ENOTSUP, "Operation not supported")

    put(run, 1, 10, disk=NoLinks())
    assert not (run.ckpt / "latest").exists()
    assert json.loads((run.ckpt / "latest.json").read_bytes())["name"] == "step_00000010"


# -- the same step again ---------------------------------------------------------------------------------------------


def test_the_same_again_makes_no_second_copy(run: RunFolder) -> None:
    first = put(run, 1, 500)
    again = put(run, 1, 500)
    assert (again.name, again.manifest_sha256, again.fresh) == (first.name, first.manifest_sha256, False)
    take(run, 2, first.name)
    assert not put(run, 2, 500).fresh, "a resumed trainer may save what it resumed from"
    assert names(run) == ["step_00000500"]
    assert leftovers(run) == []


def test_other_content_is_kept_beside_the_first(run: RunFolder) -> None:
    put(run, 1, 500, "a")
    assert put(run, 1, 500, "b").name == "step_00000500.e00000001"
    assert put(run, 1, 500, "c").name == "step_00000500.e00000001.2"
    take(run, 3, "step_00000500.e00000001.2")
    assert put(run, 3, 500, "d").name == "step_00000500.e00000003"
    assert whole_names(run) == names(run)
    assert len(names(run)) == 4
    newest = choose(run)
    assert newest is not None
    assert newest.name == "step_00000500.e00000003"


def test_rolled_back_to_the_same_bytes_is_newest_again(run: RunFolder) -> None:
    put(run, 1, 500)
    put(run, 1, 600)
    put(run, 1, 500)
    newest = choose(run)
    assert newest is not None
    assert newest.step == 500


def test_a_torn_one_under_that_name_is_no_reason_to_drop_a_whole_one(run: RunFolder) -> None:
    first = put(run, 1, 500)
    os.truncate(first.path / "weights.bin", 10)
    again = put(run, 1, 500)
    assert again.fresh
    assert verify(again.path, run.run_id)


def test_the_same_bytes_off_the_line_do_not_count(run: RunFolder) -> None:
    """A deterministic trainer saves the same bytes as the holder it replaced, who went on unseen."""
    put(run, 1, 100)
    take(run, 2, "step_00000100")
    put(run, 1, 200)
    mine_now = put(run, 2, 200)
    assert mine_now.fresh
    take(run, 3, mine_now.name)
    newest = choose(run)
    assert newest is not None
    assert (newest.name, newest.on_line) == (mine_now.name, True)


def test_whatever_has_the_name_is_left_alone(run: RunFolder, tmp_path: Path) -> None:
    (run.ckpt / "step_00000001").write_text("a file")
    (run.ckpt / "step_00000002").symlink_to(tmp_path)
    (run.ckpt / "step_00000003").symlink_to("nowhere")
    (run.ckpt / "step_00000004").mkdir()
    for step in (1, 2, 3, 4):
        assert put(run, 1, step).name == f"step_{step:08d}.e00000001"
    assert (run.ckpt / "step_00000001").read_text() == "a file"


def test_a_name_taken_in_the_last_moment_is_left_alone(run: RunFolder) -> None:
    class Rival(Disk):
        """Somebody else's checkpoint appears right before the rename."""

        def rename(self, source: str | Path, target: str | Path, *, dir_fd: int | None = None) -> None:
            if Path(target).name == "step_00000010":
                Path(target).mkdir()
                (Path(target) / "theirs").touch()
            super().rename(source, target, dir_fd=dir_fd)

    done = put(run, 1, 10, disk=Rival())
    assert done.name == "step_00000010.e00000001"
    assert verify(done.path, run.run_id).name == done.name
    assert [path.name for path in (run.ckpt / "step_00000010").iterdir()] == ["theirs"]


# -- refusals --------------------------------------------------------------------------------------------------------


def test_fenced_it_publishes_nothing_and_keeps_what_was_staged(run: RunFolder) -> None:
    staged = stage(run, 1, 10)
    with pytest.raises(Fenced):
        publish(run, staged, 1, not_mine)
    assert names(run) == []
    assert (staged.path / "COMPLETE").exists()


def test_the_fence_is_asked_right_before_the_rename(run: RunFolder) -> None:
    disk = FaultyDisk()
    seen: list[list[str]] = []

    def still_mine() -> bool:
        seen.append(list(disk.calls))
        return True

    publish(run, stage(run, 1, 10), 1, still_mine, disk=disk)
    rename = next(number for number, call in enumerate(disk.calls) if call.endswith("ckpt/step_00000010"))
    assert len(seen[-1]) == rename, "no call may lie between the last answer and the rename"


def answers(*values: bool) -> Iterator[bool]:
    yield from values


def test_fenced_between_seal_and_rename(run: RunFolder) -> None:
    staged = stage(run, 1, 10)
    said = answers(True, False)
    with pytest.raises(Fenced):
        publish(run, staged, 1, lambda: next(said))
    assert names(run) == []
    assert publish(run, staged, 1, mine).name == "step_00000010", "with the lease back it can be tried again"


def test_cancelled_anywhere_it_leaves_the_line_and_what_was_staged(run: RunFolder) -> None:
    put(run, 1, 10)
    staged = stage(run, 1, 20)
    (staged.path / "shard" / "0.bin").write_bytes(bytes(3 << 20))
    looks = 0
    while True:
        left = looks

        def check() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Cancelled

        try:
            publish(run, staged, 1, mine, check=check)
            break
        except Cancelled:
            looks += 1
            assert names(run) == ["step_00000010"]
            assert (staged.path / "COMPLETE").exists()
    assert looks == 4 + 2, "a chunk each, and a file each for its form"
    assert whole_names(run) == ["step_00000010", "step_00000020"]


def test_what_can_be_no_checkpoint_is_torn(run: RunFolder, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not the trainer's")
    spoils = {
        1: lambda path: (path / "link").symlink_to(secret),
        2: lambda path: os.mkfifo(path / "pipe"),
        3: lambda path: (path / "shard").rename(path / "was") and (path / "shard").symlink_to(tmp_path),
        4: lambda path: (path / MANIFEST).write_text('{"the trainer\'s": "own"}'),
        5: lambda path: Path(os.fsdecode(os.fsencode(path) + b"/\xff\xfe")).touch(),
        6: lambda path: [os.truncate(path / name, 0) for name in ("weights.bin", "shard/0.bin")],
        7: lambda path: (path / MANIFEST).symlink_to(secret),
    }
    for step, spoil in spoils.items():
        staged = stage(run, 1, step)
        spoil(staged.path)
        with pytest.raises(Torn):
            publish(run, staged, 1, mine)
    assert names(run) == []
    assert secret.read_text() == "not the trainer's"


def test_a_staged_folder_that_is_a_link_is_not_followed(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "w").write_bytes(b"w")
    link = run.staging(1) / "step_5"
    link.symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="Not a directory"):
        publish(run, Staged(5, link), 1, mine)
    assert names(run) == []


@pytest.mark.parametrize("change", ["rewrite", "add", "remove", "swap"])
def test_a_folder_that_somebody_still_writes_to_waits(run: RunFolder, change: str) -> None:
    staged = stage(run, 1, 10)
    weights = staged.path / "weights.bin"

    def write() -> bool:
        """The fence is asked late: what happens then, happens while one publishes."""
        if change == "rewrite":
            weights.write_bytes(b"x" * weights.stat().st_size)
            os.utime(weights, (1, 1))
        elif change == "add":
            (staged.path / "late").touch()
        elif change == "remove":
            weights.unlink()
        else:
            (staged.path / "new").write_bytes(weights.read_bytes())
            (staged.path / "new").replace(weights)
        return True

    with pytest.raises(Unsettled):
        publish(run, staged, 1, write)
    assert names(run) == []


def test_a_file_with_a_second_name_gets_its_own_bytes(run: RunFolder) -> None:
    """Trainers that keep `latest.pt` as a hard link rewrite it in place."""
    staged = stage(run, 1, 10)
    own = run.output(1) / "latest.pt"
    os.link(staged.path / "weights.bin", own)
    done = publish(run, staged, 1, mine)
    own.write_bytes(b"the next step's")
    assert verify(done.path, run.run_id)


def test_a_failed_flush_is_no_checkpoint(run: RunFolder) -> None:
    counted = FaultyDisk()
    put(run, 1, 1, disk=counted)
    rename = next(number for number, call in enumerate(counted.calls) if call.endswith("ckpt/step_00000001"))
    flushes = [number for number, call in enumerate(counted.calls[:rename]) if call.startswith("fsync")]
    assert len(flushes) >= 5
    for step, number in enumerate(flushes, start=2):
        with pytest.raises(OSError, match="Input/output"):
            put(run, 1, step, disk=FaultyDisk(number, lambda: OSError(errno.EIO, "Input/output error")))
    assert names(run) == ["step_00000001"]


def test_a_staging_folder_that_goes_right_after_it_takes_nothing_along(run: RunFolder) -> None:
    """Its trainer clears it before each save."""

    class Clears(Disk):
        def rename(self, source: str | Path, target: str | Path, *, dir_fd: int | None = None) -> None:
            super().rename(source, target, dir_fd=dir_fd)
            if Path(target).parent == run.ckpt:
                run.staging(1).rmdir()

    done = publish(run, stage(run, 1, 10), 1, mine, disk=Clears())
    assert verify(done.path, run.run_id)


# -- order -----------------------------------------------------------------------------------------------------------


def test_everything_is_flushed_before_it_is_relied_on(run: RunFolder) -> None:
    disk = FaultyDisk()
    staged = stage(run, 1, 10)
    publish(run, staged, 1, mine, disk=disk)

    def at(call: str) -> int:
        return disk.calls.index(call)

    private = staged.path
    manifest = at(f"rename .{MANIFEST}.tmp {MANIFEST}")
    commit = at(f"rename {private} {run.ckpt / 'step_00000010'}")
    for path in ("weights.bin", "shard/0.bin", "shard"):
        assert at(f"fsync {private / path}") < manifest
    assert at(f"fsync {private}/.{MANIFEST}.tmp") < manifest < at(f"fsync {private}") < commit
    assert commit < at(f"fsync {run.ckpt}") < at(f"rename {run.ckpt}/.latest.{os.getpid()}.tmp {run.ckpt}/latest")


def test_who_writes_through_a_map_is_noticed_where_it_only_seemed_whole(run: RunFolder) -> None:
    """The file's time does not move."""
    staged = replace(stage(run, 1, 5, marker=False), settled=True)
    weights = staged.path / "weights.bin"
    weights.write_bytes(b"x" * 8192)
    before = weights.stat().st_mtime_ns
    with weights.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        writes = itertools.count(1)

        def still_at_it() -> None:
            mapped[4096] = next(writes) % 256
            os.utime(weights, ns=(before, before))

        with pytest.raises(Unsettled):
            publish(run, staged, 1, mine, check=still_at_it)
    assert staged.path.exists()
    assert names(run) == []
    assert publish(run, staged, 1, mine).fresh, "once it is left alone"


def test_only_what_merely_settled_is_read_twice(run: RunFolder) -> None:
    reads = []
    for step, settled in ((5, False), (6, True)):
        chunks = itertools.count()
        publish(run, replace(stage(run, 1, step), settled=settled), 1, mine, check=lambda c=chunks: next(c) and None)
        reads.append(next(chunks))
    forms = 2  # files, whose ends are looked at once
    assert reads[1] - forms == 2 * (reads[0] - forms) > 0
