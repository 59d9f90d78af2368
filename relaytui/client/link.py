"""How well the client hears its commander right now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LinkState(StrEnum):
    CONNECTING = "connecting"  # nothing was heard yet
    LIVE = "live"
    STALE = "stale"  # the picture is as of `since`; trying again
    REFUSED = "refused"  # the commander (or who sits in its place) will not do; trying again, slowly


@dataclass(frozen=True)
class Link:
    """`since` is on the client's monotonic clock: for stale, when the commander was last heard."""

    state: LinkState
    since: float
    reason: str = ""
