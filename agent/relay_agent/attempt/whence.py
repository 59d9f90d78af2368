"""Where a run goes on from: the volume first, the Hub second, its beginning last. One table; pure.

A step is older or newer by (epoch, seq) of its manifest. The one that the commander knows is known by its manifest's
SHA-256; whatever has only its name is another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from relay_agent.checkpoints.resume import Resume
from relaytui.wire.messages import CheckpointRef

Rule = Literal["ask", "older", "restart"]
"""ON_MISSING_CHECKPOINT."""
NEVER = 2**60
"""An epoch that nobody reaches."""


class Here(StrEnum):
    """What the volume has."""

    NEWEST = "newest"  # the newest that anybody knows of, whole
    NEXT = "next"  # the next best, as what was better is damaged, or lies beside the line: taken without a question
    OLDER = "older"  # one that is whole; the newest that the commander knows is not here
    LOST = "lost"  # none that is whole, though there was one
    EMPTY = "empty"  # none, and nothing tells that there ever was one


class There(StrEnum):
    """What the Hub has."""

    NOTHING = "nothing"  # nothing to resume from, or no Hub
    UNREACHED = "unreached"  # it could not be asked
    NEWEST = "newest"  # the one that the commander knows, or one that is newer, or any where it knows of none
    BETWEEN = "between"  # one that is older than that, and newer than what is here
    BEHIND = "behind"  # none that is newer than what is here


class Act(StrEnum):
    VOLUME = "volume"  # go on from what is here
    HUB = "hub"  # go on from what is there
    BEGIN = "begin"  # from where the run begins: a fork's parent, its base model, or nothing
    ASK = "ask"  # say what is missing, and train nothing


_N, _U, _T, _B, _O = There.NOTHING, There.UNREACHED, There.NEWEST, There.BETWEEN, There.BEHIND
_V, _H, _A, _S = Act.VOLUME, Act.HUB, Act.BEGIN, Act.ASK
_ROWS: dict[tuple[Here, Rule], dict[There, Act]] = {
    (Here.NEWEST, "ask"): {_N: _V, _U: _V, _T: _V, _B: _V, _O: _V},
    (Here.NEWEST, "older"): {_N: _V, _U: _V, _T: _V, _B: _V, _O: _V},
    (Here.NEWEST, "restart"): {_N: _V, _U: _V, _T: _V, _B: _V, _O: _V},
    (Here.NEXT, "ask"): {_N: _V, _U: _V, _T: _H, _B: _H, _O: _V},
    (Here.NEXT, "older"): {_N: _V, _U: _V, _T: _H, _B: _H, _O: _V},
    (Here.NEXT, "restart"): {_N: _V, _U: _V, _T: _H, _B: _H, _O: _V},
    (Here.OLDER, "ask"): {_N: _S, _U: _S, _T: _H, _B: _S, _O: _S},
    (Here.OLDER, "older"): {_N: _V, _U: _V, _T: _H, _B: _H, _O: _V},
    # Where the Hub was not reached nobody knows that the newest is lost: that is not what `restart` was said for.
    (Here.OLDER, "restart"): {_N: _A, _U: _S, _T: _H, _B: _A, _O: _A},
    (Here.LOST, "ask"): {_N: _S, _U: _S, _T: _H, _B: _S, _O: _S},
    (Here.LOST, "older"): {_N: _S, _U: _S, _T: _H, _B: _H, _O: _S},
    (Here.LOST, "restart"): {_N: _A, _U: _S, _T: _H, _B: _A, _O: _A},
    # The commander knows of none either: a Hub that is out of reach holds up no run that has never saved.
    (Here.EMPTY, "ask"): {_N: _A, _U: _A, _T: _H, _B: _S, _O: _S},
    (Here.EMPTY, "older"): {_N: _A, _U: _A, _T: _H, _B: _H, _O: _S},
    (Here.EMPTY, "restart"): {_N: _A, _U: _A, _T: _H, _B: _S, _O: _S},
}
TABLE: dict[tuple[Here, There, Rule], Act] = {
    (here, there, rule): act for (here, rule), row in _ROWS.items() for there, act in row.items()
}


class Mark(NamedTuple):
    """A step's place among the others, as its manifest has it; the greatest is the newest."""

    epoch: int
    seq: int


@dataclass(frozen=True)
class Found:
    act: Act
    resume: Resume | None = None  # where the act is HUB
    words: str = ""  # what there is elsewhere, or why it could not be asked
    older: bool = False  # whether ON_MISSING_CHECKPOINT=older would go on from there
    there: There = There.NOTHING


def is_known(known: CheckpointRef, name: str, epoch: int, sha256: str) -> bool:
    """Whether a step is the one that the commander knows. One from older books has no hash: name and epoch tell."""
    if known.manifest:
        return sha256 == known.manifest
    return (name, epoch) == (known.name, known.epoch)


def there(
    known: CheckpointRef | None, here: Mark | None, mark: Mark, name: str, step: int, sha256: str, *, better: bool,
    ours: int = NEVER, nowhere: bool = False,
) -> There:  # fmt: skip
    """What a step on the Hub is. `known`: the newest that the commander knows. `here`: of the best on the volume, if
    any is whole. `better`: there was a newer one that cannot be had now, though it may be whole. `ours`: the epoch that
    was granted. `nowhere`: the known one is not on the Hub either."""
    if known is not None and is_known(known, name, mark.epoch, sha256):
        return There.NEWEST
    if here is not None and mark <= here:
        return There.BEHIND
    if better:
        return There.BETWEEN
    if known is None:
        return There.NEWEST
    ahead = (mark.epoch, step) > (known.epoch, known.step) and not is_foreign(known, mark.epoch, ours)
    # Whoever went back in a later epoch left the known one where it was: where that is gone, steps would be lost.
    return There.NEWEST if ahead and not (nowhere and step < known.step) else There.BETWEEN


def is_foreign(known: CheckpointRef | None, epoch: int, ours: int) -> bool:
    """Whether a step is of an epoch that a commander which knows the run has not granted to anybody yet: it is of other
    books, or of nobody's."""
    return known is not None and epoch >= ours
