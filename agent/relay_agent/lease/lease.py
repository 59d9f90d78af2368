"""The holder's side of a lease, pure: until when it is safe, when to renew, and how it ends (design §4)."""

from __future__ import annotations

from dataclasses import dataclass, replace

MARGIN = 0.98
"""The part of a lease its holder counts on: the two clocks may run at slightly different speeds."""
STOP_PART = 1 / 3
"""The part of a lease that a trainer may have to save and stop: in the rest of it a renewal or two may be late."""
LEAST_TO_STOP = 4.0
"""Seconds of the shortest lease at whose end a trainer can be stopped, and not before a renewal could have come."""


@dataclass(frozen=True)
class Lease:
    """A lease held by this agent. Times are on the boot clock, which counts suspend."""

    run_id: str
    epoch: int
    token: str
    seconds: float
    safe_until: float
    lost: str = ""
    """Why it is over for good: superseded, released or not_holder. A lease that is lost stays lost."""

    @classmethod
    def granted(cls, run_id: str, epoch: int, token: str, seconds: float, asked: float) -> Lease:
        """`asked` is when the first request for it was sent: the commander may have answered that one."""
        return cls(run_id, epoch, token, seconds, asked + MARGIN * seconds)

    def renewed(self, sent: float, seconds: float) -> Lease:
        """A renewal sent at `sent` was answered. When the answer came is of no account."""
        if self.lost:
            return self
        return replace(self, seconds=seconds, safe_until=max(self.safe_until, sent + MARGIN * seconds))

    def over(self, why: str) -> Lease:
        return self if self.lost else replace(self, lost=why)

    def safe(self, now: float) -> bool:
        """Whether nobody else can have been granted the run."""
        return not self.lost and now < self.safe_until

    def notice(self, grace: float) -> float:
        """Seconds that a trainer which wants `grace` of them has to save where it is stopped for this lease's end."""
        return min(grace, STOP_PART * self.seconds)

    @property
    def every(self) -> float:
        """Seconds between renewals."""
        return min(30.0, max(1.0, self.seconds / 10))
