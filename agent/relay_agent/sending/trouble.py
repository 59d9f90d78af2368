"""What of a job did not succeed: raised in the child, told to the agent, and raised there again."""

from __future__ import annotations

from relay_agent.secret_words import scrub
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


def told(error: BaseException, token: str = "") -> Failed:
    """What is the same wherever one sends to. `token`: not told, as what else is secret."""
    if isinstance(error, Trouble):
        return Failed(error.code, error.words, error.kind, error.wait)
    if isinstance(error, MemoryError):
        return Failed("no_memory", "there is not enough memory", "transient")
    words = scrub(f"{type(error).__name__}: {error}")  # before it is cut: half a secret is none that is found
    return Failed("unknown", clean(words.replace(token, "…") if token else words, 200), "unknown")
