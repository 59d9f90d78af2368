"""Whether a run has its volume, by the word of its agent: what the run's row shows until it is back."""

from __future__ import annotations

from msgspec.structs import replace

from relaytui.commander.model.records import Attempt
from relaytui.commander.store import runs
from relaytui.commander.store.writer import Tx
from relaytui.wire.reports import Event

LOST = "volume.lost"
OVER = frozenset({"volume.back", "agent.took_over"})
"""A new agent looks for itself."""


def concerns(report: Event) -> bool:
    return report.kind == LOST or report.kind in OVER


def heed(tx: Tx, attempt: Attempt, report: Event, at: float) -> None:
    """`at`: when it was said, on the commander's wall clock."""
    run = runs.get(tx, attempt.run_id)
    if run is None or attempt.epoch != run.epoch:
        return
    lost_at = at if report.kind == LOST else None
    if lost_at != run.volume_lost_at:
        runs.save(tx, replace(run, volume_lost_at=lost_at))
