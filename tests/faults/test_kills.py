"""A few rounds of what `make faults` does two hundred times: kills in the middle of uploads, and of restores."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from pathlib import Path

import pytest
from checkpoint_kit import new_run, put
from hub_pull_kit import shelve

from tests.faults.kills import BrokenPromiseError
from tests.faults.pull_kills import from_hub, from_store
from tests.faults.store_kills import Uploading
from tests.faults.store_rig import account
from tests.hub import TestHub

FIRST = '{"sha256": "a", "offset": 0, "at": 0, "after": 5}'
STORED = '{"stored": "a", "size": 5}'
LONG = os.environ.get("RELAY_FAULTS") == "long"


def test_uploads_and_restores_that_are_killed_leave_only_what_is_whole(tmp_path: Path) -> None:
    with closing(Uploading(tmp_path, seed=3)) as uploading:
        uploading.play(rounds=200 if LONG else 2)
        uploading.rig.judge_bytes()
        from_store(uploading, tmp_path, rounds=100 if LONG else 1, seed=5)


async def test_restores_from_the_hub_that_are_killed_leave_only_what_is_whole(tmp_path: Path) -> None:
    async with TestHub(tmp_path / "hub") as hub:
        lost = new_run(tmp_path)
        put(lost, 1, 500)
        shelve(hub, lost, "step_00000500")
        await asyncio.to_thread(from_hub, hub.url, lost, tmp_path, 100 if LONG else 1, 5)


@pytest.mark.parametrize(
    ("again", "broken"),
    [
        ([FIRST], "sent although it was stored"),
        (['{"sha256": "b", "offset": 2, "at": 4, "after": 6}'], "sent although it was there"),
        (['{"sha256": "b", "offset": 0, "at": 0, "after": 6}', '{"stored": "b", "size": 5}'], "6 bytes came of 5"),
    ],
)
def test_what_comes_twice_is_seen(again: list[str], broken: str) -> None:
    assert account([FIRST, STORED]) == (5, 5)
    with pytest.raises(BrokenPromiseError, match=broken):
        account([FIRST, STORED, *again])
