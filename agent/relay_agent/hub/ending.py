"""How long the end of an attempt may wait for the last sync. Pure."""

from __future__ import annotations

import math

from relay_agent.outcome.stop import Why
from relaytui.wire.status import Outcome

ENDS = (Outcome.COMPLETED, Outcome.FAILED)
"""After these the run does not go on by itself."""
START = 10.0
"""Seconds for the child to begin, the commit, and the tag."""
SAFE = 1.5
SPEED = 10e6
"""Bytes a second, where nothing was sent yet."""
RESERVE = 5.0
"""Seconds for the last report."""


def patience(
    why: Why | None, outcome: Outcome, left: float, size: int, speed: float | None, wait: float
) -> tuple[float, str]:
    """Seconds to wait, and why not longer; no words where the run goes on, and its next attempt sends it.

    `left`: until the pod is gone, inf where nobody knows of an end; `size`: bytes to send; `wait`: what the end of a
    run may wait for it (HF_END_WAIT).
    """
    if why in (Why.LOST, Why.CUT_OFF):
        return 0.0, "the lease is not ours any more"
    if why in (Why.AGAIN, Why.CHANGED):
        return 0.0, ""
    if why is Why.SIGNAL:
        if math.isinf(left):
            return 0.0, "nobody knows how long this pod has"
        need = START + SAFE * size / (speed or SPEED)
        left -= RESERVE
        if left < need:
            return 0.0, f"{max(0.0, left):.0f} s are left, and it needs about {need:.0f} s"
        return min(wait, left), ""
    if why in (Why.DRAIN, Why.CANCEL) or outcome in ENDS:
        return max(0.0, min(wait, left - RESERVE)), "HF_END_WAIT is 0" if wait == 0 else ""
    return 0.0, ""
