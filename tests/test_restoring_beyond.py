"""What the Hub has beyond what the commander can have granted, or instead of what it knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_kit import new_run, put
from test_beginning import ref
from test_restoring import Shelf, begin

from relay_agent.sending.protocol import Step
from relay_agent.volume.volume import RunFolder
from relaytui.wire.errors import RelayError


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "here").mkdir()
    return new_run(tmp_path / "here", None)


def line(tmp_path: Path, epoch: int) -> RunFolder:
    (tmp_path / f"lost-{epoch}").mkdir()
    return new_run(tmp_path / f"lost-{epoch}", epoch)


class Shelves(Shelf):
    """Of several volumes."""

    def __init__(self, *shelves: Shelf) -> None:
        super().__init__(shelves[0]._lost)
        self._shelves = shelves

    async def steps(self) -> list[Step]:
        return [step for shelf in self._shelves for step in await shelf.steps()]

    async def pull(self, step: Step, place: Path) -> Path:
        shelf = next(shelf for shelf in self._shelves if step.tag in shelf.stored)
        return await shelf.pull(step, place)


def test_one_of_an_epoch_that_was_never_granted_is_not_newer_than_the_known_one(tmp_path: Path, run: RunFolder) -> None:
    ours, strange = line(tmp_path, 2), line(tmp_path, 9)
    known, other = put(ours, 2, 500), put(strange, 9, 400)
    both = Shelves(Shelf(ours, known), Shelf(strange, other))
    assert begin(run, ref(known, 2), both, epoch=5)[0] == "step_00000500"


def test_of_an_absurd_epoch_none_is_used_at_all(tmp_path: Path, run: RunFolder) -> None:
    strange, ours = line(tmp_path, 10**12), line(tmp_path, 1)
    both = Shelves(Shelf(strange, put(strange, 10**12, 400)), Shelf(ours, put(ours, 1, 300)))
    name, told = begin(run, None, both, epoch=1)
    assert name == "step_00000300"
    assert told.kinds() == ["restore.failed", "restore.hub"]


@pytest.mark.parametrize("granted", [3, 5], ids=["below the Hub's", "above it"])
def test_the_known_one_that_is_nowhere_is_not_replaced_by_another_line_unasked(
    tmp_path: Path, run: RunFolder, granted: int
) -> None:
    """Books that are new granted epochs 1 and 2 while the Hub could not be asked, and has 3."""
    before, since = line(tmp_path, 3), line(tmp_path, 2)
    thirty, seventy = put(before, 3, 30), put(since, 2, 70)
    with pytest.raises(RelayError, match="step_00000070 is not on this volume") as asked:
        begin(run, ref(seventy, 2), Shelf(before, thirty), epoch=granted)
    assert "older" in asked.value.hint
    assert begin(run, ref(seventy, 2), Shelf(before, thirty), "older", epoch=granted)[0] == "step_00000030"


def test_a_line_that_went_back_in_a_later_epoch_is_gone_on_with(tmp_path: Path, run: RunFolder) -> None:
    before, since = line(tmp_path, 2), line(tmp_path, 3)
    known, back = put(before, 2, 70), put(since, 3, 40)
    assert begin(run, ref(known, 2), Shelves(Shelf(before, known), Shelf(since, back)), epoch=4)[0] == "step_00000040"


def test_another_one_of_the_known_ones_name_is_said_to_be_that(tmp_path: Path, run: RunFolder) -> None:
    ours, strange = line(tmp_path, 2), line(tmp_path, 1)
    known, other = put(ours, 2, 500), put(strange, 1, 500, "other")
    with pytest.raises(RelayError) as asked:
        begin(run, ref(known, 2), Shelf(strange, other), epoch=5)
    assert "with another manifest than the one that the commander knows" in str(asked.value)
