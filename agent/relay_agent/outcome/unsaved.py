"""What it cost that a trainer was stopped: whether it had to be killed, and the steps that are in no checkpoint."""

from __future__ import annotations

import signal
from enum import StrEnum

from relay_agent.outcome.endings import signal_of
from relaytui.wire.text import counted

WITHIN = 1
"""Steps that may seem to be missing where a trainer's lines and its checkpoints count from different ends."""


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


def missing(code: int, start: int, reached: int | None, newest: int | None, then: Next) -> str:
    """The steps that are in no checkpoint, and where the run goes on; empty where there are none. As `cost`."""
    safe = start if newest is None else newest
    steps = (reached or 0) - safe
    if steps <= (WITHIN if newest is not None else 0):
        nothing = newest is None and reached is None and code != 0 and then not in (Next.UNKNOWN, Next.ANOTHERS)
        return _from(safe, "nothing was saved", then) if nothing else ""
    which = f"steps {safe + 1} to {reached}" if steps > 1 else f"step {reached}"
    lost = f"{which} {'are' if steps > 1 else 'is'} lost ({counted(steps, 'step')})"
    if then is Next.ANOTHERS:
        return f"{lost}, unless it saved them: the next attempt publishes what is whole"
    ended = ", as SIGTERM ended it before it saved" if signal_of(code) is signal.SIGTERM else ""
    return _from(safe, (f"nothing was saved, {lost}" if newest is None else lost) + ended, then)


def _from(safe: int, words: str, then: Next) -> str:
    if then is Next.AGAIN:
        return f"{words}; the next attempt starts at {f'step {safe}' if safe else 'the beginning, step 0'}"
    if then is Next.UNKNOWN:
        return words
    return f"{words}; {_newest(safe)}" if safe else f"{words}; it has no checkpoint"


def _newest(step: int) -> str:
    return f"its newest checkpoint is of step {step}"
