"""What a source of notices says, and how it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol

from relay_agent.preempt.metadata import Metadata


@dataclass(frozen=True)
class Notice:
    """The pod is taken away, or may be."""

    source: str
    words: str
    """Of the source, for people."""
    at: float | None = None
    """When the pod ends, in seconds since the epoch; None: the source does not say."""
    advice: bool = False
    """It may be taken away some time: nothing is done but to say so."""


class Poller(Protocol):
    """Asks one source."""

    every: float
    """Seconds between two looks."""

    async def look(self) -> list[Notice]:
        """What it says now; Unanswered where it does not. One that can may wait for a change."""
        ...


@dataclass(frozen=True)
class Surroundings:
    """What a poller may need. `wall`: seconds since the epoch; `lead`: seconds before a known end at which that is
    news."""

    metadata: Metadata
    environ: Mapping[str, str]
    wall: Callable[[], float]
    lead: float


def moment(text: object) -> float | None:
    """Seconds since the epoch of a time as these services write it: ISO 8601 with Z, or as in mails and HTTP. None
    where it is none."""
    if not isinstance(text, str) or not 8 <= len(text) <= 64:
        return None
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            found = parse(text)
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError, TypeError, IndexError):
            continue
    return None
