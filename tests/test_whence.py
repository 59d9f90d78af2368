"""Where a run goes on from: every cell of the table, by what has to hold of it."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from relay_agent.attempt.whence import TABLE, Act, Here, Mark, Rule, There, there
from relaytui.wire.messages import CheckpointRef

RULES: tuple[Rule, ...] = get_args(Rule)
CELLS = list(itertools.product(Here, There, RULES))


def test_every_case_has_its_cell() -> None:
    assert set(TABLE) == set(CELLS)


@pytest.mark.parametrize(("here", "of_hub", "rule"), CELLS)
def test_what_holds_of_every_cell(here: Here, of_hub: There, rule: Rule) -> None:
    act = TABLE[here, of_hub, rule]
    if here is Here.NEWEST:
        assert act is Act.VOLUME, "the volume comes first"
        return
    if of_hub is There.NEWEST:
        assert act is Act.HUB, "a copy of the newest counts as the newest"
    if act is Act.VOLUME:
        assert here in (Here.NEXT, Here.OLDER), "there has to be something to go on from"
    if act is Act.HUB:
        assert of_hub in (There.NEWEST, There.BETWEEN), "never back to what is behind the volume"
    if of_hub is There.BETWEEN and act is Act.HUB:
        assert rule == "older" or here is Here.NEXT, "an older one only by the rule, or in place of a damaged one"
    if of_hub is There.BETWEEN and rule == "older":
        assert act is Act.HUB, "of what the rule allows, the newest"
    if rule == "ask" and here in (Here.OLDER, Here.LOST):
        assert act is (Act.HUB if of_hub is There.NEWEST else Act.ASK), "no quiet way back"
    if act is Act.BEGIN:
        assert here is Here.EMPTY or (rule == "restart" and of_hub is not There.UNREACHED), "zero is never a guess"
    if here is Here.NEXT:
        assert act in (Act.VOLUME, Act.HUB), "one that is damaged ends no run while another is whole"
    if here is Here.EMPTY and of_hub in (There.NOTHING, There.UNREACHED):
        assert act is Act.BEGIN, "no Hub holds up a new run"


KNOWN = CheckpointRef("step_00000500", 500, 3, "a" * 64)
UNHASHED = CheckpointRef("step_00000500", 500, 3, "")

STEPS = [
    # known, here, (epoch, seq), name, step, sha256, better -> what it is
    (KNOWN, None, (3, 9), "step_00000500", 500, "a" * 64, There.NEWEST),
    (KNOWN, None, (3, 9), "step_00000500", 500, "b" * 64, There.BETWEEN),  # it only has the name
    (KNOWN, None, (3, 8), "step_00000400", 400, "b" * 64, There.BETWEEN),
    (KNOWN, None, (3, 11), "step_00000600", 600, "b" * 64, There.NEWEST),  # the commander never heard of it
    (KNOWN, None, (4, 10), "step_00000450", 450, "b" * 64, There.NEWEST),  # a later attempt went back
    (KNOWN, (3, 8), (3, 8), "step_00000400", 400, "b" * 64, There.BEHIND),
    (KNOWN, (4, 20), (3, 9), "step_00000500", 500, "a" * 64, There.NEWEST),  # whatever lies here
    (KNOWN, (2, 4), (3, 8), "step_00000400", 400, "b" * 64, There.BETWEEN),
    (UNHASHED, None, (3, 9), "step_00000500", 500, "b" * 64, There.NEWEST),
    (UNHASHED, None, (2, 9), "step_00000500", 500, "b" * 64, There.BETWEEN),
    (None, None, (1, 1), "step_00000010", 10, "b" * 64, There.NEWEST),
    (None, (1, 1), (1, 1), "step_00000010", 10, "b" * 64, There.BEHIND),
    (None, (1, 9), (2, 1), "step_00000010", 10, "b" * 64, There.NEWEST),
]


@pytest.mark.parametrize("case", STEPS)
def test_what_a_step_on_the_hub_is(
    case: tuple[CheckpointRef | None, tuple[int, int] | None, tuple[int, int], str, int, str, There],
) -> None:
    known, here, mark, name, step, sha256, what = case
    local = Mark(*here) if here else None
    assert there(known, local, Mark(*mark), name, step, sha256, better=False) is what
    if what is There.NEWEST and known is None:
        assert there(known, local, Mark(*mark), name, step, sha256, better=True) is There.BETWEEN
