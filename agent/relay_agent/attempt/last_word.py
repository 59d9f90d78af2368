"""The wait, at the end of an attempt, until the commander has acknowledged how it ended."""

from __future__ import annotations

import asyncio

from relay_agent.link.link import Link
from relay_agent.outcome.stop import Stop
from relay_agent.process import say

LAST_WORD = 300.0
"""Seconds to wait, at least; a lease that is longer counts."""
SAY_AFTER = 3.0
"""Seconds of that in silence."""


async def last_word(link: Link, stop: Stop, lease_seconds: float) -> bool:
    """Whether everything was acknowledged, in time and before somebody got impatient."""
    seconds = max(LAST_WORD, lease_seconds)
    waiting = asyncio.create_task(link.drained(seconds))
    hurried = asyncio.create_task(stop.hurried.wait())
    either = {waiting, hurried}
    done, _ = await asyncio.wait(either, timeout=SAY_AFTER, return_when=asyncio.FIRST_COMPLETED)
    if not done:
        signals = "one more signal ends" if stop.signal else "two signals end"
        say(f"waiting up to {seconds:g} s for the commander to hear how it ended; {signals} the wait")
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    for task in (waiting, hurried):
        task.cancel()
    await asyncio.gather(waiting, hurried, return_exceptions=True)
    return not waiting.cancelled() and waiting.result()
