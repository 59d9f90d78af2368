"""The agent's connection to its commander: what it says while there is none."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from checkpoint_kit import ManualClock

from relay_agent.contact import Contact
from relay_agent.link import SAY_AGAIN, SAY_EVERY, Link
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.messages import Hello

GONE = RelayError("unavailable", "connection refused", exit_code=Exit.UNAVAILABLE)
OTHER = RelayError(
    "not_proven", "the commander at http://c:1 does not know our RELAY_SHARED_SECRET", exit_code=Exit.AUTH
)


class At(random.Random):
    """No pause at all between two tries."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


class Script:
    """A commander that cannot be had: at which second, and why. Then the test is over."""

    url = "http://c:1"

    def __init__(self, clock: ManualClock, tries: list[tuple[float, Exception]]) -> None:
        self._clock = clock
        self._begin = clock.now
        self._tries = iter(tries)

    @asynccontextmanager
    async def connect(self, heartbeat: float) -> AsyncIterator[Any]:
        at, error = next(self._tries, (0.0, asyncio.CancelledError()))
        self._clock.now = max(self._clock.now, self._begin + at)
        raise error
        yield


async def says(tries: list[tuple[float, Exception]]) -> list[tuple[float, str]]:
    """At which second, and what: of an agent that had a session before."""
    clock, said = ManualClock(), list[tuple[float, str]]()
    begin = clock.now
    link = Link(
        cast(Contact, Script(clock, tries)), cast(Hello, None), clock,
        lambda words: said.append((clock.now - begin, words)),
        on_order=lambda order: None, on_refused=lambda refused: None, rng=At(),
    )  # fmt: skip
    link.sessions = 1
    with pytest.raises(asyncio.CancelledError):
        await link.run()
    return said


async def test_another_reason_is_said_at_once() -> None:
    said = await says([(0, GONE), (1, GONE), (2, OTHER), (9, OTHER), (17, OTHER)])
    assert [at for at, _ in said] == [0, 2]
    assert "connection refused" in said[0][1]
    assert said[1][1].startswith("the commander at http://c:1 does not know our RELAY_SHARED_SECRET")


async def test_the_same_reason_is_said_seldom() -> None:
    said = await says([(float(second), GONE) for second in range(100)])
    assert [at for at, _ in said] == [0, SAY_EVERY, 2 * SAY_EVERY, 3 * SAY_EVERY]


async def test_reasons_that_take_turns_do_not_flood() -> None:
    said = await says([(tenth / 10, (GONE, OTHER)[tenth % 2]) for tenth in range(600)])
    assert len(said) <= 2 * (1 + 60 / SAY_AGAIN)
    assert {words.partition(";")[0] for _, words in said} == {f"no commander at http://c:1: {GONE}", str(OTHER)}
