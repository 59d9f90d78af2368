"""An attempt that begins without its checkpoint: what it takes from the Hub, what it says, what it leaves alone."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_kit import RUN, ManualClock, names, new_run, put, take
from test_beginning import Told, ref

from relay_agent.attempt.beginning import Beginning
from relay_agent.attempt.restoring import Restoring
from relay_agent.checkpoints.line import survey
from relay_agent.checkpoints.manifest import read
from relay_agent.checkpoints.publish import Published
from relay_agent.checkpoints.receiving import place_for
from relay_agent.checkpoints.rollback import Rollback, note
from relay_agent.checkpoints.tree import Cancelled
from relay_agent.hub import layout
from relay_agent.outcome.stop import Stop, Why
from relay_agent.sending.protocol import Step
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder
from relaytui.wire.errors import RelayError
from relaytui.wire.messages import CheckpointRef

UNREACHED = Trouble("unreachable", "the Hub cannot be reached", "transient")


class Shelf:
    """Stands for the Hub: checkpoints of a volume that is gone. `fails`: by tag."""

    where = "relay/run-1"
    event = "restore.hub"

    def __init__(self, lost: RunFolder, *stored: Published) -> None:
        self._lost = lost
        self.stored = {layout.tag_of(done.name): done.name for done in stored}
        self.fails: dict[str, Trouble] = {}
        self.asked = 0
        self.pulled: list[str] = []
        self.placed: Callable[[Step], None] = lambda step: None
        self.on_pull: Callable[[Path], Any] = lambda folder: None
        self.refuses_left: Path | None = None  # a part of another's, which spoils what is brought

    async def steps(self) -> list[Step]:
        self.asked += 1
        if "" in self.fails:
            raise self.fails[""]
        return [self._step(tag, name) for tag, name in self.stored.items()]

    def _step(self, tag: str, name: str) -> Step:
        sealed = read(self._lost.ckpt / name)
        made = sealed.manifest
        return Step(
            tag, f"{tag:c<40}", "", made.run_id, made.name, made.step, made.epoch, made.seq, made.healthy, made.maker,
            made.total_bytes, sealed.sha256,
        )  # fmt: skip

    async def pull(self, step: Step, place: Path) -> Path:
        self.pulled.append(step.tag)
        if step.tag in self.fails:
            raise self.fails[step.tag]
        if self.refuses_left is not None and self.refuses_left.exists():
            raise Trouble("not_whole", "its hash differs")
        folder = place / step.name
        if not folder.exists():  # what is there already is not brought again
            shutil.copytree(self._lost.ckpt / step.name, folder)
        outcome = self.on_pull(folder)
        if outcome is not None:
            await outcome
        return folder


def begin(
    run: RunFolder, known: CheckpointRef | None, shelf: Shelf | list[Shelf] | None, rule: Any = "ask", *,
    epoch: int = 7, stop: Stop | None = None, **more: Any,
) -> tuple[str | None, Told]:  # fmt: skip
    """Name of what it resumes from, and what was told."""
    told = Told()

    async def resume() -> str | None:
        settings: Any = SimpleNamespace(on_missing_checkpoint=rule, run_id=run.run_id)
        held: Any = SimpleNamespace(lease=SimpleNamespace(epoch=epoch), held=True, fenced=lambda: None)
        teller: Any = told
        sources: Any = shelf if isinstance(shelf, list) else [shelf] if shelf else []
        asked = stop or Stop()
        restoring = Restoring(sources, run, rule, held, teller, asked)
        begun = Beginning(
            settings, run, known, 3, "mock", held, teller, asked, restoring=restoring, clock=ManualClock(), **more
        )
        found = await begun.resume()
        await asyncio.sleep(0)
        return found.name if found else None

    return asyncio.run(resume()), told


@pytest.fixture
def lost(tmp_path: Path) -> RunFolder:
    (tmp_path / "lost").mkdir()
    return new_run(tmp_path / "lost", 3)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "here").mkdir()
    return new_run(tmp_path / "here", None)


def test_an_empty_volume_goes_on_from_the_one_that_the_commander_knows(lost: RunFolder, run: RunFolder) -> None:
    four, five = put(lost, 3, 400), put(lost, 3, 500)
    name, told = begin(run, ref(five, 3), Shelf(lost, four, five))
    assert (name, told.kinds()) == ("step_00000500", ["checkpoint.missing", "restore.hub"])
    assert read(run.ckpt / "step_00000500").sha256 == five.manifest_sha256, "it is the same one"
    assert not list(run.incoming.iterdir())
    take(run, 7, name)
    assert begin(run, ref(five, 3), None, epoch=8)[0] == name, "and known to be so the next time"
    put(run, 7, 600)
    assert [sealed.name for sealed in survey(run).line] == ["step_00000600", "step_00000500"]


def test_the_commander_that_knows_of_none_is_no_reason_to_begin_anew(lost: RunFolder, run: RunFolder) -> None:
    four, five = put(lost, 3, 400), put(lost, 3, 500)
    assert begin(run, None, Shelf(lost, four, five))[0] == "step_00000500"


def test_an_older_one_is_used_only_by_the_rule(lost: RunFolder, run: RunFolder) -> None:
    four, five = put(lost, 3, 400), put(lost, 3, 500)
    shelf = Shelf(lost, four)
    with pytest.raises(
        RelayError, match=r"step_00000500 is not on this volume; .*step_00000400 \(step-400\)"
    ) as refused:
        begin(run, ref(five, 3), shelf)
    assert (refused.value.code, refused.value.exit_code) == ("checkpoint_missing", 2)
    assert "older or restart" in refused.value.hint
    assert begin(run, ref(five, 3), shelf, "restart")[0] is None
    assert shelf.pulled == [], "nothing is brought before it is known what for"
    assert begin(run, ref(five, 3), shelf, "older")[0] == "step_00000400"


def test_the_volume_comes_first_and_the_hub_is_not_even_asked(lost: RunFolder, run: RunFolder) -> None:
    take(run, 3)
    here = put(run, 3, 500)
    shelf = Shelf(lost, put(lost, 3, 400), put(lost, 3, 500, "other"), put(lost, 3, 600))
    for known in (None, ref(here, 3)):
        assert begin(run, known, shelf)[0] == "step_00000500"
    assert shelf.asked == 0


def test_a_copy_on_the_hub_counts_as_the_one_that_the_volume_has_not(lost: RunFolder, run: RunFolder) -> None:
    take(run, 3)
    put(run, 3, 400)
    four, five = put(lost, 3, 400), put(lost, 3, 500)
    assert begin(run, ref(five, 3), Shelf(lost, four, five))[0] == "step_00000500"


def test_a_damaged_one_is_replaced_by_its_copy_and_else_by_the_next(lost: RunFolder, run: RunFolder) -> None:
    take(run, 3)
    four, five = put(run, 3, 400), put(run, 3, 500)
    shutil.rmtree(lost.ckpt)
    shutil.copytree(run.ckpt, lost.ckpt, symlinks=True)
    (run.ckpt / five.name / "weights.bin").write_bytes(b"torn")
    shelf = Shelf(lost, four, five)
    shelf.fails[""] = UNREACHED
    name, told = begin(run, ref(five, 3), shelf)
    assert (name, told.kinds()[-2:]) == ("step_00000400", ["restore.failed", "checkpoint.bad"])
    shelf.fails.clear()
    assert begin(run, ref(five, 3), shelf)[0] == "step_00000500"
    assert shelf.pulled == ["step-500"]


def test_a_hub_out_of_reach_holds_up_no_new_run_and_hides_no_old_one(lost: RunFolder, run: RunFolder) -> None:
    five = put(lost, 3, 500)
    shelf = Shelf(lost, five)
    shelf.fails[""] = UNREACHED
    assert begin(run, None, shelf) == (None, [("restore.failed", begin(run, None, shelf)[1][0][1])])
    for rule in ("ask", "older", "restart"):
        said = "not on this volume; no whole one is here; .*cannot be reached. see to that and start the agent again$"
        with pytest.raises(RelayError, match=said) as refused:
            begin(run, ref(five, 3), shelf, rule)
        assert refused.value.hint == "see to that and start the agent again"
        assert (refused.value.code, refused.value.exit_code) == ("hub_unreached", 69)


def test_one_that_is_not_whole_there_is_passed_over_and_said(lost: RunFolder, run: RunFolder) -> None:
    four, five = put(lost, 3, 400), put(lost, 3, 500)
    shelf = Shelf(lost, four, five)
    shelf.fails["step-500"] = Trouble("not_whole", "'weights.bin' is missing on the Hub", "permanent")
    name, told = begin(run, None, shelf)
    assert (name, told.kinds()) == ("step_00000400", ["restore.failed", "restore.hub"])
    assert "step-500 of relay/run-1 is not used: 'weights.bin' is missing" in told[0][1]
    shutil.rmtree(run.ckpt / "step_00000400")
    with pytest.raises(RelayError, match="step_00000400"):
        begin(run, ref(five, 3), shelf)


@pytest.mark.parametrize("rule", ["ask", "older", "restart"])
@pytest.mark.parametrize("bad", ["step-500", "step-900"])
def test_a_broken_tag_hides_no_whole_one_of_the_same_manifest(
    lost: RunFolder, run: RunFolder, bad: str, rule: str
) -> None:
    five = put(lost, 3, 500)
    shelf = Shelf(lost, five)
    shelf.stored["step-900"] = shelf.stored["step-900.e3"] = five.name
    shelf.fails[bad] = Trouble("not_whole", "'weights.bin' is missing on the Hub", "permanent")
    assert begin(run, ref(five, 3), shelf, rule)[0] == five.name
    assert shelf.pulled[-1] != bad


def test_what_a_broken_tag_left_behind_does_not_spoil_the_whole_one(lost: RunFolder, run: RunFolder) -> None:
    five = put(lost, 3, 500)
    shelf = Shelf(lost, five)
    shelf.stored["step-900"] = five.name
    shelf.fails["step-500"] = Trouble("no_answer", "it broke off", "transient")
    place = place_for(run, five.manifest_sha256)
    place.mkdir(parents=True)
    (place / "left").touch()
    shelf.refuses_left = place / "left"
    assert begin(run, ref(five, 3), shelf)[0] == five.name
    assert shelf.pulled == ["step-500", "step-900", "step-900"]


def test_one_that_cannot_be_had_now_is_not_replaced_by_an_older_one_unasked(lost: RunFolder, run: RunFolder) -> None:
    four, five = put(lost, 3, 400), put(lost, 3, 500)
    shelf = Shelf(lost, four, five)
    shelf.fails["step-500"] = Trouble("no_room", "the volume is full", "permanent")
    for rule in ("ask", "restart"):
        with pytest.raises(RelayError, match=r"step_00000500 at relay/run-1 cannot be had: the volume is full"):
            begin(run, None, shelf, rule)
    assert begin(run, None, shelf, "older")[0] == "step_00000400"


@pytest.mark.parametrize("knows", [True, False])
def test_one_that_two_places_have_is_had_from_the_other(lost: RunFolder, run: RunFolder, knows: bool) -> None:
    four, five = put(lost, 3, 400), put(lost, 3, 500)
    hub, store = Shelf(lost, four, five), Shelf(lost, five)
    hub.fails["step-500"] = Trouble("timeout", "no answer", "transient")
    known = ref(five, 3) if knows else None
    name, told = begin(run, known, [hub, store])
    assert (name, told.kinds()[-2:]) == ("step_00000500", ["restore.failed", "restore.hub"])
    assert (hub.pulled, store.pulled) == (["step-500"], ["step-500"])


def test_when_all_that_is_there_is_bad_the_run_does_not_quietly_begin_anew(lost: RunFolder, run: RunFolder) -> None:
    shelf = Shelf(lost, put(lost, 3, 500))
    shelf.fails["step-500"] = Trouble("not_whole", "its hash differs", "permanent")
    with pytest.raises(RelayError, match="nothing to go on from"):
        begin(run, None, shelf)
    assert begin(run, None, shelf, "restart")[0] is None


def test_what_was_left_of_an_earlier_try_and_is_wrong_is_brought_again(lost: RunFolder, run: RunFolder) -> None:
    five = put(lost, 3, 500)
    shelf = Shelf(lost, five)
    left = place_for(run, five.manifest_sha256) / five.name
    shutil.copytree(lost.ckpt / five.name, left)
    (left / "weights.bin").write_bytes(b"weights 400 " * 100)
    assert begin(run, None, shelf)[0] == "step_00000500"
    assert shelf.pulled == ["step-500", "step-500"]


def test_a_disk_that_turns_bytes_puts_nothing_into_the_line(lost: RunFolder, run: RunFolder) -> None:
    shelf = Shelf(lost, put(lost, 3, 500))
    shelf.on_pull = lambda folder: (folder / "shard" / "0.bin").write_bytes(b"shard 501") and None
    with pytest.raises(RelayError):
        begin(run, None, shelf)
    assert names(run) == []


def test_another_runs_steps_are_not_ours(run: RunFolder, lost: RunFolder) -> None:
    shelf = Shelf(lost, put(lost, 3, 500))
    other = RunFolder(run.root.rename(run.root.with_name("run-2")))
    name, told = begin(other, None, shelf)
    assert (name, told.kinds()) == (None, ["restore.failed"])
    assert f"holds steps of {RUN}, which is another run" in told[0][1]


def test_another_checkpoint_of_its_name_is_left_where_it_is(lost: RunFolder, run: RunFolder) -> None:
    take(run, 2)
    put(run, 2, 500, "other")
    take(run, 5)  # began anew: what epoch 2 saved lies beside the line
    five = put(lost, 3, 500)
    with pytest.raises(RelayError, match="another one than that of epoch 3"):
        begin(run, ref(five, 3), Shelf(lost, five))
    assert names(run) == ["step_00000500"]


def test_who_went_back_because_the_loss_was_bad_is_not_led_forth_by_the_hub(lost: RunFolder, run: RunFolder) -> None:
    take(run, 3)
    put(run, 3, 300)
    shutil.copytree(run.ckpt / "step_00000300", lost.ckpt / "step_00000300")
    four, five = put(lost, 3, 400), put(lost, 3, 500, healthy=False)
    note(run, Rollback(3, 450, "the loss was nan", 1.7e9))
    assert begin(run, ref(five, 3), Shelf(lost, four, five), "older")[0] == "step_00000400"


def test_told_to_stop_it_ends_at_once_and_what_came_stays(lost: RunFolder, run: RunFolder) -> None:
    shelf, stop = Shelf(lost, put(lost, 3, 500)), Stop()
    shelf.on_pull = lambda folder: stop.ask(Why.SIGNAL, "the pod goes")
    with pytest.raises(Cancelled):
        begin(run, None, shelf, stop=stop)
    assert names(run) == []
    assert begin(run, None, Shelf(lost, *[]), "restart")[0] is None


def test_a_holder_that_was_replaced_meanwhile_puts_nothing(lost: RunFolder, run: RunFolder) -> None:
    shelf = Shelf(lost, put(lost, 3, 500))
    shelf.on_pull = lambda folder: take(run, 9)
    with pytest.raises(Cancelled):
        begin(run, None, shelf)
    assert names(run) == []
