"""An attempt whose spool was lost tells its log again from the beginning: each line and step is there once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from commander_kit import log, running, step

from relaytui.commander.services.overlap import unknown
from relaytui.wire.reports import AnyReport, Gap, Log, Step


def chunk(first: int, count: int) -> list[Any]:
    """As an agent tells `count` lines that each name a step: the lines, then the steps."""
    numbers = range(first, first + count)
    return [log(first, *(f"step {n}" for n in numbers)), *(step(n, loss=1.0 / n) for n in numbers)]


async def test_what_is_told_again_is_there_once(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        for first in (1, 6, 11):
            await agent.tell(*chunk(first, 5))
        for first, count in ((1, 7), (8, 7), (15, 7), (22, 3)):  # cut otherwise
            await agent.tell(*chunk(first, count))
        lines = (await kit.get("/api/runs/run-1/log?limit=100"))[1]["lines"]
        assert [(line["n"], line["text"]) for line in lines] == [(n, f"step {n}") for n in range(1, 25)]
        frames = await kit.commander.core.reader.frames_after("run-1", 0, 100)
        steps = [each["step"] for frame in frames for each in orjson.loads(frame.data) if each["type"] == "step"]
        assert steps == list(range(1, 25))


def test_only_what_overlaps_is_left_out() -> None:
    one, two = Step(1.0, 1, None, {}), Step(1.0, 9, None, {})
    new: list[AnyReport] = [Log(1.0, 11, ["a", "b"]), one, Gap(1.0, 13, 2), two]
    assert unknown(new, 10, 5, False) == (new, False)
    assert unknown([Log(1.0, 9, ["a", "b"]), one, two], 10, 5, False) == ([], True)
    assert unknown([one, two], 10, 5, True) == ([], True), "of the lines in the frame before"
    assert unknown([two, Log(1.0, 11, ["a"]), one], 10, 5, True) == ([Log(1.0, 11, ["a"]), one], False)
    cut = [Log(1.0, 10, ["a", "b"]), one, two]
    assert unknown(cut, 10, 5, False) == ([Log(1.0, 11, ["b"]), two], False)
    assert unknown([Gap(1.0, 1, 20)], 10, 5, False) == ([Gap(1.0, 11, 10)], False)
    assert unknown([Gap(1.0, 1, 10)], 10, 5, False) == ([], False)
