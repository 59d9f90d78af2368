"""A checkpoint that a trainer was asked for, and whether it comes: on a notice, or before a stop without hurry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from relay_agent.process import say
from relaytui.wire.clock import Clock

HEED = 10.0
"""Seconds for a trainer to show that it looks for the file by which it is asked to save."""
LOOK = 0.25


class Saver(Protocol):
    """A trainer that runs."""

    @property
    def published(self) -> int:
        """How many checkpoints of it this agent has published that were begun after it was asked last."""

    @property
    def undecided(self) -> bool:
        """Something that it saved has yet to keep still, or goes into the line."""

    @property
    def awaited(self) -> str:
        """In words, what it began to save after it was asked and that has to keep still; empty where there is none."""

    async def ask_to_save(self) -> tuple[bool, str]:
        """Whether it is known to have heard it, and in words how it was asked."""

    async def took_the_wish(self) -> bool:
        """The file by which it was asked is gone: it looks for it."""

    async def knows_sigterm(self) -> bool:
        """A process of it handles SIGTERM, so that it may save on it."""


class Wish:
    """`heeded`: it is known to have heard it."""

    def __init__(self, saver: Saver, clock: Clock, before: int, heeded: bool) -> None:
        self._saver = saver
        self._clock = clock
        self._before = before
        self.heeded = heeded

    @classmethod
    async def of(cls, saver: Saver, clock: Clock) -> Wish:
        before = saver.published
        heeded, words = await saver.ask_to_save()
        say(words)
        return cls(saver, clock, before, heeded)

    async def came_true(self, by: Callable[[], float], unless: Callable[[], bool] = lambda: False) -> bool:
        """Whether a checkpoint is published by then, on the boot clock (it may change meanwhile); not waited for once
        `unless`."""
        while True:
            if self._saver.published > self._before:
                say("the checkpoint is published: stopping the trainer")
                return True
            self.heeded = self.heeded or await self._saver.took_the_wish()
            if unless() or self._clock.boot() >= by():
                return False
            await asyncio.sleep(LOOK)
