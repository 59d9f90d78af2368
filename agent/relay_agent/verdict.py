"""How an attempt ended, in the commander's words and as an exit code."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from relay_agent.progress import Progress
from relay_agent.stop import Stop, Why
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.status import Outcome
from relaytui.wire.text import clean


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    exit_code: int
    """Of the agent."""
    step: int
    message: str
    trainer_code: int | None = None

    @classmethod
    def before_start(cls, stop: Stop, step: int) -> Verdict:
        """Stopped before there was a trainer."""
        code = int(Exit.LEASE) if stop.lost else stop.exit_code
        return cls(_stopped(stop), code, step, f"{stop.message}, before the trainer started")


def judge(
    code: int,
    stop: Stop,
    progress: Progress,
    newest: int | None,
    last_line: str,
    unpublished: str = "",
    kept: bool = False,
) -> Verdict:
    """`code` as a shell gives it. Completed is only what ran to its last step by itself.

    `newest`: step of the last checkpoint published. `unpublished`: which checkpoints are not on the volume, and why;
    `kept`: the next attempt can publish them.
    """
    step, total = max(progress.step, newest or 0), progress.total
    if stop.why is not None:
        own = int(Exit.LEASE) if stop.lost else code
        if stop.why is Why.CUT_OFF:
            own = own or int(Exit.LEASE)
        if not own and stop.why is Why.SIGNAL:
            own = stop.exit_code
        return Verdict(_stopped(stop), own, step, stop.message, code)
    if code != 0:
        message = f"the trainer {describe(code)} at step {step}"
        if last_line:
            message += f"; its last words: {clean(last_line, 300)}"
        return Verdict(Outcome.FAILED, code, step, message, code)
    if not progress.complete(step):
        return Verdict(Outcome.FAILED, int(Exit.FAILED), step, f"exited 0 at step {step} of {total}", code)
    message = f"reached step {step}" + (f" of {total}" if total else "")
    if progress.first is None and newest is None and total is None:
        message = "exited 0 without a step seen"
    elif progress.first is not None and progress.first < progress.start:
        message += f"; the resume did not take: it began at step {progress.first}, not after {progress.start}"
    if unpublished and kept:  # the run's work is done and safe: whoever takes it up again has only that left to do
        message = f"{message}, but {unpublished}; it is kept, and published once there is room"
        return Verdict(Outcome.PREEMPTED, int(Exit.STATE), step, message, code)
    if unpublished:
        return Verdict(Outcome.FAILED, int(Exit.FAILED), step, f"{message}, but {unpublished}", code)
    return Verdict(Outcome.COMPLETED, 0, step, message, code)


def given_back(message: str, step: int, code: int) -> Verdict:
    """Nobody was there when the trainer was stopped: the run goes on from what it saved."""
    return Verdict(Outcome.PREEMPTED, code, step, message, code)


def never_started(error: RelayError, stop: Stop, step: int = 0) -> Verdict:
    """No trainer ran, so nothing of this is the run's own failing: another pod, or this one once it is mended, goes on
    with it. Why stands in the message."""
    outcome = Outcome.SUPERSEDED if stop.lost else Outcome.PREEMPTED
    return Verdict(outcome, error.exit_code, step, f"the trainer was not started: {error}")


def volume_failed(error: OSError, root: Path) -> RelayError:
    where = f" ({error.filename!s:.300})" if error.filename else ""
    return RelayError(
        "volume_failed",
        f"the volume {root} failed: {error.strerror or error}{where}",
        "run `relay-agent doctor` on this pod; the run is free for another one",
        exit_code=Exit.STATE,
    )


def describe(code: int) -> str:
    if code > 128:
        try:
            name = signal.Signals(code - 128).name
        except ValueError:
            return f"exited with {code}"
        why = " (out of memory?)" if name == "SIGKILL" else ""
        return f"exited with {code}, killed by {name}{why}"
    return f"exited with {code}"


def _stopped(stop: Stop) -> Outcome:
    return _OUTCOMES.get(stop.why or Why.SIGNAL, Outcome.PREEMPTED)


_OUTCOMES = {
    Why.AGAIN: Outcome.CRASHED,
    Why.LOST: Outcome.SUPERSEDED,
    Why.CANCEL: Outcome.CANCELLED,
    Why.DRAIN: Outcome.DRAINED,
    Why.CHANGED: Outcome.DRAINED,
}
