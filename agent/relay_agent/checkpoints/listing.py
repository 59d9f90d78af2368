"""What lies published on the volume, told whole: its commander may have forgotten it, or never have heard."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

from relay_agent.checkpoints.line import survey
from relay_agent.checkpoints.manifest import Sealed, compare_sizes
from relay_agent.checkpoints.tree import Cancelled, Check, Torn, Unreadable, never
from relay_agent.volume.volume import RunFolder
from relaytui.wire.bounds import MAX_CHECKPOINTS
from relaytui.wire.clock import Clock
from relaytui.wire.reports import Listed, OnVolume, StateReport

AGAIN_AFTER = 15.0
"""Seconds until a volume that could not be read is looked through again."""


class Listing:
    """Of one attempt. `check` raises Cancelled once nobody waits for it.

    Between two looks of its publisher, so that nothing is published or pruned meanwhile."""

    def __init__(
        self, folder: RunFolder, clock: Clock, report: Callable[[StateReport], None], check: Check = never
    ) -> None:  # fmt: skip
        self._folder = folder
        self._clock = clock
        self._report = report
        self._check = check
        self._wanted = True  # as an attempt begins, and as it is taken over
        self._wait_until = -math.inf

    def want(self) -> None:
        """The commander forgot."""
        self._wanted, self._wait_until = True, -math.inf

    async def tell(self) -> None:
        """What is there, where that is wanted."""
        if not self._wanted or self._clock.boot() < self._wait_until:
            return
        self._wanted = False
        try:
            told = await asyncio.to_thread(listed, self._folder, self._clock.wall(), self._check)
        except OSError:
            self._wanted, self._wait_until = True, self._clock.boot() + AGAIN_AFTER
            return
        except Cancelled:
            self._wanted = True
            return
        if told is not None:
            self._report(told)


def listed(folder: RunFolder, now: float, check: Check = never) -> Listed | None:
    """None where there are more than can be told: what a part of them says of the others would not be true. OSError
    where the volume does not say what is there. Blocking; Cancelled by `check`."""
    order = survey(folder)
    for _, torn in order.bad:
        _refuse_unread(torn)
    line, beside = _whole(reversed(order.line), now, check), _whole(reversed(order.orphans), now, check)
    if max(len(line), len(beside)) > MAX_CHECKPOINTS:
        return None
    return Listed(now, line, beside)


def _whole(found: Iterable[Sealed], now: float, check: Check) -> list[OnVolume]:
    return [
        OnVolume(
            sealed.name, sealed.manifest.step, sealed.manifest.epoch, sealed.manifest.total_bytes,
            len(sealed.manifest.files), sealed.sha256, min(max(sealed.manifest.created_at, 0.0), now),
        )
        for sealed in found
        if _is_whole(sealed, check)
    ]  # fmt: skip


def _is_whole(sealed: Sealed, check: Check) -> bool:
    check()
    try:
        compare_sizes(sealed)
    except Torn as torn:
        _refuse_unread(torn)
        return False
    return True


def _refuse_unread(torn: Torn) -> None:
    """What cannot be read now is not gone."""
    if isinstance(torn, Unreadable):
        raise OSError(torn.reason)
