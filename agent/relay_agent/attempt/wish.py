"""A checkpoint that a trainer was asked for, and whether it comes: on a notice, or before a stop without hurry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from relay_agent.process import say
from relaytui.wire.clock import Clock

HEED = 10.0
"""Seconds for a trainer to show that it looks for the file by which it is asked to save."""
LOOK = 0.25


class Asked(NamedTuple):
    """`heeded`: it is known to have heard it; `words`: how it was asked; `unasked`: why it could not be, or nothing."""

    heeded: bool
    words: str
    unasked: str = ""


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

    async def ask_to_save(self) -> Asked:
        """In every way there is."""

    async def took_the_wish(self) -> bool:
        """The file by which it was asked is gone: it looks for it."""

    async def knows_sigterm(self) -> bool:
        """A process of it handles SIGTERM, so that it may save on it."""


class Wish:
    """`heeded`: it is known to have heard it; `unasked`: why it could not be asked."""

    def __init__(self, saver: Saver, clock: Clock, before: int, asked: Asked) -> None:
        self._saver = saver
        self._clock = clock
        self._before = before
        self.heeded, self.unasked = asked.heeded, asked.unasked

    @classmethod
    async def of(cls, saver: Saver, clock: Clock) -> Wish:
        before = saver.published
        asked = await saver.ask_to_save()
        say(asked.words)
        return cls(saver, clock, before, asked)

    @property
    def heeded_within(self) -> float:
        """Seconds that it has to show that it looks for the file."""
        return 0.0 if self.unasked else HEED

    @property
    def unheeded(self) -> str:
        """In words, of a trainer that did not: it knows no SIGTERM either."""
        if self.unasked:
            return f"the trainer could not be asked for a checkpoint ({self.unasked}) and knows no SIGTERM"
        return "the trainer takes no wish for a checkpoint and knows no SIGTERM"

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
