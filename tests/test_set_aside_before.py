"""A save that was set aside by an agent that died then is missed by the one that takes over."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_kit import ManualClock, mine, new_run, stage
from publisher_kit import Told

from relay_agent.checkpoints.publisher import Publisher
from relay_agent.volume.volume import RunFolder


def publisher(run: RunFolder) -> Publisher:
    return Publisher(
        run, 1, "sft", "a trainer", 5.0, 2, ManualClock(), Told(), held=mine, safe=mine, on_fenced=lambda: None
    )


@pytest.fixture
async def run(tmp_path: Path) -> RunFolder:
    run = new_run(tmp_path)
    stage(run, 1, 7, marker=False)
    first = publisher(run)
    await first.finish(0, stopped=True)
    assert [path.name for path in run.bad.iterdir()] == ["e00000001.step_7"]
    return run


async def test_it_is_not_forgotten(run: RunFolder) -> None:
    second = publisher(run)
    assert second.published_before() == []
    await second.finish(0)
    assert second.torn
    assert second.unpublished(7).startswith(
        "1 checkpoint could not be published: an agent before this one set it aside"
    )
    assert "it lies in ckpt/.bad/e00000001.step_7" in second.unpublished(7)


async def test_one_that_was_saved_later_and_is_published_makes_up_for_it(run: RunFolder) -> None:
    stage(run, 1, 9)
    await publisher(run).finish(0)
    last = publisher(run)
    assert [each.step for each in last.published_before()] == [9]
    await last.finish(0)
    assert last.unpublished(9) == ""


async def test_what_another_attempt_set_aside_is_its_own(run: RunFolder) -> None:
    another = Publisher(
        run, 2, "sft", "a trainer", 5.0, 2, ManualClock(), Told(), held=mine, safe=mine, on_fenced=lambda: None
    )
    another.published_before()
    assert another.unpublished(7) == ""
