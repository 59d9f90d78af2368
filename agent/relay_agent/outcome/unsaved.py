"""What of an attempt is saved and what is not: the steps that are in no checkpoint, and whether it had to be killed."""

from __future__ import annotations

import signal
from enum import StrEnum

from relay_agent.outcome.endings import signal_of
from relaytui.wire.text import WITHIN, in_none


class Next(StrEnum):
    """What becomes of the run."""

    AGAIN = "again"  # it will be tried again
    OVER = "over"
    ANOTHERS = "another's"  # somebody else has it, and publishes what this one saved
    UNKNOWN = "unknown"  # somebody else decides


def cost(
    code: int, *, hurried: bool, oom: bool, start: int, reached: int | None, newest: int | None, then: Next = Next.AGAIN
) -> str:
    """In words; empty where it stopped in time and nothing is missing or known to be saved. `code` as a shell gives it.
    `start`: the step that it resumed from; `reached`: the last that it printed; `newest`: the last published since."""
    words = missing(code, start, reached, newest, then)
    if not words and newest is not None and then not in (Next.UNKNOWN, Next.ANOTHERS):
        words = _newest(newest)
    return "; ".join(filter(None, (_killed(code, hurried, oom), words)))


def _killed(code: int, hurried: bool, oom: bool) -> str:
    if signal_of(code) is not signal.SIGKILL:
        return ""
    if oom:
        return "the trainer was killed for want of host memory as it stopped"
    return (
        "the trainer was killed, as nothing was waited for" if hurried else "the trainer did not stop, and was killed"
    )


def missing(
    code: int, start: int, reached: int | None, newest: int | None, then: Next, *, torn: bool = False
) -> str:  # fmt: skip
    """From the newest whole checkpoint to the last step, what is in none, and where the run goes on; empty where
    nothing is missing. As `cost`. `torn`: one saved after it is known not to be whole."""
    safe = newest if newest is not None else start or None
    words = in_none(reached or 0, safe, WITHIN if newest is not None and not torn else 0)
    if not words:
        nothing = newest is None and reached is None and code != 0 and then not in (Next.UNKNOWN, Next.ANOTHERS)
        if not (nothing or torn):
            return ""
        return "nothing was saved; " * nothing + (_next(safe, then) or _newest(safe))
    if then is Next.ANOTHERS:
        return f"{words}, unless it saved them: the next attempt publishes what is whole"
    if signal_of(code) is signal.SIGTERM and not torn:
        words += ", as SIGTERM ended it before it saved"
    return "; ".join(filter(None, (words, _next(safe, then))))


def unless_found(start: int, reached: int | None, newest: int | None) -> str:
    """As `missing`, where what it saved after that could not be published and may lie there whole all the same."""
    safe = newest if newest is not None else start or None
    if words := in_none(reached or 0, safe, 0):
        return f"{words}, unless the next attempt finds them whole"
    return f"{_newest(safe)}, unless the next attempt finds a later one whole"


def _next(safe: int | None, then: Next) -> str:
    if then is not Next.AGAIN:
        return ""
    return f"the next attempt starts at {'the beginning, step 0' if safe is None else f'step {safe}'}"


def _newest(step: int | None) -> str:
    return "it has no checkpoint" if step is None else f"its newest checkpoint is of step {step}"
