"""In which order runs and workers stand where nobody asked for another: in the shell as in the dashboard."""

from __future__ import annotations

from collections.abc import Iterable

from relaytui.client.words import alarm, without_a_step
from relaytui.wire.rows import RunRow, WorkerRow
from relaytui.wire.status import RunStatus

_ATTENTION = {
    RunStatus.FAILED: 3,
    RunStatus.LOST: 0,
    RunStatus.PREEMPTED: 0,
    RunStatus.DRAINING: 1,
    RunStatus.RUNNING: 1,
    RunStatus.LEASED: 1,
    RunStatus.QUEUED: 2,
    RunStatus.COMPLETED: 4,
    RunStatus.CANCELLED: 5,
}


def attention(row: RunRow) -> tuple[int, str, str]:
    """What should be looked at first has the lowest."""
    wrong = row.silent_since is not None or row.volume_lost_at is not None or row.stalled_at is not None or alarm(row)
    first = 0 if wrong else _ATTENTION[RunStatus.FAILED if without_a_step(row) else row.status]
    return first, row.status.value, row.run_id


def runs_in_order(rows: Iterable[RunRow]) -> list[RunRow]:
    return sorted(rows, key=attention)


def workers_in_order(rows: Iterable[WorkerRow]) -> list[WorkerRow]:
    return sorted(rows, key=lambda row: (row.worker, row.incarnation))
