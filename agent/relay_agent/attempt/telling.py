"""What an attempt tells: into its spool for the commander, and into the run's journal on the volume."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from relay_agent.checkpoints.publish import Published
from relay_agent.process import say
from relay_agent.secret_words import scrub
from relay_agent.spool.spool import Spool
from relay_agent.volume.journal import Journal
from relaytui.wire import reports
from relaytui.wire.clock import Clock
from relaytui.wire.text import clean, counted


class Teller:
    """`wake` is called when there is something to send."""

    def __init__(self, spool: Spool, journal: Journal, clock: Clock, wake: Callable[[], None]) -> None:
        self._spool = spool
        self._clock = clock
        self._wake = wake
        self.journal = journal
        self.on_published: list[Callable[[Published], None]] = []

    def report(self, report: reports.StateReport) -> None:
        self._spool.state.append(report)
        self._wake()

    def event(self, kind: str, message: str, data: Mapping[str, str] | None = None, *, send: bool = True) -> None:
        """Into events.jsonl; and to the commander, unless it hears of it in another way."""
        data = {key: clean(scrub(value), 300) for key, value in (data or {}).items()}
        message = clean(scrub(message), 500)
        self.journal.event(kind, message, data)
        if send:
            self.report(reports.Event(self._clock.wall(), kind, message, data))

    def transfer(self, report: reports.Transfer) -> None:
        """How far one is: only the newest word counts."""
        self._spool.telemetry.append(report)
        self._wake()

    def published(self, done: Published) -> None:
        said = f"{done.name}, {counted(done.bytes, 'byte')}"
        say(f"published {said}")
        self.event("checkpoint.published", said, {"name": done.name}, send=False)
        self._hand_on(done)

    def found(self, published: Sequence[Published]) -> None:
        """What an earlier agent of this attempt has published, oldest first. It may not have been told; what is known
        already counts once."""
        if not published:
            return
        newest = published[-1].name
        said = f"{counted(len(published), 'checkpoint')}, the newest {newest}"
        say(f"published before this agent began: {said}")
        self.event("checkpoint.found", said, {"name": newest}, send=False)
        for done in published:
            self._hand_on(done)

    def _hand_on(self, done: Published) -> None:
        self.journal.latest_ckpt = done.name
        self.report(
            reports.Published(self._clock.wall(), done.name, done.step, done.bytes, done.files, done.manifest_sha256)
        )
        self.journal.state()
        for hear in self.on_published:
            hear(done)

    def pruned(self, name: str) -> None:
        self.report(reports.Pruned(self._clock.wall(), name))
        self.event("checkpoint.pruned", name, {"name": name}, send=False)
