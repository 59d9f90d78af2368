"""What an upload tells: how far it is, as telemetry; what came of it, as events and in the log."""

from __future__ import annotations

from relay_agent.artifacts.jobs import Attached, Kept
from relay_agent.attempt.telling import Teller
from relay_agent.checkpoints.manifest import Sealed
from relay_agent.hub.calls import HubError
from relay_agent.process import say
from relaytui.wire.clock import Clock
from relaytui.wire.reports import Transfer
from relaytui.wire.status import TransferKind, TransferPhase
from relaytui.wire.text import clean, counted

PHASES = {
    "hashing": TransferPhase.HASHING,
    "uploading": TransferPhase.UPLOADING,
    "commit": TransferPhase.COMMIT,
}
STORE = "the artifact store"


class Shown:
    def __init__(self, tell: Teller, clock: Clock) -> None:
        self._tell = tell
        self._clock = clock
        self._sealed: Sealed | None = None
        self._phase = TransferPhase.WAITING
        self._done = self._total = 0
        self._since: tuple[float, int] | None = None
        self._attempt = 1
        self._complained = ""
        self.stored: int | None = None
        """The last step that is there."""
        self.speed: float | None = None
        """Bytes a second that went, the last time that some did."""

    def begin(self, sealed: Sealed, attempt: int) -> None:
        self._sealed, self._attempt = sealed, attempt
        self._done, self._total = 0, sealed.manifest.total_bytes
        self.phase("")

    def phase(self, name: str) -> None:
        self._phase = PHASES.get(name, TransferPhase.WAITING)
        self._since = None
        self._report()

    def progress(self, done: int, total: int) -> None:
        now = self._clock.boot()
        self._done, self._total = done, total
        self._since = self._since or (now, done)
        since, had = self._since
        self._report((done - had) / (now - since) if now > since else None)

    def kept(self, sealed: Sealed, kept: Kept, size: int, seconds: float) -> None:
        self._complained = ""
        self.stored = sealed.manifest.step
        if kept.sent > 1 << 20 and seconds > 0:
            self.speed = kept.sent / seconds
        self._phase, self._done, self._total = TransferPhase.DONE, size, size
        self._report()
        there = ", which had its bytes already" if kept.stored else ""
        words = f"{sealed.name} is artifact {kept.artifact} of {STORE}{there}"
        data = {"name": sealed.name, "step": str(sealed.manifest.step), "id": str(kept.artifact), "bytes": str(size)}
        self._tell.event("artifact.stored", words, data, send=False)  # the commander tells it itself
        say(words)

    def attached(self, attached: Attached) -> None:
        if attached.kept:
            say(f"{counted(len(attached.kept), 'file')} went to {STORE}")
        if attached.trouble:
            more = f" (and {len(attached.trouble) - 3} more)" if len(attached.trouble) > 3 else ""
            words = f"not attached: {'; '.join(attached.trouble[:3])}{more}"
            self._tell.event("artifact.left", words)
            say(words)

    def waits(self, error: HubError, seconds: float) -> None:
        """It failed, and is tried again."""
        self._phase = TransferPhase.WAITING
        self._attempt += 1
        self._report(error=error.words)
        if self._complained != error.code:
            self._complained = error.code
            say(f"the upload to {STORE} waits {seconds:.0f} s: {error.words}; training goes on")

    def failed(self, error: HubError) -> None:
        """It is given up: for good, or for now."""
        self._phase = TransferPhase.FAILED
        self._report(error=error.words)
        for_good = error.kind == "permanent"
        data = {"code": error.code, "words": error.words, "permanent": str(for_good).lower()}
        self._tell.event("artifact.failed", error.words, data)
        then = "nothing more is sent before the end of the run" if for_good else "it is tried again later"
        say(f"the upload to {STORE} failed: {error.words}; {then}; training goes on")

    def left(self, words: str) -> None:
        self._tell.event("artifact.left", words)
        say(words)

    def _report(self, rate: float | None = None, error: str | None = None) -> None:
        if self._sealed is None:
            return
        manifest = self._sealed.manifest
        self._tell.transfer(
            Transfer(
                self._clock.wall(), TransferKind.ARTIFACT, manifest.step, self._sealed.name, self._phase, self._done,
                self._total, rate, self._attempt, clean(error, 300) if error else None, self.stored,
            )
        )  # fmt: skip
