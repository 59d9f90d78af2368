"""What goes on beside an attempt, for as long as it does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from relay_agent.process import say


class Background:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """What goes wrong in it is said, and ends nothing else."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(_complain)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        say(f"internal error in {task.get_name()}: {type(error).__name__}: {error}")
