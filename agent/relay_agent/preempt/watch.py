"""Asking a source again and again: at its pace, ever less often where nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from relay_agent.preempt.metadata import Unanswered
from relay_agent.preempt.notice import Notice, Poller

LONGEST = 300.0
"""Seconds between two looks at a service that does not answer."""
SAY_AFTER = 3
"""Looks in a row without an answer, after which that is said, once."""


async def watch(
    name: str,
    poller: Poller,
    hear: Callable[[Notice], None],
    say: Callable[[str], None],
    sleep: Callable[[float], asyncio.Future[None]] | None = None,
) -> None:
    """For ever. The same notice is heard again with each look that finds it."""
    pause = sleep or asyncio.sleep
    unanswered = 0
    while True:
        try:
            for notice in await poller.look():
                hear(notice)
        except Exception as error:  # noqa: BLE001 - nothing that a service answers ends a training
            why = (
                str(error) if isinstance(error, Unanswered) else f"what it says cannot be read: {type(error).__name__}"
            )
            unanswered += 1
            if unanswered == SAY_AFTER:
                say(f"PREEMPT: {name} gives no answer ({why}): its notices may not be heard; asking less often")
        else:
            if unanswered >= SAY_AFTER:
                say(f"PREEMPT: {name} answers again")
            unanswered = 0
        await pause(min(LONGEST, poller.every * 2 ** min(unanswered, 16)))
