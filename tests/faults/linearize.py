"""Is a history of concurrent calls linearizable: can each have happened at one moment between its call and its answer?

The search of Wing and Gong with Lowe's memory: take any call that nothing unanswered forbids to be next, go on, come
back where it leads nowhere, and never look twice at the same calls done with the same state reached. Calls without an
answer stay open for ever: they may have happened at any time after they were made, or never.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)


@dataclass(slots=True, eq=False)
class Call:
    """One call. `called` and `answered` are places in one order of the whole history; `at` and `until` the same two
    moments on the clock of the world. `answer` is None while there is none."""

    what: str
    said: tuple[Any, ...]
    called: int
    at: float
    answer: tuple[Any, ...] | None = None
    answered: float = math.inf
    until: float = math.inf

    @property
    def open(self) -> bool:
        return self.answer is None

    def __str__(self) -> str:
        answer = " ".join(map(str, self.answer)) if self.answer is not None else "(no answer)"
        return (
            f"[{self.called}..{self.answered}] {self.what}{self.said} -> {answer} (clock {self.at:g}..{self.until:g})"
        )


class Model(Protocol[State]):
    def step(self, state: State, call: Call) -> Iterable[State]:
        """The states that a call can lead to from this one, given its answer; none where that answer cannot be. For an
        open call only those that differ from the state before it: that it never happened is tried anyway."""

    def era(self, state: State) -> int:
        """What never gets smaller, whatever happens."""

    def last_era(self, call: Call) -> float:
        """The latest one in which this answer can be given: beyond it there is no use in looking."""


@dataclass(frozen=True)
class Verdict(Generic[State]):
    """`done`: as many calls as could be put in order at best; `state`: where they led; `stuck`: those that could not
    follow, the first one to be answered first."""

    linearizable: bool
    looked: int
    done: int = 0
    state: State | None = None
    stuck: list[Call] = field(default_factory=list)

    def __str__(self) -> str:
        if self.linearizable:
            return f"linearizable, {self.looked} states"
        rest = "\n  ".join(str(call) for call in self.stuck[:10])
        return f"not linearizable: after {self.done} calls, in {self.state}, none of these can follow:\n  {rest}"


class _Search(Generic[State]):
    """Answered calls lie in a doubly linked list of two nodes each, call and answer; those done are taken out of it.
    Open calls have no second node and are kept apart: tried last, only those made before the next answer, the youngest
    first, and of those that say the same only the oldest: whatever a later one can explain, it can."""

    def __init__(self, calls: Sequence[Call], model: Model[State]) -> None:
        self._model = model
        self._answered = [call for call in calls if not call.open]
        self._last_era = [model.last_era(call) for call in self._answered]
        self._open = sorted((call for call in calls if call.open), key=lambda call: call.called)
        self._used = [False] * len(self._open)
        alike: dict[tuple[object, ...], list[int]] = {}
        for number, call in enumerate(self._open):
            alike.setdefault((call.what, call.said), []).append(number)
        self._alike = sorted(alike.values(), key=lambda group: -group[-1])
        nodes = [(call.called, number, True) for number, call in enumerate(self._answered)]
        nodes += [(int(call.answered), number, False) for number, call in enumerate(self._answered)]
        nodes.sort()
        count = len(nodes)
        self._next = [*range(1, count + 1), 0]
        self._previous = [count, *range(count)]
        self._call_of = [-1] * (count + 1)  # -1: the end, and every node of an answer
        self._place = [0] * (count + 1)
        self._nodes = [(0, 0)] * len(self._answered)
        for node, (place, number, is_call) in enumerate(nodes, start=1):
            self._place[node] = place
            first, second = self._nodes[number]
            self._nodes[number] = (node, second) if is_call else (first, node)
            if is_call:
                self._call_of[node] = number
        # Of each node: the least last era of what was called there or later.
        self._last_era_from = [math.inf] * (count + 2)
        for node in range(count, 0, -1):
            number = self._call_of[node]
            era = self._last_era[number] if number >= 0 else math.inf
            self._last_era_from[node] = min(era, self._last_era_from[node + 1])

    def run(self, initial: State, limit: int) -> Verdict[State]:
        total = left = len(self._answered)
        looked = 0
        best, best_state, stuck = -1, initial, list[Call]()
        seen: set[tuple[int, State]] = set()
        # (candidates, bits of what was done, what was done last: answered number, or -1 - open number)
        stack: list[tuple[Iterator[tuple[int, State]], int, int | None]] = [(self._candidates(initial), 0, None)]
        state_of = [initial]
        while left:
            if not stack or looked > limit:
                return Verdict(False, looked, best, best_state, stuck)
            candidates, bits, last = stack[-1]
            for number, state in candidates:
                key = (bits | 1 << (2 * number if number >= 0 else -1 - 2 * number), state)
                if key in seen:
                    continue
                seen.add(key)
                looked += 1
                self._take(number)
                left -= number >= 0
                stack.append((self._candidates(state), key[0], number))
                state_of.append(state)
                break
            else:
                if total - left > best:
                    best, best_state, stuck = total - left, state_of[-1], self._window()
                stack.pop()
                state_of.pop()
                if last is not None:
                    self._give_back(last)
                    left += last >= 0
        return Verdict(True, looked, total, state_of[-1])

    def _candidates(self, state: State) -> Iterator[tuple[int, State]]:
        node = self._next[0]
        changing = list[tuple[int, State]]()
        step, era = self._model.step, self._model.era
        last = math.inf
        while (number := self._call_of[node]) >= 0:
            last = min(last, self._last_era[number])
            for after in step(state, self._answered[number]):
                if after == state:
                    # What can be now and changes nothing can as well be now as later: no need to try that.
                    yield number, after
                    return
                changing.append((number, after))
            node = self._next[node]
        last = min(last, self._last_era_from[node])  # nothing behind the next answer is done yet
        for number, after in changing:
            if era(after) <= last:
                yield number, after
        limit = self._place[node]
        for group in self._alike:
            number = next((number for number in group if not self._used[number]), None)
            if number is not None and self._open[number].called < limit:
                for after in step(state, self._open[number]):
                    if era(after) <= last:
                        yield -1 - number, after

    def _window(self) -> list[Call]:
        found = []
        node = self._next[0]
        while (number := self._call_of[node]) >= 0:
            found.append(self._answered[number])
            node = self._next[node]
        return sorted(found, key=lambda call: call.answered)

    def _take(self, number: int) -> None:
        if number < 0:
            self._used[-1 - number] = True
            return
        for node in self._nodes[number]:
            self._next[self._previous[node]] = self._next[node]
            self._previous[self._next[node]] = self._previous[node]

    def _give_back(self, number: int) -> None:
        if number < 0:
            self._used[-1 - number] = False
            return
        for node in reversed(self._nodes[number]):
            self._next[self._previous[node]] = node
            self._previous[self._next[node]] = node


def check(calls: Sequence[Call], initial: State, model: Model[State], limit: int = 2_000_000) -> Verdict[State]:
    """`limit`: states looked at, at most; a search that comes no further has not shown that the history is right."""
    gc.disable()  # it has nothing to find in what a search makes, and much to look through
    try:
        return _Search(calls, model).run(initial, limit)
    finally:
        gc.enable()
