"""What a new holder resumes from: the newest whole one of the line, by claims and manifests alone."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from checkpoint_kit import RUN, mine, names, new_run, put, stage, take

from relay_agent.checkpoints.disk import Disk
from relay_agent.checkpoints.line import survey
from relay_agent.checkpoints.manifest import MANIFEST, verify
from relay_agent.checkpoints.prune import prune
from relay_agent.checkpoints.publish import publish
from relay_agent.checkpoints.resume import Resume, choose, remains
from relay_agent.checkpoints.staging import StagingWatch
from relay_agent.checkpoints.tree import Unreadable
from relay_agent.volume.volume import RunFolder, highest_claim, open_run
from relaytui.wire.clock import SystemClock


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return new_run(tmp_path)


def chosen(run: RunFolder) -> Resume:
    resume = choose(run)
    assert resume is not None
    assert verify(resume.path, run.run_id).step == resume.step
    return resume


def break_(path: Path) -> None:
    os.truncate(path / "weights.bin", 10)


def test_nothing_there_is_a_cold_start(run: RunFolder) -> None:
    assert choose(run) is None


def test_the_last_published_not_the_highest_step(run: RunFolder) -> None:
    for step in (100, 9, 10, 2):
        put(run, 1, step)
    resume = chosen(run)
    assert (resume.step, resume.epoch, resume.on_line, resume.bad) == (2, 1, True, ())
    assert resume.path.is_absolute()


def test_times_names_and_pointers_decide_nothing(run: RunFolder) -> None:
    put(run, 1, 10)
    put(run, 1, 20)
    os.utime(run.ckpt / "step_00000010", (4e9, 4e9))
    (run.ckpt / "latest").unlink()
    (run.ckpt / "latest").symlink_to("step_00000010")
    (run.ckpt / "latest.json").write_text('{"name": "step_00000010"}')
    assert chosen(run).step == 20


def test_a_copy_is_as_good_as_what_was_copied(run: RunFolder, tmp_path: Path) -> None:
    """Of the folder of a run onto another volume, by whatever copies bytes: times, links and order are not kept."""
    for step in (10, 20, 30):
        put(run, 1, step)
    take(run, 2, "step_00000030")
    put(run, 2, 40)
    files = [path for path in run.root.rglob("*") if path.is_file() and not path.is_symlink()]
    copied = tmp_path / "elsewhere" / "runs" / RUN
    for path in sorted(files, reverse=True):
        target = copied / path.relative_to(run.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    there = open_run(tmp_path / "elsewhere", RUN)
    assert names(there) == names(run)
    assert prune(there, 4) == []
    resume = chosen(there)
    assert (resume.step, resume.bad) == (40, ())
    assert names(there) == names(run)
    assert highest_claim(there) == 2


def test_a_torn_newest_gives_way_and_is_kept_aside(run: RunFolder) -> None:
    put(run, 1, 10)
    break_(put(run, 1, 20).path)
    (put(run, 1, 30).path / MANIFEST).unlink()
    heard: list[tuple[str, str]] = []
    resume = choose(run, lambda name, reason: heard.append((name, reason)))
    assert resume is not None
    assert resume.step == 10
    assert list(resume.bad) == heard
    assert [name for name, _ in heard] == ["step_00000030", "step_00000020"]
    assert "manifest" in heard[0][1]
    assert "weights.bin" in heard[1][1]
    assert sorted(path.name for path in run.bad.iterdir()) == ["step_00000020", "step_00000030"]
    assert names(run) == ["step_00000010"]
    assert chosen(run).bad == (), "said once"


def test_all_torn_is_said_even_though_there_is_nothing_to_resume(run: RunFolder) -> None:
    break_(put(run, 1, 10).path)
    heard: list[str] = []
    assert choose(run, lambda name, _: heard.append(name)) is None
    assert heard == ["step_00000010"]


def test_the_line_goes_through_the_bases_of_the_claims(run: RunFolder) -> None:
    for step in (10, 20, 30):
        put(run, 1, step)
    break_(run.ckpt / "step_00000030")
    take(run, 2, "step_00000020")
    put(run, 1, 40, "by the one that was cut off")
    assert chosen(run).step == 20, "not what the stale holder published"
    put(run, 2, 30, "its own")
    assert chosen(run).epoch == 2
    take(run, 5, "step_00000030.e00000002")
    assert chosen(run).name == "step_00000030.e00000002"
    put(run, 1, 50, "still cut off")
    put(run, 5, 40, "the real one")
    assert chosen(run).name == "step_00000040.e00000005"


def test_back_along_the_line_before_anything_beside_it(run: RunFolder) -> None:
    put(run, 1, 10)
    put(run, 1, 20)
    take(run, 2, "step_00000020")
    put(run, 1, 999, "orphan")
    put(run, 2, 30)
    for expected in (30, 20, 10):
        resume = chosen(run)
        assert (resume.step, resume.on_line) == (expected, True)
        break_(resume.path)
    last = chosen(run)
    assert (last.step, last.on_line) == (999, False)
    break_(last.path)
    assert choose(run) is None


def test_claimed_and_gone_before_it_published_leaves_its_base(run: RunFolder) -> None:
    put(run, 1, 10)
    put(run, 1, 20)
    for epoch in (2, 3, 4):
        take(run, epoch, chosen(run).name)
    assert (chosen(run).step, chosen(run).epoch) == (20, 1)


def test_lost_claims_do_not_lose_checkpoints(run: RunFolder) -> None:
    put(run, 1, 10)
    take(run, 2, "step_00000010")
    put(run, 2, 20)
    put(run, 2, 30)
    (run.claims / "00000002.json").write_bytes(b"")
    assert chosen(run).step == 30
    shutil.rmtree(run.claims)
    open_run(run.root.parents[1], RUN)
    assert chosen(run).step == 30
    assert highest_claim(run) == 2, "what a commander without memory is told: no epoch is used twice"
    take(run, 3, chosen(run).name)
    assert chosen(run).step == 30
    put(run, 3, 25)
    assert chosen(run).step == 25


def test_bases_that_go_in_circles_end(run: RunFolder) -> None:
    put(run, 1, 10)
    take(run, 2, "step_00000010")
    put(run, 2, 20)
    (run.claims / "00000001.json").write_bytes(
        (run.claims / "00000002.json").read_bytes().replace(b'"epoch":2', b'"epoch":1').replace(b"010", b"020")
    )
    assert chosen(run).step == 20


def test_the_name_that_a_claim_rests_on_is_nobody_elses(run: RunFolder) -> None:
    """Its own was damaged and is set aside: of the same name and beside the line, another would be taken for it."""
    put(run, 1, 5)
    take(run, 2, "step_00000005")
    put(run, 2, 6)
    (run.ckpt / "step_00000005" / MANIFEST).write_bytes(b"torn")
    assert chosen(run).name == "step_00000006"
    take(run, 3, "step_00000006")
    late = put(run, 1, 5, "of a holder that was cut off before epoch 2")
    again = put(run, 3, 5, "after a rollback")
    assert (late.name, again.name) == ("step_00000005.e00000001", "step_00000005.e00000003")
    order = survey(run)
    assert [sealed.name for sealed in order.line] == [again.name, "step_00000006"]
    assert [sealed.name for sealed in order.orphans] == [late.name]
    assert [sealed.name for sealed in survey(run, 2).line] == ["step_00000006"]


def test_nothing_rests_on_what_was_published_later(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a volume where such a name was given twice."""
    put(run, 1, 5)
    take(run, 2, "step_00000005")
    put(run, 2, 6)
    (run.ckpt / "step_00000005" / MANIFEST).write_bytes(b"torn")
    take(run, 3, chosen(run).name)
    monkeypatch.setattr("relay_agent.checkpoints.publish.free_name", lambda *_, **__: "step_00000005")
    put(run, 3, 5, "after a rollback")
    assert [sealed.name for sealed in survey(run, 2).line] == ["step_00000006"]
    assert [sealed.name for sealed in survey(run).line] == ["step_00000005", "step_00000006"]


def test_half_written_staging_of_a_dead_pod_is_never_offered(run: RunFolder) -> None:
    put(run, 1, 10)
    stage(run, 1, 20, marker=False)
    stage(run, 1, 30)
    take(run, 2, "step_00000010")
    watch = StagingWatch(run.staging(2), 0.0, SystemClock())
    assert watch.scan() == []
    assert watch.scan(trainer_exited=0) == []
    assert chosen(run).step == 10


def test_strange_names_crash_nothing_and_stay(run: RunFolder, tmp_path: Path) -> None:
    put(run, 1, 10)
    strange = [
        *("step_final", "step_-1", "step_10", "step_9", "step_", "step_00000010.tmp", "step_00000010.e1", "notes"),
        *("step_00000010\n", "step_\x1b[2J00000010", "step_00000010.e00000001.", "step_" + "9" * 60, "..."),
    ]
    for name in strange:
        shutil.copytree(run.ckpt / "step_00000010", run.ckpt / name)
    raw = Path(os.fsdecode(os.fsencode(run.ckpt) + b"/step_\xff\xfe"))
    raw.mkdir()
    resume = chosen(run)
    assert (resume.name, resume.bad) == ("step_00000010", ())
    assert all((run.ckpt / name).exists() for name in strange)
    assert raw.exists()


def test_names_that_could_be_checkpoints_and_are_not_go_aside(run: RunFolder, tmp_path: Path) -> None:
    put(run, 1, 10)
    outside = tmp_path / "outside"
    shutil.copytree(run.ckpt / "step_00000010", outside)
    shutil.copytree(run.ckpt / "step_00000010", run.ckpt / "step_99999999999")
    (run.ckpt / "step_00000011").symlink_to(outside)
    (run.ckpt / "step_00000012").write_text("a file")
    (run.ckpt / "step_00000013").symlink_to("step_00000013")
    (run.ckpt / "step_00000014").mkdir()
    resume = chosen(run)
    assert resume.step == 10
    assert len(resume.bad) == 5
    assert all(reason.isprintable() for _, reason in resume.bad)
    assert len(list(run.bad.iterdir())) == 5
    assert verify_outside(outside)


def verify_outside(outside: Path) -> bool:
    return sorted(path.name for path in outside.iterdir()) == [MANIFEST, "shard", "weights.bin"]


def test_a_checkpoint_of_another_run_is_not_adopted(run: RunFolder) -> None:
    other = open_run(run.root.parents[1], "run-2")
    take(other, 1)
    copied = publish(other, stage(other, 1, 500), 1, mine)
    shutil.copytree(copied.path, run.ckpt / copied.name)
    assert choose(run) is None
    assert "run-2" in choose_reasons(other, run)


def choose_reasons(other: RunFolder, run: RunFolder) -> str:
    """Copied once more, since the first copy went aside: what is said of it."""
    shutil.copytree(other.ckpt / "step_00000500", run.ckpt / "step_00000500")
    reasons: list[str] = []
    choose(run, lambda _, reason: reasons.append(reason))
    return " ".join(reasons)


def test_a_volume_in_trouble_is_no_cold_start(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    put(run, 1, 10)
    newest = put(run, 1, 20)

    def troubled(path: Path, run_id: str | None = None, check: object = None) -> object:
        if path == newest.path or not one_is_fine:
            raise Unreadable("it cannot be read: Stale file handle")
        return verify(path, run_id)

    monkeypatch.setattr("relay_agent.checkpoints.resume.verify", troubled)
    one_is_fine = True
    resume = choose(run)
    assert resume is not None
    assert resume.step == 10
    assert newest.path.exists(), "it may be whole: it stays where it is"
    one_is_fine = False
    with pytest.raises(OSError, match="can be read"):
        choose(run)


def test_what_remains_of_checkpoints_that_are_no_more(run: RunFolder) -> None:
    assert remains(run).traces == (), "a claim alone is no trace"
    put(run, 1, 10)
    assert remains(run).traces == ("ckpt/latest.json",)
    for _ in range(2):
        put(run, 1, 20, "again")
        break_(run.ckpt / "step_00000020")
        chosen(run)
    stage(run, 1, 30).path.rename(run.bad / "e00000001.step_30")
    assert remains(run).aside.keys() == {"step_00000020"}, "what was never published is not missed"
    take(run, 2, "step_00000010")
    assert "the claim of epoch 2, which went on from step_00000010" in remains(run).traces


def test_one_that_cannot_be_moved_is_named_where_it_lies(run: RunFolder) -> None:
    class Stuck(Disk):
        def rename(self, source: str | Path, target: str | Path, *, dir_fd: int | None = None) -> None:
            raise OSError(errno.EXDEV, "Invalid cross-device link")

    put(run, 1, 10)
    break_(put(run, 1, 20).path)
    resume = choose(run, disk=Stuck())
    assert resume is not None
    assert resume.step == 10
    ((name, reason),) = resume.bad
    assert name == "step_00000020"
    assert f"stays in {run.ckpt / name}" in reason
