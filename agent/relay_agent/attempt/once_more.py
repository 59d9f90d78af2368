"""The same attempt once more: a trainer that failed while no commander answers is started again under the lease that is
held, for nobody is there to grant another, and a pod that waits for one costs as much as a pod that trains.

Nothing else changes: same epoch, same line, same lease with all its rules. What the try before left is moved out of the
way, so that everything of the new one lies where an agent, a salvage or a person looks for it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from relay_agent import guardian
from relay_agent.attempt.tenure import Tenure
from relay_agent.checkpoints.disk import SYSTEM, Disk, make_folder, sync_folder
from relay_agent.checkpoints.output_watch import HEARD, SEEN
from relay_agent.outcome.stop import Stop, Why
from relay_agent.outcome.verdict import Verdict
from relay_agent.volume.volume import RunFolder
from relaytui.wire.status import Outcome

ANSWERS_WITHIN = 3.0
"""Seconds that a commander has to say that it is there: then it grants another lease, and hears of this end first."""


async def is_due(verdict: Verdict, stop: Stop, tenure: Tenure, run: RunFolder, continues: bool) -> bool:
    """`verdict`: with what the retry policy says. `continues`: a run whose lease has run out is trained on. One that
    goes back to a healthy checkpoint needs an epoch of its own, and folders must be moved in one step."""
    if verdict.outcome is not Outcome.CRASHED or stop.why not in (None, Why.AGAIN) or stop.healthy or not run.atomic:
        return False
    if not tenure.held or not (tenure.safe or continues):
        return False
    return not await tenure.answers(ANSWERS_WITHIN)


def make_way(run: RunFolder, epoch: int, pod: Path | None, disk: Disk = SYSTEM) -> None:
    """Log and RELAY_OUTPUT_DIR of the try before get a number, and what was noted of its end goes. `pod`: the attempt's
    folder there. OSError where the volume refuses. Blocking."""
    number = 1
    while any(os.path.lexists(_numbered(path, number)) for path in (run.log(epoch), run.output(epoch))):
        number += 1
    if pod is not None:  # first: an agent that dies in here leaves a trainer that nobody knows the end of
        with suppress(FileNotFoundError):
            disk.unlink(pod / guardian.ENDED)
    for gone in (run.log(epoch).with_suffix(".exit"), run.staging(epoch) / SEEN, run.staging(epoch) / HEARD):
        with suppress(FileNotFoundError):
            disk.unlink(gone)
    for path in (run.log(epoch), run.output(epoch)):
        with suppress(FileNotFoundError):
            disk.rename(path, _numbered(path, number))
    make_folder(disk, run.output(epoch))
    sync_folder(disk, run.output(epoch).parent)


def _numbered(path: Path, number: int) -> Path:
    """`e00000003.1.log`, `e00000003.1`."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}")
