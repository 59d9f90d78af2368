"""What of a job did not succeed: raised in the child, told to the agent, and raised there again."""

from __future__ import annotations

from relay_agent.sending.protocol import Failed, Kind
from relaytui.wire.text import clean


class Trouble(Exception):  # noqa: N818 - it is told as it is
    """See `Failed`. `phase`: in which it was."""

    def __init__(
        self, code: str, words: str, kind: Kind = "permanent", wait: float | None = None, phase: str = ""
    ) -> None:
        super().__init__(words)
        self.code = code
        self.words = words
        self.kind: Kind = kind
        self.wait = wait
        self.phase = phase


def told(error: BaseException) -> Failed:
    """What is the same wherever one sends to."""
    if isinstance(error, Trouble):
        return Failed(error.code, error.words, error.kind, error.wait)
    if isinstance(error, MemoryError):
        return Failed("no_memory", "there is not enough memory", "transient")
    return Failed("unknown", clean(f"{type(error).__name__}: {error}", 200), "unknown")
