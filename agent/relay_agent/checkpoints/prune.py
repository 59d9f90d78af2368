"""Keep the newest checkpoints of the line, delete older ones: never below two, never one that something rests on."""

from __future__ import annotations

from collections.abc import Callable, Collection

from relay_agent.checkpoints.aside import empty_trash, throw_away, trim
from relay_agent.checkpoints.disk import SYSTEM, Disk
from relay_agent.checkpoints.line import survey
from relay_agent.checkpoints.manifest import sizes_match
from relay_agent.checkpoints.retention import NEWEST_ONLY, Retention
from relay_agent.volume.volume import RunFolder

KEEP_AT_LEAST = 2


def _always() -> bool:
    return True


def prune(
    run: RunFolder,
    keep: int,
    protect: Collection[str] = (),
    still_mine: Callable[[], bool] = _always,
    disk: Disk = SYSTEM,
    retention: Retention = NEWEST_ONLY,
) -> list[str]:
    """Delete whole checkpoints beyond the newest `keep` (at least 2) of the line; their names, newest first. Blocking.

    Spared besides: the newest two saved while the loss was well, what `retention` says, every claim's base,
    `protect`, and the newest of each orphan line. Those that are not whole neither count nor go: the next resume sets
    them aside. Of staged folders that lie aside a few are kept. Asks `still_mine` before each one and stops where it
    says no.
    """
    empty_trash(run, disk)
    order = survey(run)
    line = [sealed for sealed in order.line if sizes_match(sealed)]
    orphans = [sealed for sealed in order.orphans if sizes_match(sealed)]

    spared = set(protect) | order.bases
    spared.update(sealed.name for sealed in (line + orphans)[: max(keep, KEEP_AT_LEAST)])
    # Two: a loss that is still finite does not show yet what the update after it made of the weights.
    spared.update([sealed.name for sealed in line if sealed.manifest.healthy][:KEEP_AT_LEAST])
    spared.update(retention.spared(line))
    tips: set[int] = set()
    for sealed in orphans:
        if sealed.manifest.epoch not in tips:
            tips.add(sealed.manifest.epoch)
            spared.add(sealed.name)

    removed: list[str] = []
    for sealed in line + orphans:
        if sealed.name in spared:
            continue
        if not still_mine():
            break
        throw_away(run, sealed.path, disk)
        removed.append(sealed.name)
    trim(run, still_mine, disk)
    return removed
