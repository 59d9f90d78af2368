"""What publishing took: by that one knows whether there is time for one more checkpoint."""

from __future__ import annotations


class Measured:
    def __init__(self) -> None:
        self.bytes: int | None = None
        """Of the one that was published last, by this agent or the one before it; None: nobody knows of one."""
        self.speed: float | None = None
        """Bytes a second, as this agent published last."""

    def published(self, size: int, seconds: float) -> None:
        self.bytes = size
        self.speed = size / max(seconds, 0.001)
