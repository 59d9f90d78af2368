"""What our own work at the Hub refuses or cannot do."""

from __future__ import annotations

from relay_agent.hub.protocol import Kind


class Trouble(Exception):  # noqa: N818 - it is told as it is
    """See `Failed`."""

    def __init__(self, code: str, words: str, kind: Kind = "permanent", wait: float | None = None) -> None:
        super().__init__(words)
        self.code = code
        self.words = words
        self.kind: Kind = kind
        self.wait = wait
