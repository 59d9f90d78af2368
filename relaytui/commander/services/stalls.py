"""Whether a run's trainer gets on, by the word of its agent: what the run's row shows until it moves again."""

from __future__ import annotations

from msgspec.structs import replace

from relaytui.commander.model.records import Attempt
from relaytui.commander.store import runs
from relaytui.commander.store.writer import Tx
from relaytui.wire.reports import Event
from relaytui.wire.text import clean

STALLED = "trainer.stalled"
OVER = frozenset({"trainer.moving", "trainer.exited", "agent.took_over"})
"""A new agent looks for itself."""
LONGEST = 366 * 86_400


def concerns(report: Event) -> bool:
    return report.kind == STALLED or report.kind in OVER


def heed(tx: Tx, attempt: Attempt, report: Event, now: float) -> None:
    """`now`: when it was said, on the commander's wall clock."""
    run = runs.get(tx, attempt.run_id)
    if run is None or attempt.epoch != run.epoch or not run.status.active:
        return
    if report.kind == STALLED:
        phase = clean(report.data.get("phase", ""), 32).strip() or "?"
        runs.save(tx, replace(run, stalled_in=phase, stalled_at=now - _seconds(report.data.get("seconds", ""))))
    elif run.stalled_in:
        runs.save(tx, replace(run, stalled_in="", stalled_at=None))


def _seconds(text: str) -> int:
    return min(int(text), LONGEST) if text.isascii() and text.isdigit() and len(text) < 12 else 0
