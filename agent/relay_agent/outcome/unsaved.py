"""What it cost that a trainer was stopped: whether it had to be killed, and the steps that are in no checkpoint."""

from __future__ import annotations

import signal

from relay_agent.outcome.endings import signal_of
from relaytui.wire.text import counted

WITHIN = 1
"""Steps that may seem to be missing where a trainer's lines and its checkpoints count from different ends."""


def cost(
    code: int, *, hurried: bool, oom: bool, start: int, reached: int | None, newest: int | None, goes_on: bool = True
) -> str:
    """In words; empty where it stopped in time and nothing is missing. `code` as a shell gives it. `start`: the step
    that it resumed from; `reached`: the last that it printed; `newest`: the last published since. `goes_on`: the run
    will be tried again."""
    return "; ".join(filter(None, (_killed(code, hurried, oom), _missing(code, start, reached, newest, goes_on))))


def _killed(code: int, hurried: bool, oom: bool) -> str:
    if signal_of(code) is not signal.SIGKILL:
        return ""
    if oom:
        return "the trainer was killed for want of host memory as it stopped"
    return (
        "the trainer was killed, as nothing was waited for" if hurried else "the trainer did not stop, and was killed"
    )


def _missing(code: int, start: int, reached: int | None, newest: int | None, goes_on: bool) -> str:
    safe = start if newest is None else newest
    missing = (reached or 0) - safe
    if missing <= (WITHIN if newest is not None else 0):
        return (
            "" if code == 0 or newest is not None or reached is not None else _from(safe, "nothing was saved", goes_on)
        )
    steps = f"steps {safe + 1} to {reached}" if missing > 1 else f"step {reached}"
    lost = f"{steps} {'are' if missing > 1 else 'is'} lost ({counted(missing, 'step')})"
    ended = ", as SIGTERM ended it before it saved" if signal_of(code) is signal.SIGTERM else ""
    return _from(safe, (f"nothing was saved, {lost}" if newest is None else lost) + ended, goes_on)


def _from(safe: int, words: str, goes_on: bool) -> str:
    if goes_on:
        return f"{words}; the next attempt starts at {f'step {safe}' if safe else 'the beginning, step 0'}"
    return f"{words}; its newest checkpoint is of step {safe}" if safe else f"{words}; it has no checkpoint"
