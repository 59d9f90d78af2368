"""An attempt whose trainer runs, as seen by who has to wind it up."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from relay_agent.attempt.orders import Orders
from relay_agent.checkpoints.publisher import Publisher
from relay_agent.trainer.supervise import Supervised


class Training:
    def __init__(self, orders: Orders, publisher: Publisher, trainer: Supervised, wish: Path) -> None:
        self._orders = orders
        self._publisher = publisher
        self._trainer = trainer
        self._wish = wish

    @property
    def published(self) -> int:
        """How many checkpoints this agent has published of it."""
        return self._publisher.measured.count

    @property
    def size(self) -> int | None:
        """Bytes of the checkpoint that was published last; None: nobody knows of one."""
        return self._publisher.measured.bytes

    @property
    def speed(self) -> float | None:
        """Bytes a second, with which this agent published last."""
        return self._publisher.measured.speed

    async def ask_to_save(self) -> tuple[bool, str]:
        """Whether it is known to have heard it, and in words how it was asked."""
        answer, signalled = await self._orders.ask_to_save()
        return signalled, f"the trainer was asked to save: {answer.message}"

    async def took_the_wish(self) -> bool:
        """The file by which it was asked is gone: it looks for it."""
        return await asyncio.to_thread(lambda: not os.path.lexists(self._wish) and self._wish.parent.is_dir())

    async def knows_sigterm(self) -> bool:
        """A process of it handles SIGTERM, so that it may save on it."""
        return await asyncio.to_thread(self._trainer.knows, signal.SIGTERM)
