"""An incarnation is its agent's and its commander's alone: what others see of it makes nobody the holder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from agent_rig import rigged
from commander_kit import Kit, running

from relay_agent.volume.volume import open_run, read_claim
from relaytui.wire.ids import is_id, shown

SECRET = "an-incarnation-nobody-knows"


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    async with running(tmp_path / "state") as kit:
        yield kit


async def test_no_page_and_no_feed_shows_one(kit: Kit) -> None:
    feed = await kit.feed()
    holder = await kit.agent("pod", SECRET)
    await holder.acquire("run-1")
    await feed.until(lambda m: m["type"] == "worker" and m["worker"]["incarnation"] == shown(SECRET))
    pages = [
        await kit.get(path)
        for path in ("/api/workers", "/api/runs", "/api/runs/run-1", "/api/events?limit=1000", "/api/runs/run-1/log")
    ]
    assert shown(SECRET) in str(pages)
    assert (await kit.run("run-1"))["incarnation"] == shown(SECRET)
    assert SECRET.encode() not in orjson.dumps([pages, (await kit.feed()).snapshot])
    assert is_id(shown(SECRET))


async def test_who_says_what_is_shown_takes_nothing_and_cuts_nobody_off(kit: Kit) -> None:
    holder = await kit.agent("pod", SECRET)
    await holder.acquire("run-1")
    for known in (shown(SECRET), shown(shown(SECRET))):
        thief = await kit.agent("thief", known)
        answer = await thief.acquire("run-1")
        assert (answer["type"], answer["code"]) == ("denied", "held")
    assert (await holder.renew())["type"] == "renewed"
    assert not holder.ws.closed


def test_the_claim_on_the_volume_has_what_is_shown(tmp_path: Path) -> None:
    with rigged(tmp_path) as rig:
        assert rig.agent("echo step 1/1 loss 1").wait() == 0
        claim = read_claim(open_run(rig.volume, rig.run_id), 1)
        assert claim is not None
        (row,) = rig.call("/api/workers")["workers"]
        assert claim.incarnation == row["incarnation"]
        assert len(claim.incarnation) == 16
