"""What a loss says of a checkpoint, the last that was printed included: a bar's state that nothing ended yet, a line
that is not whole, metrics that wait for the bar that has their step.

It is read for that alone, on a copy: what is shown and what counts as progress does not change by it.
"""

from __future__ import annotations

from copy import deepcopy

from relay_agent.output.health import Health
from relay_agent.output.progress import Progress
from relay_agent.watchdog.diverging import LossTrend

_OF_A_NUMBER = ".+-"


def well(step: int, health: Health, trend: LossTrend, progress: Progress, standing: str, now: float) -> bool:
    """Whether a checkpoint of that step was saved while the loss was well. `standing`: what was printed and not read
    yet. It takes nothing back of what was: a checkpoint once known to be spoilt is not made well by half a line."""
    if not (health.healthy(step) and trend.healthy(step)):
        return False
    if not (standing or progress.waits):
        return True
    progress, health, trend = deepcopy((progress, health, trend))
    told = [progress.see(text, now) for text in progress.worthy([standing])]
    told.append(progress.flush(now))
    cut = standing[-1:].isalnum() or standing.endswith(tuple(_OF_A_NUMBER))  # 9.1 may be the half of 9.1e-05
    for each in told:
        if each is not None:
            health.see(each.step, each.metrics)
            if not cut:
                trend.see(each.step, each.metrics, health.sick)
    return health.healthy(step) and trend.healthy(step)
