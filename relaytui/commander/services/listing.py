"""What an agent tells of all that lies on its run's volume: the list of checkpoints is mended by it.

Books that were restored, or that a pod told nothing before it was gone, heal so. Only a volume that has the newest one
known here, or goes on beyond it, is believed: on an empty disk the next grant names that one still.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from relaytui.commander.model.records import Attempt
from relaytui.commander.model.run import Run
from relaytui.commander.store import attempts, checkpoints, history, runs
from relaytui.commander.store.writer import Tx
from relaytui.wire.reports import Listed
from relaytui.wire.rows import CheckpointRow


def heed(tx: Tx, attempt: Attempt, report: Listed, at: float) -> None:
    """`at`: when it was told, on the commander's wall clock."""
    run, newest = runs.get(tx, attempt.run_id), checkpoints.newest(tx, attempt.run_id)
    assert run is not None
    here = {one.name: one.manifest for one in (*report.beside, *report.line)}
    if len(here) != len(report.beside) + len(report.line) or not _goes_on(report, newest, here):
        return
    before = checkpoints.known(tx, run.run_id)
    gone = [row for row in before if row.pruned_at is None and here.get(row.name) != row.manifest]
    checkpoints.prune_all(tx, run.run_id, gone, at)
    added = _put_in_order(tx, run, attempt, report, at, before)
    made = max((one.step for one in report.line if one.epoch == attempt.epoch), default=0)
    if made > attempt.last_step:
        attempts.save(tx, attempt.has_made(made))
    if added or gone:
        checkpoints.trim(tx, run.run_id)
    line = checkpoints.kept(tx, run.run_id)
    newest, count = line[-1] if line else None, len(line)
    changed = replace(
        run, checkpoints=count, published=max(run.published + added, count), restored_at=None,
        newest_checkpoint=newest.name if newest is not None else None,
        newest_step=newest.step if newest is not None else None,
    )  # fmt: skip
    if changed != run:
        runs.save(tx, changed)
    if added or gone:
        said = [f"{added} that were not known here"] if added else []
        said += [f"{len(gone)} that are gone from there"] if gone else []
        history.add_event(
            tx, at, "checkpoint.listed", attempt.worker, f"as the volume has them: {', '.join(said)}", run.run_id,
            attempt.epoch, {"added": str(added), "gone": str(len(gone))},
        )  # fmt: skip


def _goes_on(report: Listed, newest: CheckpointRow | None, here: Mapping[str, str]) -> bool:
    if newest is None or here.get(newest.name) == newest.manifest:
        return True
    last = report.line[-1] if report.line else None
    return last is not None and (last.epoch, last.step) > (newest.epoch, newest.step)


def _put_in_order(
    tx: Tx, run: Run, attempt: Attempt, report: Listed, at: float, before: list[CheckpointRow]
) -> int:  # fmt: skip
    """The line in the order in which it was published; how many of it were not known."""
    places = {row.name: (place, row) for place, row in enumerate(before)}
    rows: list[CheckpointRow] = []
    added, last, earliest, in_order = 0, -1, 0.0, True
    for one in report.line:
        place, known = places.get(one.name, (-1, None))
        if known is not None and known.manifest != one.manifest:
            known = None
        added += known is None
        sealed = min(max(at - max(0.0, report.t - one.at), earliest), at)
        when = sealed if known is None or _heard_late(known, sealed, run, attempt) else known.published_at
        if known is None or known.pruned_at is not None:
            place = -1
        in_order = in_order and place > last
        last, earliest = max(place, last), when
        if in_order and known is not None and when == known.published_at:
            continue
        in_order = False  # whatever follows comes after it again
        epoch, hub = min(one.epoch, attempt.epoch), known.hub if known is not None else ""
        rows.append(
            CheckpointRow(run.run_id, one.name, one.step, epoch, one.bytes, one.files, one.manifest, when, hub=hub)
        )
    checkpoints.add_all(tx, run.run_id, rows)
    return added


def _heard_late(known: CheckpointRow, sealed: float, run: Run, attempt: Attempt) -> bool:
    """Whether it was entered when these books heard of it again, long after it was published."""
    since = run.restored_at or 0.0
    if known.epoch == attempt.epoch:  # an attempt that was entered as it is began before that
        since = max(since, attempt.granted_at)
    return known.published_at >= since > sealed
