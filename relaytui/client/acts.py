"""What an act on a run does, in sentences: the same in a dialog and before a question in the shell."""

from __future__ import annotations

from relaytui.client.words import duration, held_off
from relaytui.wire.rows import RunRow
from relaytui.wire.status import RunStatus
from relaytui.wire.text import clean, in_none


def lease_left(row: RunRow, now: float) -> float | None:
    """Seconds the lease still runs; None where none is held."""
    if row.lease_expires_at is None or not row.status.active:
        return None
    return max(0.0, row.lease_expires_at - now)


def held(row: RunRow) -> str:
    """Of whom it is: of who lost it and still has time to stop it is no more."""
    if row.status.active and row.holder is not None:
        return f"held by {clean(row.holder, 128)} at epoch {row.epoch}"
    lost = "" if row.holder is None else f" ({clean(row.holder, 128)} was told to stop)"
    return f"held by nobody, epoch {row.epoch}{lost}"


def hold_off(until: float | None, now: float) -> str:
    """A sentence beside each promise of a grant; empty where agents are granted runs as ever."""
    said = held_off(until, now)
    return f"{said[:1].upper()}{said[1:]}." if said else ""


def drains(row: RunRow) -> tuple[str, ...]:
    if not row.status.active:
        return ("Nobody holds this run: there is nothing to drain.",)
    if row.status is RunStatus.LEASED:
        gives_back = f"{_holder(row)} has started no trainer yet: it starts none, or stops it at once"
        return f"{gives_back}, and releases the run.", "The run is queued again."
    return (
        f"{_holder(row)} stops the trainer with SIGTERM, publishes what it saves, and releases the run.",
        f"{_ASKED} {stakes(row)}",
        "The run is queued again, and the next agent goes on from "
        + ("that checkpoint." if row.newest_step is not None else "what is saved then, or from the beginning."),
    )


def cancels(row: RunRow) -> tuple[str, ...]:
    for_good = "Once cancelled, no agent gets it again; requeue takes that back."
    if row.status is RunStatus.LEASED:
        gives_back = f"{_holder(row)} has started no trainer yet: it starts none, or stops it at once"
        return f"{gives_back}, and the run is cancelled then.", for_good
    if row.status.active:
        holder = _holder(row)
        also = f"also where saving fails or {holder} dies over it"
        return (
            f"{holder} stops the trainer with SIGTERM and publishes what it saves.",
            f"{_ASKED} {stakes(row)}",
            f"The run is cancelled then, {also}. Only where the trainer has reached its last step is it completed.",
            for_good,
        )
    newest = clean(row.newest_checkpoint or "", 128)
    kept = f"what it has saved stays, up to {newest}" if newest else "it has saved nothing"
    if row.holder is not None:
        lost = f"{_holder(row)} has lost this run already and was told to stop"
        return f"{lost}: it is cancelled at once; {kept}.", for_good
    return f"Nobody trains it: it is cancelled at once; {kept}.", for_good


_ASKED = (
    "A trainer that handles no SIGTERM is asked by $RELAY_SAVE_FILE first. One that takes neither loses what is in no"
    " checkpoint."
)


def stakes(row: RunRow) -> str:
    """What of a run that is trained is safe, and what is not by now."""
    newest = row.newest_step
    safe = "it has no checkpoint" if newest is None else f"its newest checkpoint is of step {newest}"
    said = in_none(row.step, newest) or safe
    return f"{said[:1].upper()}{said[1:]}."


def forces(row: RunRow, left: float | None, *, pod_gone: bool, held: str = "") -> tuple[str, ...]:
    """The last one says what the operator answers for, where `pod_gone`. `held`: of `hold_off`."""
    meanwhile = (held,) if held else ()
    if not row.status.active and row.holder is not None:
        lost = f"{_holder(row)} has lost this run already and was told to stop"
        gets = "its epoch grows by one, and the next agent that asks gets it once that trainer is dead"
        return f"{lost}: {gets}.", *meanwhile
    if not row.status.active:
        return "Nobody holds this run: its epoch grows by one, and the next agent that asks gets it.", *meanwhile
    holder = _holder(row)
    what = (
        f"{holder} loses the run now, is told to stop, and publishes nothing more. What it has saved whole when the"
        " next agent starts, that one takes up, if both have the same volume."
    )
    told = (what,) if row.status is RunStatus.LEASED else (what, stakes(row))
    if pod_gone:
        risk = "If that pod does live, two trainers run for a while; only the new one's checkpoints count."
        return *told, *meanwhile, f"Another agent may start {'then' if held else 'at once'}. {risk}"
    at_last = f"at the latest in {duration(left)}" if left else "now, as its lease is over"
    return *told, f"Another agent may start when {holder} has said that its trainer is dead, {at_last}.", *meanwhile


def forced(row: RunRow, epoch: int, held: str = "") -> str:
    """What came of it; `row` as it is then, which names who held the run for as long as that may still be training.
    `held`: of `hold_off`."""
    run_id, but = clean(row.run_id, 128), f". {held}" if held else ""
    if row.status.ended:
        return f"{run_id}: it is {row.status.value}, at epoch {epoch}; no agent gets it"
    if row.holder is None:
        return f"{run_id}: nobody holds it, now at epoch {epoch}; the next agent that asks gets it{but}"
    dead = f"once {_holder(row)}'s trainer is dead"
    return f"{run_id}: taken at epoch {epoch}; the next agent that asks gets it {dead}{but}"


def requeues(row: RunRow, held: str = "") -> tuple[str, ...]:
    newest = clean(row.newest_checkpoint or "", 128)
    where = f"goes on from its newest checkpoint, {newest}" if newest else "begins it anew, as it has no checkpoint"
    return f"The run is queued again, and the next agent that asks {where}.", *((held,) if held else ())


def _holder(row: RunRow) -> str:
    return clean(row.holder or "its holder", 128)
