"""What a sync tells: how far it is, as telemetry; what came of it, as events and in the log."""

from __future__ import annotations

from relay_agent.attempt.telling import Teller
from relay_agent.checkpoints.manifest import Sealed
from relay_agent.hub.calls import HubError
from relay_agent.hub.protocol import Sent
from relay_agent.hub.wish import Wish
from relay_agent.process import say
from relaytui.wire.clock import Clock
from relaytui.wire.reports import Transfer
from relaytui.wire.status import TransferKind, TransferPhase
from relaytui.wire.text import clean, counted

PHASES = {
    "hashing": TransferPhase.HASHING,
    "uploading": TransferPhase.UPLOADING,
    "commit": TransferPhase.COMMIT,
    "verify": TransferPhase.COMMIT,
    "tag": TransferPhase.TAG,
    "pruning": TransferPhase.PRUNING,
}

TAGS_AT_ONCE = 10
"""In one event: they fit into what is kept of its data."""


class Shown:
    def __init__(self, wish: Wish, tell: Teller, clock: Clock) -> None:
        self._wish = wish
        self._tell = tell
        self._clock = clock
        self._step = 0
        self._name = ""
        self._total = 0
        self._done = 0
        self._attempt = 1
        self._phase = TransferPhase.WAITING
        self._since = 0.0
        self.synced: int | None = None
        """The last step that is there."""
        self.speed: float | None = None
        """Bytes a second that went, the last time that some did."""
        self._complained = ""

    @property
    def words(self) -> str:
        """How far it is."""
        share = f", {100 * self._done // self._total} %" if self._total and self._done else ""
        return f"step {self._step}: {self._phase}{share}"

    def begin(self, sealed: Sealed, size: int, attempt: int) -> None:
        self._step, self._name, self._total, self._attempt = sealed.manifest.step, sealed.name, size, attempt
        self._done = 0
        self.phase("looking")

    def phase(self, name: str) -> None:
        self._phase = PHASES.get(name, TransferPhase.WAITING)
        self._since = self._clock.boot()
        self._report()

    def progress(self, done: int, total: int) -> None:
        self._done, self._total = done, max(total, self._total)
        self._report(self._rate())

    def _rate(self) -> float | None:
        seconds = self._clock.boot() - self._since
        return self._done / seconds if seconds > 0 and self._done else None

    def synced_to(self, sealed: Sealed, sent: Sent, size: int, seconds: float) -> None:
        self.synced = sealed.manifest.step
        self._complained = ""
        if sent.sent > 1 << 20 and seconds > 0:
            self.speed = sent.sent / seconds
        self._phase, self._done = TransferPhase.DONE, self._total
        self._report()
        repo = self._wish.where.repo
        data = {
            "repo": repo, "revision": sent.revision, "step": str(sealed.manifest.step), "tag": sent.tag,
            "bytes": str(size), "checkpoint": sealed.name,
        }  # fmt: skip
        there = " (it was there already)" if sent.stored else ""
        words = f"{sealed.name} is on {repo} as {sent.tag}{there}"
        self._tell.event("hub.synced", words, data)
        say(words)

    def pruned(self, tags: list[str], freed: int) -> None:
        repo = self._wish.where.repo
        say(f"{', '.join(tags)} went from {repo}; {freed / 1e9:.2f} GB are free")
        for at in range(0, len(tags), TAGS_AT_ONCE):
            some = tags[at : at + TAGS_AT_ONCE]
            self._tell.event("hub.pruned", f"{', '.join(some)} went from {repo}", {"tags": " ".join(some)})

    def dry(self, sealed: Sealed, files: int, size: int, tag: str) -> None:
        self._step, self._name, self._total = sealed.manifest.step, sealed.name, size
        self._phase = TransferPhase.DRY
        self._done = 0
        self._report()
        repo = self._wish.where.repo
        words = (
            f"dry run: {counted(files, 'file')} of {sealed.name}, {counted(size, 'byte')}, would go to {repo} as {tag}"
        )
        self._tell.event("hub.dry", words, {"repo": repo, "tag": tag, "bytes": str(size), "files": str(files)})
        say(words)

    def waits(self, error: HubError, seconds: float) -> None:
        """It failed, and is tried again."""
        self._phase = TransferPhase.WAITING
        self._attempt += 1
        self._report(error=error.words)
        if self._complained != error.code:
            self._complained = error.code
            say(f"the sync to {self._wish.where.repo} waits {seconds:.0f} s: {error.words}; training goes on")

    def failed(self, error: HubError) -> None:
        """It is given up: for good, or until its next turn."""
        self._phase = TransferPhase.FAILED
        self._report(error=error.words)
        for_good = error.kind == "permanent"
        data = {"code": error.code, "words": error.words, "permanent": str(for_good).lower()}
        self._tell.event("hub.failed", error.words, data)
        then = "nothing more is synced until somebody sees to it" if for_good else "it is tried again in its next turn"
        say(f"the sync to {self._wish.where.repo} failed: {error.words}; {then}; training goes on")

    def refused(self, words: str) -> None:
        """By the fence."""
        self._phase = TransferPhase.FAILED
        self._report(error=words)
        self._tell.event("hub.refused", words, {"words": words})
        say(f"nothing was pushed to {self._wish.where.repo}: {words}")

    def _report(self, rate: float | None = None, error: str | None = None) -> None:
        self._tell.transfer(
            Transfer(
                self._clock.wall(), TransferKind.HUB, self._step, self._name or None, self._phase, self._done,
                self._total, rate, self._attempt, clean(error, 300) if error else None, self.synced,
            )
        )  # fmt: skip
