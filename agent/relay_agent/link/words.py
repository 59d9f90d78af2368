"""What a link says to people: why there is no session, and that another agent has our name; each not too often."""

from __future__ import annotations

from collections.abc import Callable

from relaytui.wire.clock import Clock
from relaytui.wire.text import clean

SAY_EVERY = 30.0
"""Seconds until it is said again why there is no session."""
SAY_AGAIN = 5.0
"""The same for a reason that is not the one said last."""
MAX_NAMESAKES = 20
"""Hosts of other agents of our name that are told of, at most."""


_PLAINLY = {
    "ClientConnectionResetError: Cannot write to closing transport": "the connection was cut",
    "Cannot write to closing transport": "the connection was cut",
}
"""What libraries say, and what it means."""


class Words:
    def __init__(self, clock: Clock, say: Callable[[str], None]) -> None:
        self._clock = clock
        self._say = say
        self._said: dict[str, float] = {}  # why there was no session, and when that was said
        self._last = ""
        self._namesakes: set[str] = set()  # hosts

    def no_session(self, why: str, at_once: bool) -> None:
        """Another reason is said as it comes, the same one seldom."""
        for raw, plain in _PLAINLY.items():
            why = why.replace(raw, plain)
        now = self._clock.boot()
        self._said = {words: at for words, at in self._said.items() if now - at < SAY_EVERY}
        wait = SAY_EVERY if why == self._last else SAY_AGAIN
        if at_once or now - self._said.get(why, float("-inf")) >= wait:
            self._said[why] = now
            self._last = why
            self._say(why)

    def namesake(self, worker: str, host: str) -> None:
        """Another agent has our name, `worker`, on `host` (none: ""): it is a label, and leases are safe, but people
        cannot tell the two apart."""
        if host and host not in self._namesakes and len(self._namesakes) < MAX_NAMESAKES:
            self._namesakes.add(host)
            self._say(
                f"another agent called {worker} is connected too (on {clean(host, 200)}): give"
                " each its own WORKER_ID, unless that one has just died"
            )
