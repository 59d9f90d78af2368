"""Where what is done with checkpoints is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from relay_agent.checkpoints.publish import Published


class Recorder(Protocol):
    """Of one attempt."""

    def published(self, checkpoint: Published) -> None: ...
    def pruned(self, name: str) -> None: ...
    def event(self, kind: str, message: str, data: Mapping[str, str] | None = None) -> None: ...
