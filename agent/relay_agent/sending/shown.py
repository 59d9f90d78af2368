"""What is told of what goes off the pod: how far it is, as telemetry; what came of it, as events and in the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from relay_agent.checkpoints.manifest import Sealed
from relay_agent.process import say
from relay_agent.sending.transfer import Moving
from relay_agent.sending.trouble import Trouble
from relaytui.wire.clock import Clock
from relaytui.wire.reports import Transfer
from relaytui.wire.status import TransferKind, TransferPhase

SMALL = 1 << 20
"""Bytes that are too few to tell how fast the way is."""


class Tells(Protocol):
    def event(self, kind: str, message: str, data: Mapping[str, str] | None = None, *, send: bool = True) -> None: ...
    def transfer(self, report: Transfer) -> None: ...


class Shown(Moving):
    kind: ClassVar[TransferKind]
    until: ClassVar[tuple[str, str]]
    """What follows a failure while training goes on: one for good, and one for now."""

    def __init__(self, what: str, lacks: str, tell: Tells, clock: Clock) -> None:
        """`what`: the sync, or the upload, to where; `lacks`: what is not there where its end was not waited for."""
        super().__init__(self.kind, tell.transfer, clock)
        self.what = what
        self.last = what.replace("the ", "the last ", 1)
        self._lacks = lacks
        self._teller = tell
        self.training = True
        """False once the trainer is gone: nothing is said any more of what goes on."""
        self.speed: float | None = None
        """Bytes a second that went, the last time that some did."""
        self._complained = ""
        self._trouble = ""  # what the last try failed of

    @property
    def goes_on(self) -> str:
        return "; training goes on" if self.training else ""

    def of(self, sealed: Sealed, total: int | None = None, attempt: int = 1) -> None:
        self.begin(
            sealed.manifest.step, sealed.name, sealed.manifest.total_bytes if total is None else total, attempt
        )  # fmt: skip

    def arrived(self, sealed: Sealed, size: int, sent: int, seconds: float) -> None:
        self.there, self.total = sealed.manifest.step, size
        self._complained = self._trouble = ""
        if sent > SMALL and seconds > 0:
            self.speed = sent / seconds
        self.ends(TransferPhase.DONE)

    def retries(self, error: Trouble, seconds: float) -> None:
        """It failed, and is tried again; the same is said once."""
        self.attempt += 1
        self._trouble = error.words
        self.waits(error.words)
        if self._complained != error.code:
            self._complained = error.code
            say(f"{self.what} waits {seconds:.0f} s: {error.words}{self.goes_on}")

    def failed(self, error: Trouble, *, spoilt: bool = False) -> None:
        """It is given up: for good, or until its next turn; `spoilt`: this checkpoint alone is, and others go."""
        self.ends(TransferPhase.FAILED, error.words)
        for_good = error.kind == "permanent" and not spoilt
        data = {"code": error.code, "words": error.words, "permanent": str(for_good).lower()}
        self._teller.event(f"{self._first}.failed", error.words, data)
        then = self.until[0 if for_good else 1] if self.training else ""
        then = "that checkpoint is passed over" if spoilt else then
        say("; ".join(filter(None, (f"{self.what} failed: {error.words}", then))) + self.goes_on)

    def refused(self, words: str) -> None:
        """By the fence."""
        self.ends(TransferPhase.FAILED, words)
        self._teller.event(f"{self._first}.refused", words, {"words": words})
        say(f"{self.what} is held back: {words}")

    def left(self, why: str) -> None:
        """The end of the attempt did not wait for it."""
        why = f"{why}; {self._trouble}" if self._trouble else why
        self.ends(TransferPhase.FAILED, why)
        self.say("left", f"{self._lacks}: {why}")

    def say(self, event: str, words: str, data: Mapping[str, str] | None = None, *, send: bool = True) -> None:
        """As an event and in the log."""
        self._teller.event(f"{self._first}.{event}", words, data, send=send)
        say(words)

    @property
    def _first(self) -> str:
        return str(self.kind)
