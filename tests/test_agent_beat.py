"""What is looked at now and then is looked at together, so that an agent is woken seldom."""

from __future__ import annotations

import asyncio

from commander_kit import FakeClock
from preempt_kit import virtually

from relay_agent.beat import to_next


def test_whoever_looks_every_so_often_looks_when_others_do() -> None:
    clock, at = FakeClock(boot=1_000.3), list[float]()

    async def looks(every: float, begins: float) -> None:
        await asyncio.sleep(begins)
        for _ in range(round(4 / every)):
            await asyncio.sleep(to_next(every))
            at.append(clock.boot())

    async def work() -> None:
        await asyncio.gather(looks(1.0, 0.1), looks(1.0, 0.25), looks(0.5, 0.4))

    virtually(clock, work)
    assert len(at) == 16
    assert len({round(when, 6) for when in at}) == 8
