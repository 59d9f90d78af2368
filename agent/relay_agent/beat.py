"""When what is looked at now and then is looked at: all of it at the same moments, so that it wakes the agent once."""

from __future__ import annotations

import asyncio


def to_next(every: float) -> float:
    """Seconds to the next multiple of `every` seconds on the loop's clock."""
    return every - asyncio.get_running_loop().time() % every
