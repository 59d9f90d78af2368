"""What the line has newest, and whether what an attempt saved goes on from there."""

from __future__ import annotations

from dataclasses import dataclass

from relay_agent.checkpoints.manifest import Sealed
from relay_agent.checkpoints.staging import saved_at


@dataclass(frozen=True)
class Tip:
    """`step` -1: the line is empty. `maker`: the epoch whose trainer saved it; 0 for what a fork began with, which is
    another run's. `at`: when it was saved, in nanoseconds of that trainer's clock; 0 where nothing tells."""

    step: int = -1
    maker: int = 0
    at: int = 0

    @classmethod
    def of(cls, newest: Sealed | None, atomic: bool) -> Tip:
        """`atomic`: publishing renames, so that files keep their times where its manifest does not say."""
        if newest is None:
            return cls()
        forked = newest.manifest.forked_from is not None
        at = newest.manifest.saved_at or (saved_at(newest.path) if atomic else 0)
        return cls(newest.manifest.step, 0 if forked else newest.manifest.maker, at)

    def goes_on(self, maker: int, step: int, at: int, restarts: bool) -> bool:
        """Whether what that attempt saved is after it. Steps only grow, and one that is below means that a resume did
        not take; where its counter `restarts`, and after a fork, the lineage tells: what an attempt saved comes after
        what it resumed from, and among its own the later save after the earlier."""
        if self.step < 0:
            return True
        if self.maker and not restarts:
            return step > self.step
        if self.maker != maker:
            return maker > self.maker
        return at > self.at if at and self.at and at != self.at else step > self.step
