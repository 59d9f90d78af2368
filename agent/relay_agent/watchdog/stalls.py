"""Whether a trainer has stalled: a phase that shows no sign of life for longer than its budget.

Progress is the sign, not output: a trainer that prints the same health check for ever makes no step. Pure: whoever
looks says what there is to see, and when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from relay_agent.watchdog.pace import Pace
from relay_agent.watchdog.phases import Phase, counts_in, named_in, tells_a_step

ASLEEP = 30.0
"""Seconds between two looks from which on nobody was awake to look: neither was the trainer, or we know nothing of
it."""
MAX_BARS = 256
"""Bars between two steps that are told apart, by their totals."""


@dataclass(frozen=True)
class Budgets:
    """Seconds without a sign of life that a phase may have; 0: as many as it likes. Those of TRAINING, EVALUATING and
    SAVING are the least: what was seen of the trainer makes them longer."""

    starting: float = 1_800.0
    loading: float = 3_600.0
    training: float = 600.0
    evaluating: float = 1_800.0
    saving: float = 1_800.0

    def of(self, phase: Phase, pace: Pace) -> float:
        set_to = float(getattr(self, phase.value))
        if not set_to or phase in (Phase.STARTING, Phase.LOADING):
            return set_to
        least = set_to
        if phase is Phase.TRAINING and not pace.learnt:  # the first steps compile, and fill caches
            if not self.loading:
                return 0.0
            least = max(least, self.loading)
        return max(least, pace.allows(phase))


class Seen(NamedTuple):
    """What there is to see at one look."""

    step: int | None
    """The last step seen of this attempt, None before the first."""
    heard: int
    """Bytes printed so far."""
    lines: tuple[str, ...] = ()
    """What was printed since the last look: its last lines, oldest first."""
    saves: bool = False
    """Something of what it saves has grown since the last look, or it was asked to save."""


@dataclass(frozen=True)
class Stalled:
    phase: Phase
    seconds: float
    """Without a sign of life."""
    budget: float


@dataclass(frozen=True)
class Moving:
    """A trainer that had stalled gives a sign of life. `phase`: what it does now; `seconds`: how long it gave none."""

    phase: Phase
    stalled: Stalled
    seconds: float


class Watch:
    """Of one trainer, from its start, or from where it was taken over: then it may be in the middle of anything."""

    def __init__(self, budgets: Budgets, now: float, heard: int = 0, step: int | None = None) -> None:
        self.phase = Phase.STARTING if not heard else Phase.LOADING if step is None else Phase.TRAINING
        self.pace = Pace()
        self.stalled: Stalled | None = None
        self._budgets = budgets
        self._looked = now
        self._awake = 0.0  # seconds that passed while somebody was looking
        self._alive = 0.0  # the last sign of life, of these
        self._step = step
        self._stepped: float | None = None  # when the last step came, if we saw it come
        self._during = Phase.TRAINING  # what else went on since
        self._furthest: dict[str, float] = {}  # of each bar since the last step
        self._said = ""

    @property
    def quiet(self) -> float:
        """Seconds without a sign of life, those asleep not counted."""
        return self._awake - self._alive

    @property
    def budget(self) -> float:
        return self._budgets.of(self.phase, self.pace)

    def look(self, now: float, seen: Seen) -> Stalled | Moving | None:
        """What is new at `now`, of a clock that counts suspend."""
        self._pass(now)
        quiet, before = self.quiet, self.stalled
        if self._sign(seen):
            self._alive, self.stalled = self._awake, None
            return None if before is None else Moving(self.phase, before, quiet)
        if before is None and 0 < self.budget < quiet:
            self.stalled = Stalled(self.phase, quiet, self.budget)
            return self.stalled
        return None

    def _pass(self, now: float) -> None:
        passed, self._looked = now - self._looked, now
        if 0 < passed <= ASLEEP:
            self._awake += passed
        elif passed:
            self._stepped = None  # nobody knows how long that step took

    def _sign(self, seen: Seen) -> bool:
        """Whether there is a sign of life; takes over the phase that it is one of."""
        if seen.step is not None and seen.step != self._step:
            if self._stepped is not None:
                self.pace.stepped(self._awake - self._stepped, self._during)
            self._step, self._stepped, self._said = seen.step, self._awake, ""
            self._furthest.clear()
            self._counts_on(seen.lines)  # the bar of that very step
            self.phase = self._during = self._named(_after_step(seen.step, seen.lines)) or Phase.TRAINING
            return True
        if seen.saves:
            return self._turn(Phase.SAVING)
        if (named := self._named(seen.lines)) is not None:
            return self._turn(named)
        if self.phase is Phase.STARTING and seen.heard:
            return self._turn(Phase.LOADING)
        return self._counts_on(seen.lines)

    def _turn(self, phase: Phase) -> bool:
        self.phase = phase
        if self._step is not None:
            self._during = phase
        return True

    def _named(self, lines: tuple[str, ...]) -> Phase | None:
        """The phase that a line names which was not there before."""
        for line in reversed(lines):
            phase = named_in(line)
            if phase is not None:
                if line == self._said:
                    return None
                self._said = line
                return phase
        return None

    def _counts_on(self, lines: tuple[str, ...]) -> bool:
        """Whether a bar is further than ever since the last step: a model is read, samples are made, an evaluation that
        does not call itself one. What only goes up and down, such as requests in a queue, cannot go on for ever."""
        further = False
        for total, count in (found for line in lines for found in counts_in(line)):
            if count > self._furthest.get(total, -1.0) and (total in self._furthest or len(self._furthest) < MAX_BARS):
                self._furthest[total] = count
                further = True
        return further


def _after_step(step: int, lines: tuple[str, ...]) -> tuple[str, ...]:
    """What was printed after the line that told of it."""
    for at in reversed(range(len(lines))):
        if tells_a_step(lines[at]) or any(count == step for _, count in counts_in(lines[at])):
            return lines[at + 1 :]
    return lines
