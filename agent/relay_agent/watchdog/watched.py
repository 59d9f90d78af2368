"""What a watchdog has at hand of the attempt that it watches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from relay_agent.outcome.stop import Stop
from relay_agent.output.follow import Follower
from relay_agent.volume.volume import RunFolder
from relay_agent.watchdog.rules import Rules
from relaytui.wire.clock import Clock


class Tell(Protocol):
    def event(self, kind: str, message: str, data: Mapping[str, str] | None = None) -> None: ...


class Publishes(Protocol):
    only_healthy: bool

    @property
    def newest_step(self) -> int | None: ...


@dataclass(frozen=True)
class Watched:
    rules: Rules
    folder: RunFolder
    epoch: int
    base: str | None
    """The checkpoint it resumed from, if it did."""
    follower: Follower
    stop: Stop
    tell: Tell
    clock: Clock
    publisher: Publishes
