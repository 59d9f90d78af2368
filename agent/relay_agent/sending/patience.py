"""How long the end of an attempt may wait for what is still to be sent. Pure."""

from __future__ import annotations

import math

from relay_agent.outcome.stop import Why
from relaytui.wire.status import Outcome

ENDS = (Outcome.COMPLETED, Outcome.FAILED)
"""After these the run does not go on by itself."""
LAST = (*ENDS, Outcome.CANCELLED, Outcome.DRAINED)
"""After these it may be long before it does: what is sent then is the last of it."""
START = 10.0
"""Seconds for the child to begin, and for what comes after the bytes."""
SAFE = 1.5
SPEED = 10e6
"""Bytes a second, where nothing was sent yet."""
RESERVE = 5.0
"""Seconds for the last report."""


def patience(
    why: Why | None, outcome: Outcome, left: float, size: int, speed: float | None, wait: float, setting: str
) -> tuple[float, str]:
    """Seconds to wait, and why not longer; no words where the run goes on, and its next attempt sends it.

    `left`: until the pod is gone, inf where nobody knows of an end; `size`: bytes to send; `wait`: what the end of a
    run may wait for it, as `setting` says.
    """
    if why in (Why.LOST, Why.CUT_OFF):
        return 0.0, "the lease is not ours any more"
    if why in (Why.AGAIN, Why.CHANGED):
        return 0.0, ""
    none = f"{setting} is 0" if wait == 0 else ""
    if why is Why.SIGNAL:
        if math.isinf(left):
            return 0.0, none or "nobody knows how long this pod has"
        need = START + SAFE * size / (speed or SPEED)
        left -= RESERVE
        if left < need:
            return 0.0, f"{max(0.0, left):.0f} s are left, and it needs about {need:.0f} s"
        return min(wait, left), none
    if why in (Why.DRAIN, Why.CANCEL) or outcome in ENDS:
        return max(0.0, min(wait, left - RESERVE)), none or ("" if left > RESERVE else "no time is left")
    return 0.0, ""
