"""How far one checkpoint is on its way, told as telemetry."""

from __future__ import annotations

from collections.abc import Callable

from relay_agent.secret_words import scrub
from relaytui.wire.clock import Clock
from relaytui.wire.reports import Transfer
from relaytui.wire.status import TransferKind, TransferPhase
from relaytui.wire.text import clean

PHASES = {phase.value: phase for phase in TransferPhase} | {"verify": TransferPhase.COMMIT}
"""By what a child says; whatever else it says, nobody sees it move."""


class Moving:
    """`tell`: who hears of it. Nothing is told before it is known what moves."""

    def __init__(self, kind: TransferKind, tell: Callable[[Transfer], None], clock: Clock) -> None:
        self._kind = kind
        self._tell = tell
        self._clock = clock
        self.step = 0
        self.name = ""
        self.done = self.total = 0
        self.attempt = 1
        self.phase = TransferPhase.WAITING
        self.there: int | None = None
        """The last step that is on the other side, of those that are sent."""
        self._further = False
        self._since: tuple[float, int] | None = None  # when this phase began to move, and what was done by then

    @property
    def words(self) -> str:
        share = f", {100 * self.done // self.total} %" if self.total and self.done else ""
        return f"step {self.step}: {self.phase}{share}"

    def begin(self, step: int, name: str, total: int, attempt: int = 1) -> None:
        self.step, self.name, self.total, self.attempt = step, name, total, attempt
        self.done = 0
        self.enters("")

    def enters(self, phase: str) -> None:
        self.phase = PHASES.get(phase, TransferPhase.WAITING)
        self._since = None
        self.report()

    def moved(self, done: int, total: int) -> None:
        now = self._clock.boot()
        self._since = self._since or (now, done)
        since, had = self._since
        self._further = self._further or done > self.done
        self.done, self.total = done, total
        self.report(rate=max(0.0, (done - had) / (now - since)) if now > since else None)

    def further(self) -> bool:
        """Whether anything moved since this was asked last."""
        further, self._further = self._further, False
        return further

    def ends(self, phase: TransferPhase, error: str | None = None) -> None:
        self.phase = phase
        if phase is TransferPhase.DONE:
            self.done = self.total
        self.report(error)

    def waits(self, error: str) -> None:
        """It failed, and is tried again."""
        self._since = None
        self.ends(TransferPhase.WAITING, error)

    def report(self, error: str | None = None, rate: float | None = None) -> None:
        if not self.name:
            return
        self._tell(
            Transfer(
                self._clock.wall(), self._kind, self.step, self.name, self.phase, self.done, self.total, rate,
                self.attempt, clean(scrub(error), 300) if error else None, self.there,
            )
        )  # fmt: skip
