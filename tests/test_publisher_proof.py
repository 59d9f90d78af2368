"""What proves a save whole at the end of its trainer: a mark, an exit, and how that came about."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from checkpoint_kit import mine, new_run, stage, take
from publisher_kit import Rig, refuses

from relay_agent.checkpoints import begun
from relay_agent.checkpoints import publisher as publisher_module
from relay_agent.checkpoints.exit_word import recorded_end
from relay_agent.checkpoints.heard import HEARD_WITHIN
from relay_agent.checkpoints.manifest import read
from relay_agent.checkpoints.salvage import Salvage
from relay_agent.checkpoints.staging import UNKNOWN_END


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(new_run(tmp_path))


async def test_where_a_mark_is_demanded_that_is_why_one_without_it_is_not_published(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """No other of the run had one."""
    publisher = rig.publisher(marks=True)
    stage(rig.run, 1, 20, marker=False)
    for _ in rig.clock.watch(100):
        await publisher.look()
    words = "step_20 has no COMPLETE, which COMPLETE_MARKER=always wants: it is not published before it has"
    assert rig.told.events == [("checkpoint.unmarked", words)]
    assert words in capsys.readouterr().err
    await publisher.finish(0)
    assert rig.told.steps == []
    ((_, torn),) = rig.told.events[1:]
    assert torn.endswith("the trainer exited and had not written COMPLETE into it, which COMPLETE_MARKER=always wants")


async def test_what_a_trainer_of_this_run_marked_once_is_not_published_unmarked(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in a later attempt; it is said once; and a trainer of another name is another one."""
    publisher = rig.publisher()
    stage(rig.run, 1, 1)
    await publisher.look()
    later = rig.publisher()
    stage(rig.run, 1, 2, marker=False)
    for _ in rig.clock.watch(100):
        await later.look()
    assert rig.told.steps == [1]
    assert rig.told.kinds() == ["checkpoint.unmarked"]
    assert capsys.readouterr().err.count("step_2 has no COMPLETE") == 1
    other = rig.publisher()
    other._trainer = "another trainer"
    for _ in rig.clock.watch(62):
        await other.look()
    assert rig.told.steps == [1, 2]


async def test_a_trainer_that_marks_none_is_known_in_the_next_attempt(rig: Rig) -> None:
    publisher = rig.publisher()
    for step in (1, 2):
        stage(rig.run, 1, step, marker=False)
        for _ in rig.clock.watch(6):
            await publisher.look()
    assert sorted(rig.told.steps) == [1, 2]
    later = rig.publisher()
    stage(rig.run, 1, 3, marker=False)
    for _ in rig.clock.watch(6):
        await later.look()
    assert rig.told.steps[-1] == 3


async def test_a_mark_of_ours_does_not_teach_the_next_attempt_that_the_trainer_marks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The volume was full to the end: the agent marks what is whole for who comes next. If that counted as the
    trainer's own, none of its later checkpoints, which have none, would be published while it lives."""
    monkeypatch.setattr(publisher_module, "ROOM_WITHIN", 0.0)
    refuses(monkeypatch, 1, lambda: OSError(errno.ENOSPC, "No space left on device"))
    publisher = rig.publisher()
    stage(rig.run, 1, 1, marker=False)
    await publisher.finish(0)
    assert publisher.kept
    take(rig.run, 2)
    (done,) = Salvage(rig.run, 2, mine).work().published
    assert read(done.path).manifest.marks is not True


async def test_of_a_trainer_that_was_asked_to_stop_and_exits_with_0_only_what_it_began_after_is_whole(rig: Rig) -> None:
    publisher = rig.publisher()
    stage(rig.run, 1, 1, marker=False)
    await publisher.look()
    await publisher.trainer_stops()
    stage(rig.run, 1, 3, marker=False)
    await publisher.trainer_stops()  # asked again
    await publisher.finish(0)
    assert rig.told.steps == [3]
    assert (rig.run.bad / "e00000001.step_1").exists()


@pytest.mark.parametrize("how", ["later", "never", "no time"])
async def test_a_save_whose_last_lines_are_not_heard_waits_and_is_not_called_healthy(rig: Rig, how: str) -> None:
    publisher = rig.publisher(patient=lambda: how != "no time")
    answers = False

    async def catch_up() -> bool:
        return answers

    publisher.catch_up = catch_up
    stage(rig.run, 1, 1)
    await publisher.look()
    assert rig.told.steps == ([1] if how == "no time" else [])
    rig.clock.now += HEARD_WITHIN - 1
    await publisher.look()
    assert rig.told.steps == ([1] if how == "no time" else [])
    answers = how == "later"
    rig.clock.now += 1
    await publisher.look()
    assert rig.told.steps == [1]
    assert read(rig.run.ckpt / "step_00000001").manifest.healthy is (how == "later")


async def test_where_only_what_is_healthy_is_wanted_one_that_is_not_known_to_be_stays(rig: Rig) -> None:
    publisher = rig.publisher(patient=lambda: False)
    answers = False

    async def catch_up() -> bool:
        return answers

    publisher.catch_up, publisher.only_healthy = catch_up, True
    stage(rig.run, 1, 1)
    await publisher.look()
    assert rig.told.steps == []
    answers = True
    await publisher.look()
    assert rig.told.steps == [1]


async def test_an_exit_with_0_before_the_last_step_proves_no_save_of_before_it(rig: Rig) -> None:
    """Its launcher was told to stop by somebody else, say, and it ended in the middle of a save."""
    publisher = rig.publisher()
    stage(rig.run, 1, 2, marker=False)
    await publisher.finish(0, lambda step: step >= 100)
    assert rig.told.steps == []
    assert "exited with 0, but before its last step" in publisher.unpublished(2)
    assert (rig.run.bad / "e00000001.step_2").exists()


async def test_an_exit_with_0_after_a_save_of_the_last_step_is_its_end(rig: Rig) -> None:
    """Whatever it printed."""
    publisher = rig.publisher()
    stage(rig.run, 1, 50, marker=False)
    stage(rig.run, 1, 100, marker=False)
    await publisher.finish(0, lambda step: step >= 100)
    assert rig.told.steps == [100]


async def test_beside_a_kill_for_want_of_memory_it_proves_none_and_that_is_said(rig: Rig) -> None:
    publisher = rig.publisher()
    stage(rig.run, 1, 2, marker=False)
    await publisher.finish(0, leftovers=1, oom=True)
    assert rig.told.steps == []
    words = "exited with 0, but the kernel had killed something for want of memory, maybe in the middle of a save"
    assert words in publisher.unpublished(2)
    assert (rig.run.bad / "e00000001.step_2").exists()


async def test_one_of_long_before_its_end_does_not_count(rig: Rig) -> None:
    publisher = rig.publisher()
    stage(rig.run, 1, 2, marker=False)
    await publisher.finish(0, oom=True)
    assert rig.told.steps == [2]


@pytest.mark.parametrize(
    ("stopped", "leftovers", "why"), [(True, 0, "as it was stopped"), (False, 1, "one of its processes")]
)
async def test_an_exit_with_0_of_one_that_was_stopped_somehow_proves_no_save(
    rig: Rig, stopped: bool, leftovers: int, why: str
) -> None:
    """By its guardian for want of an agent; or a process of it, which may have been saving."""
    publisher = rig.publisher()
    stage(rig.run, 1, 2, marker=False)
    await publisher.finish(0, stopped=stopped, leftovers=leftovers)
    assert rig.told.steps == []
    assert f"exited with 0, but {why}" in publisher.unpublished(2)
    assert (rig.run.bad / "e00000001.step_2").exists()


@pytest.mark.parametrize("marks", [None, False, True])
async def test_it_is_known_whether_a_save_is_to_keep_still(rig: Rig, marks: bool | None) -> None:
    publisher = rig.publisher(marks=marks)
    assert publisher.undecided, "nobody has looked yet"
    await publisher.look()
    assert not publisher.undecided
    stage(rig.run, 1, 1, marker=False)
    await publisher.look()
    assert publisher.undecided is not marks
    for _ in rig.clock.watch(5.0 if marks is False else 60.0):
        await publisher.look()
    await publisher.look()
    assert not publisher.undecided
    assert rig.told.steps == ([] if marks else [1])


async def test_what_began_after_the_stop_is_not_whole_where_processes_were_left(rig: Rig) -> None:
    publisher = rig.publisher()
    await publisher.trainer_stops()
    stage(rig.run, 1, 1, marker=False)
    await publisher.finish(0, stopped=True, leftovers=2)
    assert rig.told.steps == []


@pytest.mark.parametrize("word", ["0 order", "0 leftovers", "0 orphan", "0", "", None])
async def test_a_guardians_word_says_whether_it_was_asked(rig: Rig, word: str | None) -> None:
    """By an agent before this one, or by its guardian while there was none."""
    if word is not None:
        rig.run.log(1).with_suffix(".exit").write_text(f"{word}\n")
    publisher = rig.publisher()
    stage(rig.run, 1, 1, marker=False)
    await publisher.finish(0)
    by_itself = len((word or "").split()) < 2
    assert (rig.told.steps == [1]) is by_itself
    assert recorded_end(rig.run, 1) == (0 if word == "0" else UNKNOWN_END)


async def test_where_the_volume_does_not_answer_any_save_may_be_cut(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(root: Path) -> list[str]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(begun, "_listed", hangs)
    publisher = rig.publisher()
    await publisher.trainer_stops()
    stage(rig.run, 1, 1, marker=False)
    await publisher.finish(0)
    assert rig.told.steps == []
