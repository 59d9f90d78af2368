"""Keys one after another: each is through with all it does before the next one sets out.

Textual sends a key to what has the focus, and runs bindings only when it has bubbled up from there. Of keys that come
in one burst (a paste without brackets, a quick typist, a slow line) the second would meet the focus as it was before
the first did anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from textual.app import App
from textual.dom import DOMNode
from textual.events import Event
from textual.message import Message
from textual.timer import Timer

LOST_AFTER = 0.3
"""Seconds after which it is asked whether what got the key is still there."""


class KeyDone(Message, verbose=True):
    """Follows a key through the same queues, so that where it arrives the key did before."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class KeyQueue:
    """`take` every key (and paste) that comes from the terminal; `handle` gets them one at a time."""

    def __init__(self, app: App[Any], handle: Callable[[Event], Awaitable[None]]) -> None:
        self._app = app
        self._handle = handle
        self._held: deque[Event] = deque()
        self._under_way: DOMNode | None = None
        self._number = 0
        self._timer: Timer | None = None

    async def take(self, event: Event) -> None:
        if self._under_way is not None:
            self._held.append(event)
        else:
            await self._pass_on(event)

    def done(self, number: int) -> None:
        """The key of this number came back. The next one comes behind what this one asked for (a focus, a screen)."""
        if number == self._number:
            self._number += 1
            self._app.call_later(self._next)

    async def _pass_on(self, event: Event) -> None:
        await self._handle(event)
        if event.is_forwarded and self._app.is_running:
            target: DOMNode = self._app.focused or self._app.screen
            self._under_way = target
            target.post_message(KeyDone(self._number))
            self._watch()

    def _watch(self) -> None:
        self._timer = self._app.set_timer(LOST_AFTER, self._look)

    def _look(self) -> None:
        """Its target may have vanished with the key's mark in its queue: then nothing comes back."""
        target = self._under_way
        if target is not None and target.is_attached and target.is_running:
            self._watch()
        else:
            self.done(self._number)

    async def _next(self) -> None:
        self._under_way = None
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        while self._held and self._under_way is None:
            await self._pass_on(self._held.popleft())
