"""How an attempt ended, in the commander's words and as an exit code."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from relay_agent.outcome.endings import signal_of, tell
from relay_agent.outcome.stop import Stop, Why
from relay_agent.outcome.unsaved import Next, cost, missing
from relay_agent.output.progress import Progress
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
    ending: str = ""
    """Its name (`endings`): more closely than the outcome, how it ended."""
    printed: int | None = None
    """The last step that it printed."""
    published: int | None = None
    """The step of the last checkpoint that came of it."""
    finished: bool = False
    """Its last step is known, reached and saved, and it exited 0: nothing trains it again."""

    @classmethod
    def before_start(cls, stop: Stop, step: int) -> Verdict:
        """Stopped before there was a trainer."""
        code = int(Exit.LEASE) if stop.lost else stop.exit_code
        return cls(_stopped(stop), code, step, f"{stop.message}, before the trainer started", ending=_ending(stop))


def judge(
    code: int,
    stop: Stop,
    progress: Progress,
    newest: int | None,
    last_line: str,
    unpublished: str = "",
    kept: bool = False,
    torn: bool = False,
    *,
    lines: Sequence[str] = (),
    oom: bool = False,
    prints: bool = False,
    completed: int = -1,
    signalled: bool = True,
    ignored: bool = True,
) -> Verdict:
    """`code` as a shell gives it. Completed is only what ran to its last step by itself; where that is saved, it is so
    whatever was asked for meanwhile.

    `newest`: step of the last checkpoint published. `unpublished`: which checkpoints are not on the volume, and why;
    `kept`: the next attempt can publish them; `torn`: nobody can. `lines`: the last ones it printed. `oom`: the kernel
    killed something for want of memory meanwhile. `prints`: this command is known to print its steps, so that none seen
    is none made. `completed`: the step of the checkpoint that it completed the run with before; where it resumes from
    that and ends well without a step, there was nothing left to do. `signalled`: a code above 128 is of a signal that
    ended it; else it chose that code itself. `ignored`: it is known not to have gone on from
    the checkpoint that it was handed; where that tells no step itself, a first step below its own says nothing.
    """
    finished = code == 0 and not unpublished and progress.saved_last(newest)
    if finished and stop.why in _OUTRUN:
        words = f"reached step {progress.total} of {progress.total}, saved it and exited 0 by itself"
        message = f"{words}, before the stop that was asked for ({stop.message})"
        verdict = Verdict(Outcome.COMPLETED, 0, max(progress.step, newest or 0), message, code, "completed")
    else:
        verdict = _judged(
            code,
            stop,
            progress,
            newest,
            last_line,
            unpublished,
            kept,
            torn,
            lines,
            oom,
            prints,
            completed,
            signalled,
            ignored,
        )
    printed = progress.step if progress.first is not None else None
    return replace(verdict, printed=printed, published=newest, finished=finished)


def _judged(
    code: int,
    stop: Stop,
    progress: Progress,
    newest: int | None,
    last_line: str,
    unpublished: str,
    kept: bool,
    torn: bool,
    lines: Sequence[str],
    oom: bool,
    prints: bool,
    completed: int,
    signalled: bool,
    ignored: bool,
) -> Verdict:
    step, total = max(progress.step, newest or 0), progress.total
    if stop.why is not None:
        own = int(Exit.LEASE) if stop.lost else code
        if stop.why is Why.CUT_OFF:
            own = own or int(Exit.LEASE)
        if not own and stop.why is Why.SIGNAL:
            own = stop.exit_code
        return Verdict(
            _stopped(stop), own, step, _with_cost(code, stop, progress, newest, unpublished, torn, oom), code,
            _ending(stop),
        )  # fmt: skip
    if code != 0:
        told = tell(code, lines, oom=oom, stepped=progress.first is not None)
        message = f"the trainer {describe(code, signalled)} at step {step}"
        if told.ending.name != "crash":
            part = told.ending.name in _KILLED and signal_of(code) is not signal.SIGKILL
            message += f": {'something of it was ' * part}{told.ending.words}"
        if said := told.said or last_line:
            message += f"; its last words: {clean(said, 300)}"
        message += _lost(code, progress, newest, unpublished, torn)
        return Verdict(Outcome.FAILED, code, step, message, code, told.ending.name)
    idle = progress.first is None and newest is None and progress.start > 0  # a resume that made no step
    if not progress.complete(step):
        message, name = f"exited 0 at step {step} of {total}", "finished_early"
        if idle:
            message, name = f"{message}, where it resumed: it ran nothing", "zero_steps"
        if unpublished:
            message += f", and {unpublished}"
        message += _lost(code, progress, newest, unpublished, torn)
        if step:
            message += f"; if that was all there was to do, TARGET_STEPS: {step} says so"
        return Verdict(Outcome.FAILED, int(Exit.FAILED), step, message, code, name)
    message = f"reached step {step}" + (f" of {total}" if total else "")
    ending = "zero_steps" if idle else "completed"
    if idle and total is None:
        message = f"exited 0 without a step after step {step}, where it resumed"
        if completed == progress.start:
            message = f"{message} and the run was completed before"
        elif prints:
            words = f"{message}: it ran nothing. If there was nothing left to do, TARGET_STEPS says so"
            return Verdict(Outcome.FAILED, int(Exit.FAILED), step, words, code, ending)
    elif progress.first is None and newest is None and total is None:
        message, ending = f"exited 0 without a step seen, and no checkpoint came of it: {_UNSEEN}", "no_step"
    elif ignored and progress.first is not None and progress.first < progress.start:
        message += f"; the resume did not take: it began at step {progress.first}, not after {progress.start}"
    if unpublished and kept:  # the run's work is done and safe: whoever takes it up again has only that left to do
        message = f"{message}, but {unpublished}; it is kept, and published once there is room"
        return Verdict(Outcome.PREEMPTED, int(Exit.STATE), step, message, code, "unpublished")
    if unpublished:
        message = f"{message}, but {unpublished}{_lost(code, progress, newest, unpublished, torn)}"
        return Verdict(Outcome.FAILED, int(Exit.FAILED), step, message, code, "unpublished")
    message += _lost(code, progress, newest, unpublished, torn)  # many keep their final model elsewhere
    return Verdict(Outcome.COMPLETED, 0, step, message, code, ending)


def _with_cost(
    code: int, stop: Stop, progress: Progress, newest: int | None, unpublished: str, torn: bool, oom: bool
) -> str:  # fmt: skip
    """Why it was stopped, and what that cost: a stop that saved nothing must not read like one that did."""
    if stop.why is Why.AGAIN and stop.ending in _SPOILT:
        return stop.message
    reached = progress.step if progress.first is not None else None
    then = _NEXT.get(stop.why or Why.SIGNAL, Next.AGAIN)
    if unpublished and not stop.lost:
        if not torn:
            return f"{stop.message}, but {unpublished}"
        lost = missing(code, progress.start, reached, newest, then, torn=True)
        return f"{stop.message}, but the save that it was asked for is not known to be whole; {lost}; {unpublished}"
    words = cost(
        code, hurried=stop.hurried.is_set(), oom=oom, start=progress.start, reached=reached, newest=newest, then=then
    )
    return "; ".join(filter(None, (stop.message, words)))


def _lost(code: int, progress: Progress, newest: int | None, unpublished: str, torn: bool) -> str:
    """To go on with, of one that ended by itself. None where they may be kept for the next attempt."""
    reached = progress.step if progress.first is not None else None
    kept = unpublished and not torn
    lost = "" if kept else missing(code, progress.start, reached, newest, Next.UNKNOWN, torn=torn)
    return f"; {lost}" if lost else ""


def given_back(message: str, judged: Verdict, start: int) -> Verdict:
    """Nobody was there when the trainer was stopped: the run goes on from what it saved. `start`: the step that it had
    resumed from. What had finished by then is completed all the same."""
    if judged.finished:
        return judged
    code = judged.trainer_code or 0
    lost = missing(code, start, judged.printed, judged.published, Next.AGAIN)
    words = "; ".join(filter(None, (message, lost)))
    return Verdict(Outcome.PREEMPTED, code, judged.step, words, code, "preempted", judged.printed, judged.published)


def never_started(error: RelayError, stop: Stop, step: int = 0) -> Verdict:
    """No trainer ran, so nothing of this is the run's own failing: another pod, or this one once it is mended, goes on
    with it. Why stands in the message."""
    outcome = Outcome.SUPERSEDED if stop.lost else Outcome.PREEMPTED
    return Verdict(outcome, error.exit_code, step, f"the trainer was not started: {error}", ending="not_started")


def volume_failed(error: OSError, root: Path) -> RelayError:
    where = f" ({error.filename!s:.300})" if error.filename else ""
    return RelayError(
        "volume_failed",
        f"the volume {root} failed: {error.strerror or error}{where}",
        "run `relay-agent doctor` on this pod; the run is free for another one",
        exit_code=Exit.STATE,
    )


def describe(code: int, signalled: bool = True) -> str:
    """`signalled`: a signal ended it; else it exited with that code itself, or a shell did as a child of its was
    killed."""
    if code > 128:
        with suppress(ValueError):
            how = "killed by" if signalled else "the code of"
            return f"exited with {code}, {how} {signal.Signals(code - 128).name}"
    return f"exited with {code}"


def _stopped(stop: Stop) -> Outcome:
    return _OUTCOMES.get(stop.why or Why.SIGNAL, Outcome.PREEMPTED)


def _ending(stop: Stop) -> str:
    return stop.ending if stop.why is Why.AGAIN else _ENDINGS.get(stop.why or Why.SIGNAL, "preempted")


_OUTRUN = (Why.SIGNAL, Why.CUT_OFF, Why.DRAIN, Why.CANCEL)
"""A run that is finished has outrun these. One whose command was changed is not finished by the new one's measure, what
diverged or hangs is wrong with it, and of one that was lost its new holder has to say."""
_NEXT = {Why.CANCEL: Next.OVER, Why.LOST: Next.ANOTHERS, Why.AGAIN: Next.UNKNOWN}
_SPOILT = ("diverged", "spoilt")
"""Of what was trained since the loss went bad nothing is wanted, and their words say where the run goes on."""
_UNSEEN = "it trained in words that Relay does not know, or did nothing"
_KILLED = ("killed", "oom_killed")
"""They are the words of SIGKILL; a process of it may have had that, and it another end."""
_ENDINGS = {
    Why.LOST: "superseded",
    Why.CANCEL: "cancelled",
    Why.DRAIN: "drained",
    Why.CHANGED: "drained",
    Why.CUT_OFF: "cut_off",
}
_OUTCOMES = {
    Why.AGAIN: Outcome.CRASHED,
    Why.LOST: Outcome.SUPERSEDED,
    Why.CANCEL: Outcome.CANCELLED,
    Why.DRAIN: Outcome.DRAINED,
    Why.CHANGED: Outcome.DRAINED,
}
