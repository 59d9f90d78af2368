"""`logs/e<epoch>.exit` on the volume: a guardian's word on how a trainer ended, for whoever comes after its agent.

Its exit code; and, where something of it was stopped, why: order, deadline, orphan; leftovers, where what
it left behind alone was stopped, or failed, or something of it was killed shortly before its end.
"""

from __future__ import annotations

from relay_agent.checkpoints.disk import folder, read_file
from relay_agent.checkpoints.staging import UNKNOWN_END
from relay_agent.volume.volume import RunFolder


def recorded_end(run: RunFolder, epoch: int) -> int:
    """The exit code of that attempt's trainer. UNKNOWN_END where there is none, and for a 0 of one that was
    stopped: which of its saves had begun by then nobody knows."""
    code, why = _word(run, epoch)
    return code if 0 <= code < UNKNOWN_END and (code or not why) else UNKNOWN_END


def was_stopped(run: RunFolder, epoch: int) -> bool:
    """Whether something of it is known to have been."""
    return bool(_word(run, epoch)[1])


def _word(run: RunFolder, epoch: int) -> tuple[int, list[bytes]]:
    path = run.log(epoch).with_suffix(".exit")
    try:
        with folder(path.parent) as fd:
            code, *why = read_file(fd, path.name, 64).split()
            return int(code), why
    except (OSError, ValueError):
        return UNKNOWN_END, []
