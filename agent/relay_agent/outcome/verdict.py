"""How an attempt ended, in the commander's words and as an exit code."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from relay_agent.checkpoints.disk import is_full
from relay_agent.outcome.endings import signal_of, tell
from relay_agent.outcome.stop import Stop, Why
from relay_agent.outcome.unsaved import Next, cost, missing, unless_found
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


@dataclass(frozen=True)
class Ended:
    """What is known of a trainer that has ended."""

    code: int
    """As a shell gives it."""
    stop: Stop
    progress: Progress
    newest: int | None
    """Step of the last checkpoint published."""
    last_line: str = ""
    unpublished: str = ""
    """Which checkpoints are not on the volume, and why."""
    kept: bool = False
    """The next attempt can publish them."""
    torn: bool = False
    """Nobody can."""
    asked: bool = False
    """Of these something was saved as the trainer was asked to."""
    lines: Sequence[str] = ()
    """The last ones it printed."""
    oom: bool = False
    """The kernel killed something for want of memory meanwhile."""
    prints: bool = False
    """This command is known to print its steps, so that none seen is none made."""
    completed: int = -1
    """The step of the checkpoint that it completed the run with before; where it resumes from that and ends well
    without a step, there was nothing left to do."""
    before: int = 0
    """The furthest step that an attempt before it is known to have made."""
    signalled: bool = True
    """A code above 128 is of a signal that ended it; else it chose that code itself."""
    left: int = 0
    """Processes that it left behind and that had to be stopped."""
    trained_on: bool = False
    """They made steps after its exit."""
    ignored: bool = True
    """It is known not to have gone on from the checkpoint that it was handed; where that tells no step itself, a first
    step below its own says nothing."""

    unheard: str = ""
    """That its guardian ended otherwise than by its own word, in words."""
    looked: str = ""
    """Where checkpoints are looked for, in words."""

    @property
    def step(self) -> int:
        return max(self.progress.step, self.newest or 0)

    @property
    def reached(self) -> int | None:
        """The last step that it printed."""
        return self.progress.step if self.progress.first is not None else None

    @property
    def idle(self) -> bool:
        """It resumed, and made no step."""
        return self.reached is None and self.newest is None and self.progress.start > 0

    @property
    def made_nothing(self) -> bool:
        """It resumed, and neither printed a step nor saved one beyond."""
        return self.reached is None and 0 < self.progress.start >= (self.newest or 0)

    @property
    def fell_short(self) -> bool:
        """So it did, and there was something to do."""
        return self.made_nothing and self.before > self.progress.start != self.completed

    @property
    def found_none(self) -> bool:
        """It trained from the beginning to its own end, and nothing that it saved was found."""
        ended_well = self.code == 0 and not self.stop.lost and not self.unpublished
        return ended_well and bool(self.reached) and self.newest is None and self.progress.start == 0

    def lost(self, then: Next = Next.UNKNOWN) -> str:
        """In words, its steps that are in no checkpoint; nothing where they are kept for the next attempt."""
        if self.unpublished and self.kept:
            return ""
        start, reached, newest = self.progress.start, self.reached, self.newest
        if self.unpublished and not self.torn:
            return unless_found(start, reached, newest)
        return missing(self.code, start, reached, newest, then, torn=self.torn)

    @property
    def and_lost(self) -> str:
        """To go on with, of one that ended by itself."""
        lost = self.lost()
        return f"; {lost}" if lost else ""

    def verdict(self, outcome: Outcome, exit_code: int, message: str, ending: str) -> Verdict:
        return Verdict(outcome, exit_code, self.step, message, self.code, ending, self.reached, self.newest)


def judge(ended: Ended) -> Verdict:
    """Completed is only what ran to its last step by itself; where that is saved, it is so whatever was asked for
    meanwhile."""
    finished = ended.code == 0 and not ended.unpublished and ended.progress.saved_last(ended.newest)
    if finished and ended.stop.why in _OUTRUN:
        verdict = _outran(ended)
    elif ended.stop.why is not None:
        verdict = _was_stopped(ended)
    elif ended.code != 0:
        verdict = _failed(ended)
    elif _left_training(ended):
        verdict = _went_to_the_background(ended)
    elif not ended.progress.complete(ended.step):
        verdict = _ended_early(ended)
    else:
        verdict = _ended_well(ended)
    if ended.unheard not in verdict.message:
        verdict = replace(verdict, message=f"{verdict.message}; {ended.unheard}")
    if ended.looked and ended.found_none:
        verdict = replace(verdict, message=f"{verdict.message}; Relay looks for checkpoints in {ended.looked} alone")
    return replace(verdict, finished=finished)


def _outran(ended: Ended) -> Verdict:
    total = ended.progress.total
    words = f"reached step {total} of {total}, saved it and exited 0 by itself"
    message = f"{words}, before the stop that was asked for ({ended.stop.message})"
    return ended.verdict(Outcome.COMPLETED, 0, message, "completed")


def _was_stopped(ended: Ended) -> Verdict:
    stop = ended.stop
    own = int(Exit.LEASE) if stop.lost else ended.code
    if stop.why is Why.CUT_OFF:
        own = own or int(Exit.LEASE)
    if stop.why is Why.SIGNAL:
        own = own or stop.exit_code
    return ended.verdict(_stopped(stop), own, _with_cost(ended), _ending(stop))


def _failed(ended: Ended) -> Verdict:
    code = ended.code
    told = tell(code, ended.lines, oom=ended.oom, stepped=ended.reached is not None)
    message = f"the trainer {describe(code, ended.signalled)} at step {ended.step}"
    if told.ending.name == "killed" and ended.unheard:  # by whom is known
        message = f"the trainer exited with {code} at step {ended.step}, as {ended.unheard}"
    elif told.ending.name != "crash":
        part = told.ending.name in _KILLED and signal_of(code) is not signal.SIGKILL
        message += f": {'something of it was ' * part}{told.ending.words}"
    if said := told.said or ended.last_line:
        message += f"; its last words: {clean(said, 300)}"
    if ended.unpublished and not ended.torn:
        message += f"; {ended.unpublished}{_KEPT * ended.kept}"
    return ended.verdict(Outcome.FAILED, code, message + ended.and_lost, told.ending.name)


def _left_training(ended: Ended) -> bool:
    """Whether what it left behind did, or may have, and its last step is not known to be reached."""
    progress = ended.progress
    if progress.total is not None and progress.complete(ended.step):
        return False
    unseen = ended.reached is None and ended.newest is None and progress.start == 0
    return ended.trained_on or bool(ended.left and unseen)


def _went_to_the_background(ended: Ended) -> Verdict:
    """Who exits is over, and what it leaves is stopped: Relay would not know when that has come to its end."""
    seen = f"exited 0 at step {ended.step}" if ended.trained_on else "exited 0 without a step seen"
    what = "what it left behind still trained and" if ended.trained_on else "what it left behind may have trained, and"
    hint = "a command that trains in the background (`&`, nohup, a daemon) has to wait for it"
    return ended.verdict(
        Outcome.FAILED, int(Exit.FAILED), f"{seen}, but {what} had to be stopped: {hint}{ended.and_lost}", "background"
    )


def _ended_early(ended: Ended) -> Verdict:
    message, name = f"exited 0 at step {ended.step} of {ended.progress.total}", "finished_early"
    if ended.idle:
        message, name = f"{message}, where it resumed: it ran nothing", "zero_steps"
    if ended.unpublished:
        message += f", and {ended.unpublished}"
    message += ended.and_lost
    if ended.step:
        message += f"; if that was all there was to do, TARGET_STEPS: {ended.step} says so"
    return ended.verdict(Outcome.FAILED, int(Exit.FAILED), message, name)


def _ended_well(ended: Ended) -> Verdict:
    """It exited 0, at its last step for all that is known."""
    progress, step, total = ended.progress, ended.step, ended.progress.total
    message, ending = f"reached step {step}" + (f" of {total}" if total else ""), "completed"
    if ended.idle:
        ending = "zero_steps"
    nothing = f"exited 0 without a step after step {step}, where it resumed"
    if ended.fell_short and total is None:
        words = f"{nothing}, and the run had come to step {ended.before}: it ran nothing. {_IF_DONE}"
        return ended.verdict(Outcome.FAILED, int(Exit.FAILED), words, "zero_steps")
    if ended.idle and total is None:
        message = nothing
        if ended.completed == progress.start:
            message = f"{message} and the run was completed before"
        elif ended.prints:
            words = f"{message}: it ran nothing. {_IF_DONE}"
            return ended.verdict(Outcome.FAILED, int(Exit.FAILED), words, ending)
    elif ended.reached is None and ended.newest is None and total is None:
        message, ending = f"exited 0 without a step seen, and no checkpoint came of it: {_UNSEEN}", "no_step"
    elif ended.ignored and progress.first is not None and progress.first < progress.start:
        message += f"; the resume did not take: it began at step {progress.first}, not after {progress.start}"
    if ended.unpublished and ended.kept:  # its work is done and safe: whoever takes it up has only that left to do
        message = f"{message}, but {ended.unpublished}{_KEPT}"
        return ended.verdict(Outcome.PREEMPTED, int(Exit.STATE), message, "unpublished")
    if ended.unpublished:
        message = f"{message}, but {ended.unpublished}{ended.and_lost}"
        return ended.verdict(Outcome.FAILED, int(Exit.FAILED), message, "unpublished")
    return ended.verdict(
        Outcome.COMPLETED, 0, message + ended.and_lost, ending
    )  # many keep their final model elsewhere


def _with_cost(ended: Ended) -> str:
    """Why it was stopped, and what that cost: a stop that saved nothing must not read like one that did."""
    stop = ended.stop
    if stop.why is Why.AGAIN and stop.ending in _SPOILT:
        return stop.message
    then = _NEXT.get(stop.why or Why.SIGNAL, Next.AGAIN)
    if ended.unpublished and not stop.lost:
        if not ended.torn:
            return f"{stop.message}, but {ended.unpublished}{ended.and_lost}"
        which = "the save that it was asked for" if ended.asked else "its last save"
        unsure = f"{which} is not known to be whole"
        return f"{stop.message}, but {unsure}; {ended.lost(then)}; {ended.unpublished}"
    words = cost(
        ended.code, hurried=stop.hurried.is_set(), oom=ended.oom, start=ended.progress.start, reached=ended.reached,
        newest=ended.newest, then=then,
    )  # fmt: skip
    return "; ".join(filter(None, (stop.message, words)))


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


def no_room(error: RelayError, step: int) -> Verdict:
    """As `never_started`, where it may help to wait: somebody may make room on the volume."""
    message = f"the trainer was not started: {error.message}"
    return Verdict(Outcome.CRASHED, error.exit_code, step, message, ending="disk_full")


def volume_failed(error: OSError, root: Path) -> RelayError:
    where = f" ({error.filename!s:.300})" if error.filename else ""
    how = "is full" if is_full(error) else "failed"
    return RelayError(
        "volume_failed",
        f"the volume {root} {how}: {error.strerror or error}{where}",
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
_IF_DONE = "If there was nothing left to do, TARGET_STEPS says so"
_UNSEEN = "it trained in words that Relay does not know, or did nothing"
_KEPT = "; it is kept, and published once the volume takes it"
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
