"""What a dead attempt's trainer saved into its own folder and its agent did not come to take: pods die in that minute.

The newest one that is whole there goes into that attempt's staging folder, from where salvage goes on with it. Every
byte that has a sum is read: nobody flushed it, and a power cut leaves names without bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from relay_agent.checkpoints.adapters import Adapter
from relay_agent.checkpoints.disk import FULL, is_spoilt, refusal
from relay_agent.checkpoints.exit_word import recorded_end
from relay_agent.checkpoints.line import survey
from relay_agent.checkpoints.output_watch import OutputWatch, Ready
from relay_agent.checkpoints.salvage import Told
from relay_agent.checkpoints.tip import Tip
from relay_agent.checkpoints.tree import Check, Torn, Unreadable, Unsettled, never
from relay_agent.volume.volume import RunFolder
from relaytui.wire.clock import SystemClock

TRIES = 3
"""Of the newest ones, where those after it turn out to be damaged."""


def rescue(
    run: RunFolder,
    dead: int,
    root: Path,
    kinds: tuple[Adapter, ...],
    *,
    restarts: bool = False,
    ended: Callable[[RunFolder, int], int] = recorded_end,
    last_step: Callable[[int], int] = lambda epoch: 0,
    over: Callable[[int, int], bool] = lambda epoch, step: True,
    check: Check = never,
) -> list[Told]:
    """For the holder of a later epoch, after its claim: of the attempt `dead` that saved into `root`. `restarts` and
    `over`: as salvage has them. `last_step`: that an attempt printed, for what tells none. Blocking. Cancelled by
    `check`."""
    watch = OutputWatch(
        root, run.staging(dead), math.inf, SystemClock(), kinds=kinds, late_step=lambda: last_step(dead),
        atomic=run.atomic,
    )  # fmt: skip
    watch.may_be_cut = lambda step: not over(dead, step)
    line = survey(run).line
    tip = Tip.of(line[0] if line else None, run.atomic)
    told: list[Told] = []
    for ready in reversed(watch.scan(ended(run, dead))[-TRIES:]):
        step = ready.candidate.step
        if step is None:
            if tip.maker == dead and 0 < ready.saved_at <= tip.at:
                continue
            if not restarts:  # it was saved after that; of which step nobody knows
                ready = replace(ready, heard=max(ready.heard, tip.step + 1))
        elif not tip.goes_on(dead, step, ready.saved_at, restarts):
            continue
        try:
            watch.take(ready, check, deep=True)
            return told
        except Unsettled:
            continue
        except (Torn, OSError) as trouble:
            told.append(_told(dead, root, ready, trouble))
    return told


def _told(dead: int, root: Path, ready: Ready, trouble: Torn | OSError) -> Told:
    what = f"{ready.candidate.path} of epoch {dead}"
    name = ready.candidate.path
    if isinstance(trouble, Unreadable):
        return Told("checkpoint.unread", f"{what} stays where it is: {trouble}", name)
    if isinstance(trouble, Torn):
        return Told("checkpoint.untaken", f"{what} is not taken: {trouble.reason}", name)
    words = trouble.strerror or str(trouble)
    if trouble.errno in FULL:
        return Told("checkpoint.no_space", f"{what} is not taken, the volume is full: {words}", name)
    kind = "checkpoint.untaken" if is_spoilt(trouble) else "checkpoint.refused"
    return Told(kind, f"{what} is not taken, {refusal(trouble, root / name)}", name)
