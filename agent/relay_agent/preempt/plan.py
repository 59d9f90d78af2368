"""What the time that a pod has left is enough for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SPEED = 200e6
"""Bytes a second that a network volume takes, where none was published yet: the slow end of what they do."""
UNKNOWN = 20.0
"""Seconds that are thought enough to save and publish a checkpoint whose size nobody knows: of 30, some may be gone."""
STEP = 5.0
"""Seconds for the step that the trainer is in, for its start of a save, and for the last report."""
SAFE = 1.5
"""How much longer than the last time it may take: a pod that is taken away is often busy."""


class Act(StrEnum):
    SAVE = "save"  # have it saved, publish that, give the lease back
    TELL = "tell"  # say so at once, and train on: what would be saved could not be published


@dataclass(frozen=True)
class Plan:
    act: Act
    left: float  # seconds
    need: float  # seconds to save and publish, as far as one can tell
    size: int | None = None  # bytes of the checkpoint that was published last

    @property
    def words(self) -> str:
        if self.act is Act.SAVE:
            return f"{self.left:.0f} s are left: the trainer is asked to save, that is published, the lease given back"
        why = f"a checkpoint of {self.size / 1e9:.1f} GB needs about {self.need:.0f} s" if self.size else "too few"
        return f"{self.left:.0f} s are left, {why}: nothing is saved, training goes on to the end"


def plan(left: float, size: int | None, speed: float | None) -> Plan:
    """`size`: bytes of the checkpoint that was published last, `speed`: bytes a second that this took; None: nobody
    knows. A checkpoint is written once by the trainer, and read or copied once to publish it."""
    need = UNKNOWN if size is None else STEP + SAFE * 2 * size / (speed or SPEED)
    return Plan(Act.SAVE if left >= need else Act.TELL, left, need, size)


def kill_margin(grace: float) -> float:
    """Seconds before the end of a pod at which what is left of the trainer is killed: publishing what is whole and the
    last report come after that. torchrun alone may take 30 s to stop its ranks."""
    return min(5.0, 0.3 * max(0.0, grace))


def leave_margin(grace: float) -> float:
    """Seconds before the end of a pod at which nothing is waited for any more, so that the last report is sent."""
    return min(2.0, 0.15 * max(0.0, grace))
