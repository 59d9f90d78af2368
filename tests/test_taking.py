"""What the agent makes of the trainer's own folder: what it says, when it waits, and what it hands back."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import Crash, FaultyDisk, ManualClock, mine, names, new_run, take
from taking_kit import SETTLE, contents, state
from writers import hf_trainer, megatron, single_file, staging
from writers.kit import run, torch_zip

from relay_agent.checkpoints import adapters, gentle, handing, publisher, salvage
from relay_agent.checkpoints.adapters.base import Adapter, Plan, Put
from relay_agent.checkpoints.disk import Disk
from relay_agent.checkpoints.line import published
from relay_agent.checkpoints.manifest import verify
from relay_agent.checkpoints.publisher import Publisher
from relay_agent.checkpoints.rescue import rescue
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.salvage import Salvage
from relay_agent.checkpoints.taking import RETRY_AFTER, Taking
from relay_agent.checkpoints.tree import Cancelled
from relay_agent.config import load
from relay_agent.output.progress import Progress
from relay_agent.output.recorded import Recorded
from relay_agent.volume.volume import RunFolder


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.steps: list[int] = []

    def published(self, checkpoint: salvage.Published) -> None:
        self.steps.append(checkpoint.step)

    def pruned(self, name: str) -> None:
        pass

    def event(self, kind: str, message: str, data: Mapping[str, str] | None = None) -> None:
        self.events.append((kind, message))

    def said(self, kind: str) -> list[str]:
        return [message for event, message in self.events if event == kind]


class Rig:
    def __init__(self, place: Path, epoch: int = 1, **settings: str) -> None:
        self.run: RunFolder = new_run(place, None)
        take(self.run, epoch)
        self.epoch = epoch
        self.settings = load({"COMMANDER_URL": "http://a:1", **settings})
        self.clock = ManualClock()
        self.told = Told()
        self.hurried = False
        self.step = 77
        self.open()

    def open(self) -> None:
        self.taking = Taking(
            self.settings, self.run, self.epoch, self.clock, self.told, lambda: self.step, self._check
        )  # fmt: skip
        self.publisher = Publisher(
            self.run, self.epoch, "sft", "a trainer", SETTLE, 9, self.clock, self.told,
            taking=self.taking, held=mine, safe=mine, on_fenced=lambda: None,
        )  # fmt: skip
        self.out = self.taking.root

    def _check(self) -> None:
        if self.hurried:
            raise Cancelled

    async def look(self, seconds: float = 0.5) -> list[int]:
        """The steps that were published by it."""
        self.clock.now += seconds
        self.told.steps.clear()
        await self.publisher.look()
        return list(self.told.steps)


# -- into the line -----------------------------------------------------------------------------------------------


async def test_it_is_published_in_the_look_that_sees_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    run(hf_trainer.save(rig.out, 5))
    assert await rig.look() == [5]
    assert len(rig.told.said("checkpoint.adapter")) == 1
    run(hf_trainer.save(rig.out, 6))
    assert await rig.look() == [6]
    assert len(rig.told.said("checkpoint.adapter")) == 1, "a kind is said once"
    assert {sealed.manifest.adapter for sealed in published(rig.run)[0]} == {"hf_trainer"}
    assert {sealed.manifest.marks for sealed in published(rig.run)[0]} == {None}


async def test_what_is_staged_and_what_is_taken_go_side_by_side(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    run(staging.save(rig.run.staging(1), 5))
    run(hf_trainer.save(rig.out, 6))
    assert sorted(await rig.look()) == [5, 6]
    assert {sealed.manifest.adapter for sealed in published(rig.run)[0]} == {"staging", "hf_trainer"}


async def test_none_means_that_nothing_is_looked_for(tmp_path: Path) -> None:
    rig = Rig(tmp_path, CHECKPOINTS="none")
    await rig.taking.prepare(None)
    run(hf_trainer.save(rig.out, 5))
    assert await rig.look() == []
    await rig.publisher.finish(0)
    assert rig.told.events == []


async def test_a_kind_that_is_named_is_the_only_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path, CHECKPOINTS="single_file")
    await rig.taking.prepare(None)
    run(hf_trainer.save(rig.out, 5))
    run(single_file.save(rig.out, 7))
    assert await rig.look() == [7]


async def test_the_last_look_takes_what_is_whole_and_says_what_is_not(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    run(hf_trainer.save(rig.out, 5, ranks=2))
    for done in hf_trainer.save(rig.out, 6):
        if done.startswith("optimizer.pt half"):
            break
    assert await rig.look() == [], "further ranks might still write theirs"
    await rig.publisher.finish(0)
    assert rig.told.steps == [5]
    assert rig.told.said("checkpoint.untaken") == ["checkpoint-6 is not taken: trainer_state.json is not there yet"]
    assert rig.publisher.unpublished(5) == "", "the trainer's end is told by the trainer"


@pytest.mark.parametrize("ends", [True, False])
async def test_what_another_node_writes_to_at_the_end_is_awaited_or_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr("relay_agent.checkpoints.publisher.STILL_PAUSE", 0.0)
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    file = rig.out / "last.bin"
    file.write_bytes(b"some")
    tries = 0

    def writes(*rest: object) -> None:
        nonlocal tries
        tries += 1
        rig.clock.now += 10
        if tries < 4 or not ends:
            file.write_bytes(file.read_bytes() + b" more")

    monkeypatch.setattr("relay_agent.checkpoints.take._check_taken", writes)
    monkeypatch.setattr("relay_agent.checkpoints.take.check_files", writes)
    await rig.publisher.finish(0)
    words = "" if ends else "1 checkpoint could not be published: somebody wrote to it still"
    assert (rig.publisher.unpublished(77), rig.told.steps) == (words, [77] if ends else [])


@pytest.mark.parametrize("room", [True, False])
async def test_of_two_of_one_step_at_the_end_both_come_or_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    for name in ("last.bin", "ckpt.bin"):
        (rig.out / name).write_bytes(name.encode())
    monkeypatch.setattr("relay_agent.checkpoints.publisher.ROOM_PAUSE", (0.0, 0.0))
    real = publisher.publish

    def publishes(*rest: Any, **options: Any) -> salvage.Published:
        rig.clock.now += 30
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*rest, **options)

    monkeypatch.setattr(publisher, "publish", publishes)
    began = rig.clock.now
    await rig.publisher.finish(0)
    assert (rig.told.steps, rig.publisher.kept) == ([77, 77] if room else [], not room)
    assert bool(rig.publisher.unpublished(77)) is not room
    assert rig.clock.now - began <= 60 if room else rig.clock.now - began <= publisher.ROOM_WITHIN + 90


async def test_a_damaged_one_is_said_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    run(hf_trainer.save(rig.out, 5))
    (rig.out / "checkpoint-5" / "optimizer.pt").write_bytes(b"\0" * 4096)
    for _ in range(3):
        assert await rig.look() == []
    (said,) = rig.told.said("checkpoint.untaken")
    assert "checkpoint-5 is not taken" in said
    assert "zeros" in said


async def test_what_keeps_still_only_while_its_trainer_is_stopped_is_not_taken(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    stopped = True
    rig.publisher.heed_frozen(lambda: stopped)
    file = rig.out / "last.bin"
    file.write_bytes(b"half, and nothing marks its end")
    for _ in range(40):
        assert await rig.look() == []
    stopped = False
    file.write_bytes(b"all of it")
    came = [step for _ in range(14) for step in await rig.look()]
    assert came == [77]
    (sealed,) = published(rig.run)[0]
    assert contents(sealed.path) == {"last.bin": b"all of it"}


async def test_a_full_volume_is_said_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    run(single_file.save(rig.out, 5))
    create, full = Disk.create, [True]

    def creates(self: Disk, name: str | Path, **options: object) -> int:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return create(self, name, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Disk, "create", creates)
    assert await rig.look() == []
    assert "ckpt.pt waits, the volume is full" in rig.told.said("checkpoint.no_space")[0]
    assert rig.publisher.kept
    full[0] = False
    assert await rig.look() == [], "not at once"
    assert await rig.look(RETRY_AFTER) == [5]
    assert rig.publisher.unpublished(5) == ""
    assert len(rig.told.said("checkpoint.no_space")) == 1


async def test_a_taking_that_nobody_waits_for_ends(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    run(hf_trainer.save(rig.out, 5))
    rig.hurried = True
    assert await rig.look() == []
    assert sorted(path.name for path in rig.run.staging(1).iterdir()) == [".seen.json"]


async def test_a_folder_of_its_own_and_what_lay_in_it(tmp_path: Path) -> None:
    elsewhere = tmp_path / "workspace" / "out"
    run(hf_trainer.save(elsewhere, 100))
    rig = Rig(tmp_path, CHECKPOINT_DIR=str(elsewhere))
    await rig.taking.prepare(None)
    (said,) = rig.told.said("checkpoint.before")
    assert said.startswith("1 checkpoint in ")
    run(hf_trainer.save(elsewhere, 5))
    assert await rig.look() == [5]
    assert await rig.look(60) == []
    (tmp_path / "other").mkdir()
    below = Rig(tmp_path / "other", CHECKPOINT_DIR="checkpoints/mine")
    assert below.out == below.run.output(1) / "checkpoints" / "mine"


# -- back to the trainer -----------------------------------------------------------------------------------------


async def resumed(rig: Rig) -> tuple[handing.Handed, Path]:
    """As the next attempt is handed it, and its trainer's folder."""
    resume = choose(rig.run)
    assert resume is not None
    take(rig.run, rig.epoch + 1, resume.name)
    rig.epoch += 1
    rig.open()
    before = state(resume.path)
    handed = await rig.taking.prepare(resume)
    assert state(resume.path) == before
    return handed, resume.path


async def test_a_cold_start_has_nothing(tmp_path: Path) -> None:
    assert await Rig(tmp_path).taking.prepare(None) == handing.Handed("", "", ())


async def test_a_path_for_those_that_take_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    run(hf_trainer.save(rig.out, 5))
    await rig.look()
    handed, path = await resumed(rig)
    assert (handed.path, handed.args) == (str(path), f"--resume_from_checkpoint {path}")
    assert (path / "trainer_state.json").exists()
    assert not (rig.run.root / "resume").exists()


async def test_a_parent_with_its_tracker_for_megatron(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    run(megatron.save(rig.out, 19, slime=True))
    await rig.look()
    run(megatron.save(rig.out, 39, slime=True))
    handed, path = await resumed(rig)
    assert handed.args == f"--load {path}"
    assert (path / megatron.TRACKER).read_text() == "19"
    assert (path / "rollout" / "global_dataset_state_dict_19.pt").exists()
    assert (path / "iter_0000019" / ".metadata").exists()


async def test_a_file_where_it_saves_for_nanogpt(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    run(single_file.save(rig.out / "run", 5))
    await rig.look()
    handed, path = await resumed(rig)
    assert handed.path == f"{path}/run/ckpt.pt"
    assert handed.args == "--init_from=resume"
    seeded = rig.out / "run" / "ckpt.pt"
    assert seeded.read_bytes() == (path / "run" / "ckpt.pt").read_bytes()
    assert seeded.stat().st_ino != (path / "run" / "ckpt.pt").stat().st_ino, "the trainer writes to it"
    assert await rig.look(60) == [], "what was put there is none of its doing"
    run(single_file.save(rig.out / "run", 6))
    assert await rig.look() == [6]
    verify(path)


async def test_what_lies_where_one_is_put_is_not_replaced(tmp_path: Path) -> None:
    elsewhere = tmp_path / "out"
    rig = Rig(tmp_path, CHECKPOINT_DIR=str(elsewhere))
    run(single_file.save(elsewhere, 5))
    await rig.look()
    (elsewhere / "ckpt.pt").write_bytes(torch_zip("another"))
    handed, _ = await resumed(rig)
    assert handed.there == ("ckpt.pt",)
    assert (elsewhere / "ckpt.pt").read_bytes() == torch_zip("another")
    assert rig.told.said("resume.unseeded")


@pytest.mark.parametrize("copies", [True, False])
async def test_names_are_laid_out_in_a_folder_of_relays_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: bool
) -> None:
    plan = Plan(
        path="{layout}/checkpoint-5",
        args=("--load", "{layout}", "--out", "{output}"),
        layout=(Put("checkpoint-5"), Put("deep/er/state.json", "trainer_state.json"), Put("latest", text="5")),
        copies=copies,
    )
    rig = Rig(tmp_path)
    run(hf_trainer.save(rig.out, 5, deepspeed=True))
    await rig.look()
    kind = adapters.BY_NAME["hf_trainer"]
    monkeypatch.setattr(adapters, "BY_NAME", {"hf_trainer": replace(kind, resume=plan)})
    handed, path = await resumed(rig)
    layout = handing.resume_folder(rig.run, 2)
    assert handed.path == f"{layout}/checkpoint-5"
    assert handed.args == f"--load {layout} --out {rig.out}"
    assert contents(layout / "checkpoint-5") == contents(path)
    assert (layout / "deep" / "er" / "state.json").read_bytes() == (path / "trainer_state.json").read_bytes()
    assert (layout / "latest").read_text() == "5"
    assert (layout / "checkpoint-5").is_symlink() is not copies
    before = state(path)
    handing.hand_out(rig.run, 3, path, rig.run.output(3))
    assert not layout.exists(), "of attempts that are over"
    assert state(path) == before, "what the links led to is still there"


def test_a_kind_that_this_agent_does_not_know_is_handed_out_as_it_lies(tmp_path: Path) -> None:
    assert adapters.for_resume("of-the-future") == adapters.BY_NAME["staging"]
    assert isinstance(adapters.for_resume("megatron"), Adapter)


# -- what a dead pod left ----------------------------------------------------------------------------------------


def salvaged(rig: Rig, epoch: int = 2) -> Salvage:
    base = choose(rig.run)
    take(rig.run, epoch, base.name if base else None)
    return Salvage(
        rig.run, epoch, mine, rescue=lambda dead: rescue(rig.run, dead, rig.run.output(dead), adapters.KINDS)
    ).work()


async def test_what_it_had_saved_and_nobody_took_is_rescued(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    run(hf_trainer.save(rig.out, 5))
    assert await rig.look() == [5]
    run(hf_trainer.save(rig.out, 6))
    run(hf_trainer.save(rig.out, 7))
    for done in hf_trainer.save(rig.out, 8):
        if done == "trainer_state.json half":
            break
    before = state(rig.out)
    work = salvaged(rig)
    assert [done.step for done in work.published] == [7]
    assert names(rig.run) == ["step_00000005", "step_00000007"]
    assert state(rig.out) == before
    found = {sealed.manifest.step: sealed.manifest for sealed in published(rig.run)[0]}
    assert (found[7].adapter, found[7].saved_by) == ("hf_trainer", 1)
    assert salvaged(rig, 3).published == []


@pytest.mark.parametrize("looks", [2, 1, 0])
async def test_who_takes_over_does_not_say_a_later_step_of_what_was_saved_before(tmp_path: Path, looks: int) -> None:
    """The file tells none: noted is the one that was told when it had changed last; else it is that of the newest."""
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    file = rig.out / "last.bin"
    file.write_bytes(b"of step 77")
    assert [step for _ in range(14) for step in await rig.look()] == [77]
    rig.step = 90
    file.write_bytes(b"of step 90, or one before")
    for _ in range(looks):
        assert await rig.look() == []
    rig.step = 5_000
    rig.open()
    assert [step for _ in range(14) for step in await rig.look()] == [90 if looks else 77]
    file.write_bytes(b"of step 5000")
    assert [step for _ in range(14) for step in await rig.look()] == [5_000]


@pytest.mark.parametrize(("printed", "step"), [(95, 95), (0, 78)])
async def test_what_tells_no_step_is_rescued_as_the_last_that_was_printed(
    tmp_path: Path, printed: int, step: int
) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    file = rig.out / "last.bin"
    file.write_bytes(b"of step 77")
    assert [step for _ in range(14) for step in await rig.look()] == [77]
    file.write_bytes(b"of a later one")
    base = choose(rig.run)
    assert base is not None
    rig.run.log(1).write_text(f"step {printed}/100 loss: 1.0\n" * bool(printed))
    take(rig.run, 2, base.name)
    last = Recorded(rig.run, Progress, rig.clock, lambda: None).last_step

    def rescues(dead: int) -> list[salvage.Told]:
        return rescue(rig.run, dead, rig.out, adapters.KINDS, last_step=last, ended=lambda run, epoch: 0)

    work = Salvage(rig.run, 2, mine, rescue=rescues).work()
    assert [done.step for done in work.published] == [step]
    assert not rig.run.orphans.exists()
    newest = choose(rig.run)
    assert newest is not None
    assert contents(newest.path) == {"last.bin": b"of a later one"}
    assert {sealed.manifest.heard for sealed in published(rig.run)[0]} == {True}


async def test_a_hole_in_the_newest_gives_way_to_the_one_before(tmp_path: Path) -> None:
    """As a power cut leaves it: of the right size, with zeros inside."""
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    run(hf_trainer.save(rig.out, 6))
    run(hf_trainer.save(rig.out, 7))
    optimizer = rig.out / "checkpoint-7" / "optimizer.pt"
    whole = optimizer.read_bytes()
    middle = whole.index(b"data/0") + 500
    optimizer.write_bytes(whole[:middle] + b"\0" * 1000 + whole[middle + 1000 :])
    work = salvaged(rig)
    assert [done.step for done in work.published] == [6]
    assert [told.kind for told in work.told] == ["checkpoint.untaken", "checkpoint.salvaged"]


async def test_what_was_taken_and_not_published_is_its_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    run(hf_trainer.save(rig.out, 5))
    monkeypatch.setattr(
        "relay_agent.checkpoints.publisher.publish", lambda *rest, **options: (_ for _ in ()).throw(Cancelled)
    )
    await rig.look()
    (rig.run.staging(1) / ".taking").mkdir()
    work = salvaged(rig)
    assert [done.step for done in work.published] == [5]
    assert {sealed.manifest.adapter for sealed in published(rig.run)[0]} == {"hf_trainer"}
    assert not rig.run.staging(1).exists()


def test_giving_way_is_no_error_anywhere() -> None:
    with ThreadPoolExecutor(1, initializer=gentle.give_way) as pool:
        assert pool.submit(lambda: 5).result() == 5


async def test_what_is_put_into_a_lasting_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """A pod dies in the middle: the next attempt must not take half a file for one of the trainer's own."""
    rig = Rig(tmp_path)
    run(single_file.save(rig.out, 5))
    await rig.look()
    resume = choose(rig.run)
    assert resume is not None
    whole = (resume.path / "ckpt.pt").read_bytes()
    counted = FaultyDisk()
    handing.hand_out(rig.run, 2, resume.path, tmp_path / "counted", disk=counted)
    for number in range(len(counted.calls)):
        out = tmp_path / f"out-{number}"
        with pytest.raises(Crash):
            handing.hand_out(rig.run, 2, resume.path, out, disk=FaultyDisk(number, half=True))
        assert not (out / "ckpt.pt").exists() or (out / "ckpt.pt").read_bytes() == whole
        handed = handing.hand_out(rig.run, 3, resume.path, out)
        assert (out / "ckpt.pt").read_bytes() == whole, handed
        assert [path.name for path in out.iterdir()] == ["ckpt.pt"]


async def test_a_last_save_that_nothing_proves_is_missed(tmp_path: Path) -> None:
    """As in the staging folder: a process of its trainer that had to be stopped may have been saving it."""
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    await rig.look()
    (rig.out / "last.bin").write_bytes(b"half of it, maybe")
    await rig.publisher.finish(0, leftovers=1)
    assert rig.told.steps == []
    assert rig.publisher.unpublished(77).startswith("1 checkpoint could not be published: ")
    assert not rig.publisher.kept


async def test_and_is_not_where_it_was_published_in_time(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    (rig.out / "last.bin").write_bytes(b"all of it")
    for _ in rig.clock.watch(2 * SETTLE):
        await rig.publisher.look()
    assert rig.told.steps == [77]
    await rig.publisher.finish(0, leftovers=1)
    assert rig.publisher.unpublished(77) == ""
