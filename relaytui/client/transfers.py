"""How far checkpoints are on their way to the Hub, to the artifact store and back, in words: the same in the dashboard
and in the shell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from relaytui.client.words import age, ago, count, duration, size
from relaytui.wire.rows import RunRow, TransferRow
from relaytui.wire.status import TransferKind, TransferPhase
from relaytui.wire.text import clean

SILENT_AFTER = 60.0
"""Seconds after which it is said that nothing was heard of a transfer."""
NEWS_FOR = 300.0
"""Seconds for which it is said that a checkpoint was brought back."""

_NAMES = {TransferKind.HUB: "hub", TransferKind.ARTIFACT: "store", TransferKind.RESTORE: "restore"}
_DOING = {
    TransferPhase.WAITING: "waiting to send",
    TransferPhase.HASHING: "hashing",
    TransferPhase.UPLOADING: "uploading",
    TransferPhase.COMMIT: "committing",
    TransferPhase.TAG: "tagging",
    TransferPhase.PRUNING: "pruning older ones",
    TransferPhase.DOWNLOADING: "downloading",
    TransferPhase.DONE: "done",
    TransferPhase.FAILED: "failed",
    TransferPhase.DRY: "dry run",
}
_SHORT = {
    TransferPhase.WAITING: "wait",
    TransferPhase.HASHING: "hash",
    TransferPhase.COMMIT: "commit",
    TransferPhase.TAG: "tag",
    TransferPhase.PRUNING: "prune",
}
_MOVES_BYTES = frozenset({TransferPhase.HASHING, TransferPhase.UPLOADING, TransferPhase.DOWNLOADING})


class Word(NamedTuple):
    """`tone`: text, strong, muted, good, warn or bad."""

    text: str
    tone: str = "text"


Group = list[Word]
"""What stands together; a line is made of groups, of which the last give way first."""


def of_kind(row: RunRow, kind: TransferKind) -> TransferRow | None:
    return next((each for each in row.transfers if each.kind is kind), None)


def on_hub(row: RunRow) -> bool:
    """Whether it has a repository on the Hub, as far as it is known: what it publishes first goes there at once."""
    told = row.synced_repo or row.sync_error or row.synced_at is not None
    return bool(told) or of_kind(row, TransferKind.HUB) is not None


def going_on(row: RunRow, transfer: TransferRow) -> bool:
    """Whether it is on its way, as far as anybody knows: not over, and of the attempt that holds the run."""
    return not transfer.phase.over and row.status.active and transfer.epoch == row.epoch


def failed(row: RunRow, transfer: TransferRow) -> bool:
    """Whether it is a failure of the run as it is: one that ended with an attempt that was replaced, as its lease was
    taken, is nothing to mend."""
    return transfer.phase is TransferPhase.FAILED and transfer.epoch == row.epoch


def hub_sign(row: RunRow) -> Word:
    """What a column of a few cells can say of the Hub: how far a sync is, or the last step that is there."""
    return _sign(row, TransferKind.HUB, row.synced_step, trouble=bool(row.sync_error), there=row.synced_at is not None)


def store_sign(row: RunRow) -> Word:
    """The same of the artifact store."""
    return _sign(row, TransferKind.ARTIFACT, row.stored_step)


def _sign(row: RunRow, kind: TransferKind, step: int | None, *, trouble: bool = False, there: bool = False) -> Word:
    transfer = of_kind(row, kind)
    if transfer is not None and going_on(row, transfer):
        if transfer.phase is TransferPhase.UPLOADING and transfer.total:
            return Word(f"↑ {_percent(transfer)}", "good")
        return Word(_SHORT.get(transfer.phase, "↑"), "warn" if transfer.error else "good")
    if trouble or (transfer is not None and failed(row, transfer)):
        return Word("✗ failed", "bad")
    if step is not None:
        return Word(count(step))
    if there:
        return Word("✓")
    if transfer is not None and transfer.phase is TransferPhase.DRY:
        return Word("dry", "muted")
    return Word("–", "faint")


def syncs_in_words(rows: Iterable[RunRow]) -> str:
    """`3 on the hub, 1 on the way, 1 failed`, of all runs; empty where none has to do with it."""
    counts = {"on the hub": 0, "on the way": 0, "failed": 0}
    for row in rows:
        hub = of_kind(row, TransferKind.HUB)
        counts["on the hub"] += row.synced_at is not None
        counts["on the way"] += hub is not None and going_on(row, hub)
        counts["failed"] += hub_sign(row).tone == "bad"
    return ", ".join(f"{number} {word}" for word, number in counts.items() if number)


def transfer_lines(row: RunRow, now: float) -> list[list[Group]]:
    """A line for each transfer that there is something to say of, and one of what is on the Hub; what matters most
    first. None where this run has nothing to do with either."""
    lines = [_of(row, kind, now) for kind in (TransferKind.RESTORE, TransferKind.HUB, TransferKind.ARTIFACT)]
    return [line for line in (*lines, on_the_hub(row, now)) if line]


def _of(row: RunRow, kind: TransferKind, now: float) -> list[Group]:
    transfer = of_kind(row, kind)
    if transfer is None:
        return []
    name = Word(f"{_NAMES[kind]}  ", "muted")
    step = f"step {count(transfer.step)}"
    if going_on(row, transfer):
        return [[name, _state(transfer, step), *_tries(transfer)], *_told(transfer), *_numbers(transfer, now)]
    if not transfer.phase.over:
        return [[name, Word(f"cut off while {_doing(transfer)} {step}", "warn")], [_ago(transfer, now)]]
    if transfer.phase is TransferPhase.FAILED:
        when = Word(f"  {ago(now - transfer.at)}", "muted")
        if not failed(row, transfer):
            return _of_before(row, transfer, [name, Word(f"{step} failed in an attempt that is over", "muted"), when])
        return [[name, Word(f"✗ {step} failed", "bad"), *_tries(transfer), when], *_told(transfer)]
    if transfer.phase is TransferPhase.DRY:
        said = f"dry run: {step} would be sent" + (f", {size(transfer.total)}" if transfer.total else "")
        return [[name, Word(said)], [Word("nothing was", "muted")], [_ago(transfer, now)]]
    if kind is TransferKind.RESTORE and transfer.epoch == row.epoch and now - transfer.at < NEWS_FOR:
        brought = f"{step} was brought back" + (f", {size(transfer.done)}" if transfer.done else "")
        return [[name, Word(f"✓ {brought}", "good")], [_ago(transfer, now)]]
    return []  # it shows in what is there


def _of_before(row: RunRow, transfer: TransferRow, what: Group) -> list[Group]:
    """A failure that is not the run's any more; nothing where a later attempt made up for it."""
    there = {TransferKind.HUB: row.synced_step, TransferKind.ARTIFACT: row.stored_step}.get(transfer.kind)
    if there is not None and there >= transfer.step:
        return []
    return [what, *([Word(word.text, "muted") for word in group] for group in _told(transfer))]


def _state(transfer: TransferRow, step: str) -> Word:
    if transfer.phase is TransferPhase.WAITING:
        return Word(f"{step} waits to be tried again" if transfer.error else f"{step} waits for its turn", "warn")
    return Word(_doing(transfer) + (f" {step}" if transfer.phase is not TransferPhase.PRUNING else ""), "good")


def _doing(transfer: TransferRow) -> str:
    return _DOING[transfer.phase]


def _tries(transfer: TransferRow) -> Group:
    return [Word(f", try {count(transfer.attempt)}", "warn")] if transfer.attempt > 1 else []


def _told(transfer: TransferRow) -> Iterator[Group]:
    if transfer.error:
        yield [Word(clean(transfer.error, 300), "bad" if transfer.phase is TransferPhase.FAILED else "warn")]


def _numbers(transfer: TransferRow, now: float) -> Iterator[Group]:
    silent = now - transfer.at > SILENT_AFTER
    if silent:
        yield [Word(f"nothing heard of it for {age(now - transfer.at)}", "warn")]
    if transfer.total and transfer.phase in (*_MOVES_BYTES, TransferPhase.WAITING):
        yield [Word(f"{size(transfer.done)}/{size(transfer.total)}"), Word(f"  {_percent(transfer)}")]
    if not silent and transfer.total and transfer.rate and transfer.phase in _MOVES_BYTES:
        yield [Word(f"{size(int(transfer.rate))}/s")]
        left = max(0, transfer.total - transfer.done) / transfer.rate
        if left < 10**9:
            yield [Word("eta ", "muted"), Word(duration(left))]


def on_the_hub(row: RunRow, now: float) -> list[Group]:
    """The last step that is there, whether the newest is, since when, where, and why the last sync failed."""
    groups: list[Group] = []
    hub = of_kind(row, TransferKind.HUB)
    if row.synced_at is not None:
        what = f"step {count(row.synced_step)}" if row.synced_step is not None else "synced"
        when = Word(f"  {ago(now - row.synced_at)}", "muted")
        groups.append([Word("on the hub  ", "muted"), Word(what, "strong"), when])
        if row.synced_step is not None and row.newest_step is not None and row.newest_step != row.synced_step:
            groups.append([Word(f"newest {count(row.newest_step)} not yet", "muted")])
    said = hub is not None and (hub.phase is TransferPhase.FAILED or bool(hub.error))  # in the line above
    if row.sync_error and not said:
        mark = "✗ " if row.synced_at is not None else "hub  ✗ "
        groups.append([Word(mark, "bad"), Word(clean(row.sync_error, 300), "bad")])
    if row.synced_repo:
        groups.append([Word(clean(row.synced_repo, 200))])
        if row.synced_revision:
            groups.append([Word(clean(row.synced_revision, 64)[:8], "muted")])
    return groups


def _percent(transfer: TransferRow) -> str:
    """Rounded down: 100 % is said only when it is."""
    return f"{int(min(1.0, transfer.done / transfer.total) * 100)}%"


def _ago(transfer: TransferRow, now: float) -> Word:
    return Word(ago(now - transfer.at), "muted")
