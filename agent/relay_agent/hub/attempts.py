"""Which attempt pushes: known by its epoch, and by what only its own grant has.

The volume keeps the highest epoch that was found on the Hub: the next grant is above that, as it is above the highest
claim (`lease.acquire`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from relay_agent.config import Settings
from relay_agent.hub import calls
from relay_agent.hub.layout import repo_trouble
from relay_agent.hub.protocol import Highest, Reached
from relay_agent.hub.wish import wish_of
from relay_agent.volume.own_files import read, replace
from relaytui.wire.messages import RunConfig

NOTED = "highest_epoch"
_MAX = 64


def attempt_of(token: str) -> str:
    """Tells one grant from another of the same epoch, and nothing of its token."""
    return hashlib.sha256(b"an attempt on the Hub: " + token.encode()).hexdigest()[:16]


def advice(words: str, run_id: str, holder: int) -> str:
    """What is to be done where an attempt has pushed that the commander does not know of."""
    return (
        f"{words}. Nothing of this attempt comes there, and what it trains lies on its volume alone: its commander does"
        f" not know of the other. Where that one is over, or you end it, `relay-tui requeue {run_id}` once this one has"
        f" ended: the next attempt gets an epoch above {holder}, and pushes"
    )


async def highest(settings: Settings, hf_repo: str, within: float) -> int:
    """The epoch that has pushed last to the run's repository; 0: none, or there is no such repository. `hf_repo`: its
    name, or the commander's. Trouble, after so many seconds at most."""
    wish = wish_of(settings, RunConfig("", settings.run_id, 0, 0, 0, hf_repo, False))
    if repo_trouble(wish.where.repo):
        return 0
    where = msgspec.structs.replace(wish.where, timeout=min(wish.where.timeout, within))
    reached = await calls.call(Highest(where, settings.run_id), Reached, cache=wish.cache, longest=within)
    return reached.epoch


def noted(hf: Path) -> int:
    """The highest that was found there; 0: nothing says. Blocking."""
    data = (read(hf / NOTED, _MAX) or b"").strip()
    return int(data) if data.isdigit() else 0


def note(hf: Path, epoch: int) -> None:
    """OSError. Blocking."""
    if epoch > noted(hf):
        replace(hf / NOTED, b"%d\n" % epoch)
