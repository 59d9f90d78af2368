"""An attempt whose trainer runs, as seen by who has to wind it up."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from os.path import lexists
from pathlib import Path

from relay_agent.attempt.orders import Orders
from relay_agent.attempt.wish import Asked
from relay_agent.checkpoints.publisher import Publisher
from relay_agent.checkpoints.watching import Settling
from relay_agent.trainer.supervise import Supervised

ANSWERS = 2.0
"""Seconds that the volume, or the system, has to tell."""


class Training:
    def __init__(self, orders: Orders, publisher: Publisher, trainer: Supervised, wish: Path) -> None:
        self._orders = orders
        self._publisher = publisher
        self._trainer = trainer
        self._wish = wish
        self._looks: dict[Callable[[], bool], asyncio.Task[bool]] = {}  # those that go on, one of a kind

    @property
    def published(self) -> int:
        """How many checkpoints this agent has published of it that were begun after it was asked."""
        return self._publisher.answers.count

    @property
    def undecided(self) -> bool:
        """Something that it saved has yet to keep still, or goes into the line."""
        return self._publisher.undecided

    @property
    def awaited(self) -> str:
        """In words, what it began to save after it was asked and that has to keep still; empty where there is none."""
        return self._publisher.awaited

    def settling(self) -> list[Settling]:
        """What it saved that has yet to keep still, in the order of saving."""
        return self._publisher.settling()

    @property
    def size(self) -> int | None:
        """Bytes of the checkpoint that was published last; None: nobody knows of one."""
        return self._publisher.measured.bytes

    @property
    def speed(self) -> float | None:
        """Bytes a second, with which this agent published last."""
        return self._publisher.measured.speed

    async def ask_to_save(self) -> Asked:
        """In every way there is."""
        await self._publisher.asked_to_save()
        answer, signalled = await self._orders.ask_to_save()
        if signalled:
            self._publisher.wish_is_taken()
        if not answer.accepted:
            return Asked(False, f"the trainer could not be asked to save: {answer.message}", answer.message)
        return Asked(signalled, f"the trainer was asked to save: {answer.message}")

    async def took_the_wish(self) -> bool:
        """The file by which it was asked is gone: it looks for it."""
        taken = await self._told(self._is_taken)
        if taken:
            self._publisher.wish_is_taken()
        return taken

    async def knows_sigterm(self) -> bool:
        """A process of it handles SIGTERM, so that it may save on it."""
        return await self._told(self._knows_sigterm)

    def _is_taken(self) -> bool:
        return not lexists(self._wish) and self._wish.parent.is_dir()

    def _knows_sigterm(self) -> bool:
        return self._trainer.knows(signal.SIGTERM)

    async def _told(self, look: Callable[[], bool]) -> bool:
        """False also where nobody tells, or not in time: a volume may hang, and a stop does not wait for it. A look
        that hangs takes one thread, of the few that there are; the next ones ask what came of it."""
        task = self._looks.get(look)
        if task is None:
            task = self._looks[look] = asyncio.create_task(asyncio.to_thread(_or_no, look), name="look")
            task.add_done_callback(lambda done: self._looks.pop(look, None))
        await asyncio.wait({task}, timeout=ANSWERS)
        return task.done() and task.result()


def _or_no(look: Callable[[], bool]) -> bool:
    try:
        return look()
    except OSError:
        return False
