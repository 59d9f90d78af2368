"""Whatever many agents and an operator do at once to the leases of a commander that is cut off and killed, the history
of each run reads as if one call had happened after the other; and the checker that says so is no rubber stamp."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from linearize import Call, check
from linearize_lease import Lease, LeaseModel
from linearize_load import load
from msgspec.structs import replace as changed

from relaytui.commander.model.lease import Grant, LeaseState, Renewal
from relaytui.commander.services import leases
from relaytui.commander.store import runs

L = 60.0
LOOKED = 20_000
"""States of one run's history: a right one of 2 500 calls takes as many as it has calls, or a few more."""


def test_a_hundred_thousand_calls_can_each_have_happened_at_one_moment(root: Path) -> None:
    history, world = uvloop.run(load(root, calls=100_000, runs=40, each=3, length=L, kills=3, seed=1))
    for run_id, calls in history.calls.items():
        verdict = check(calls, Lease(), LeaseModel(L, calls), LOOKED)
        assert verdict.linearizable, f"{run_id}: {verdict}"
    said = history.said
    unanswered = sum(call.open for calls in history.calls.values() for call in calls)
    print(f"{history.total} calls, {unanswered} unanswered, {world.cuts} cuts, {world.starts - 1} kills: {said}")
    # It counts only where enough of everything happened.
    assert history.total >= 100_000
    assert unanswered > 500
    assert world.cuts > 100
    assert world.clock.boot() > 1_000 + 20 * L
    for kind, least in {
        "acquire granted": 400, "acquire refused held": 2_000, "acquire refused revoked": 20, "renew ok": 20_000,
        "renew refused superseded": 1_000, "end ok": 200, "register ok": 2, "force ok": 20, "drain ok": 20,
        "cancel ok": 20, "requeue ok": 20,
    }.items():  # fmt: skip
        assert said[kind] >= least, f"only {said[kind]} times {kind}"


# -- the checker ---------------------------------------------------------------------------------------------------

A, B = "a" * 64, "b" * 64


def history(*lines: tuple[Any, ...]) -> list[Call]:
    """(what, said, answer) one after the other a second apart, or with `at` and `until` of their own."""
    calls = []
    for number, (what, said, answer, *times) in enumerate(lines):
        at, until = (times * 2)[:2] or (float(number), float(number))
        call = Call(what, said, int(at * 100) + number, at)
        if answer is not None:
            call = replace(call, answer=answer, answered=until * 100 + number + 0.5, until=until)
        calls.append(call)
    places = sorted([call.called for call in calls] + [call.answered for call in calls if not call.open])
    for call in calls:
        call.called = places.index(call.called)
        call.answered = math.inf if call.open else places.index(call.answered)
    return calls


def judge(calls: Sequence[Call]) -> bool:
    return check(calls, Lease(), LeaseModel(L, calls)).linearizable


GRANTED_1 = ("acquire", ("one", "q0"), ("granted", 1, A))
RIGHT = {
    "a lease's life": [
        GRANTED_1,
        ("acquire", ("one", "q0"), ("granted", 1, A)),
        ("renew", (1, A), ("ok",)),
        ("acquire", ("two", "q0"), ("refused", "held")),
        ("end", (1, A, "preempted"), ("ok",)),
        ("renew", (1, A), ("refused", "released")),
        ("acquire", ("two", "q0"), ("granted", 2, B)),
        ("renew", (1, A), ("refused", "superseded")),
    ],
    "granted after it ran out, to the second": [
        (*GRANTED_1, 0.0, 0.0),
        ("renew", (1, A), ("ok",), 10.0, 15.0),
        ("acquire", ("two", "q0"), ("granted", 2, B), 69.0, 70.0),
    ],
    "ran out, and revived before anybody else took it": [
        (*GRANTED_1, 0.0, 0.0),
        ("drain", (1,), ("refused", "not_held"), 60.0, 60.0),
        ("renew", (1, A), ("ok",), 200.0, 200.0),
        ("acquire", ("two", "q0"), ("refused", "held"), 201.0, 201.0),
    ],
    "an unanswered call happened": [
        ("acquire", ("two", "q0"), None, 0.0),
        ("acquire", ("one", "q0"), ("refused", "held"), 1.0, 1.0),
        ("acquire", ("two", "q0"), ("granted", 1, B), 2.0, 2.0),
    ],
    "or did not": [
        ("end", (1, A, "completed"), None, 0.0), (*GRANTED_1, 1.0, 1.0), ("renew", (1, A), ("ok",), 2.0, 2.0),
    ],
    "or much later": [
        (*GRANTED_1, 0.0, 0.0),
        ("end", (1, A, "completed"), None, 1.0),
        ("renew", (1, A), ("ok",), 2.0, 3.0),
        ("acquire", ("two", "q0"), ("refused", "ended"), 9.0, 9.0),
    ],
    "at the same time, in the other order": [
        (*GRANTED_1, 0.0, 5.0),
        ("acquire", ("two", "q0"), ("granted", 2, B), 0.0, 5.0),
        ("end", (1, A, "drained"), ("ok",), 0.0, 5.0),
    ],
    "forced, and waited for": [
        GRANTED_1,
        ("force", (1, False), ("ok", 2)),
        ("renew", (1, A), ("refused", "superseded")),
        ("acquire", ("two", "q0"), ("refused", "revoked")),
        ("end", (1, A, "superseded"), ("ok",)),
        ("acquire", ("two", "q0"), ("granted", 3, B)),
    ],
    "its pod is gone": [GRANTED_1, ("force", (1, True), ("ok", 2)), ("acquire", ("two", "q0"), ("granted", 3, B))],
    "registered with what it holds": [
        ("register", ("one", 7, A, False), ("ok",)),
        ("renew", (7, A), ("ok",)),
        ("register", ("two", 9, B, False), ("refused", "superseded")),
    ],
    "registered with what was granted later": [
        GRANTED_1,
        ("register", ("two", 7, B, True), ("ok",)),
        ("renew", (1, A), ("refused", "superseded")),
        ("register", ("one", 5, A, True), ("refused", "superseded")),
        ("end", (7, B, "completed"), ("ok",)),
        ("register", ("one", 8, A, False), ("refused", "released")),
        ("register", ("one", 8, A, True), ("ok",)),
    ],
}  # fmt: skip
SILENT = [
    (*GRANTED_1, 0.0, 0.0),
    *(("acquire", ("two", f"q{n}"), ("granted", n, f"{n}" * 64), n * 100.0, n * 100.0) for n in range(2, 6)),
]
RIGHT["held after five without a word, until it is queued again"] = [
    *SILENT,
    ("acquire", ("two", "q6"), ("refused", "ended"), 600.0, 600.0),
    ("renew", (5, "5" * 64), ("refused", "released"), 601.0, 601.0),
    ("requeue", (5,), ("ok",), 602.0, 602.0),
    ("acquire", ("two", "q6"), ("granted", 6, B), 603.0, 603.0),
]
WRONG = {
    "held after four": [*SILENT[:4], ("acquire", ("two", "q6"), ("refused", "ended"), 500.0, 500.0)],
    "held, though one of the five said how it ended": [
        *SILENT[:4],
        ("end", (4, "4" * 64, "drained"), ("ok",), 401.0, 401.0),
        SILENT[4],
        ("acquire", ("two", "q6"), ("refused", "ended"), 600.0, 600.0),
    ],
    "two holders": [GRANTED_1, ("acquire", ("two", "q0"), ("granted", 2, B)), ("renew", (1, A), ("ok",))],
    "granted while held": [GRANTED_1, ("acquire", ("two", "q0"), ("granted", 2, B))],
    "an epoch used twice": [
        GRANTED_1, ("end", (1, A, "drained"), ("ok",)), ("acquire", ("two", "q0"), ("granted", 1, B)),
    ],
    "an epoch that goes back": [
        ("register", ("one", 7, A, False), ("ok",)), ("end", (7, A, "drained"), ("ok",)),
        ("acquire", ("two", "q0"), ("granted", 6, B)),
    ],
    "a renewal of a superseded one accepted": [
        GRANTED_1, ("force", (1, False), ("ok", 2)), ("renew", (1, A), ("ok",)),
    ],
    "the new one starts before the old one stopped": [
        GRANTED_1, ("force", (1, False), ("ok", 2)), ("acquire", ("two", "q0"), ("granted", 3, B)),
    ],
    "granted a second before it ran out": [
        (*GRANTED_1, 0.0, 0.0),
        ("renew", (1, A), ("ok",), 10.0, 15.0),
        ("acquire", ("two", "q0"), ("granted", 2, B), 68.0, 69.0),
    ],
    "counted from an older renewal": [
        (*GRANTED_1, 0.0, 0.0),
        ("renew", (1, A), ("ok",), 50.0, 51.0),
        ("acquire", ("two", "q0"), ("granted", 2, B), 61.0, 61.0),
    ],
    "a retry gets another grant": [GRANTED_1, ("acquire", ("one", "q0"), ("granted", 2, B))],
    "a retry gets another token": [GRANTED_1, ("acquire", ("one", "q0"), ("granted", 1, B))],
    "granted after it completed": [
        GRANTED_1, ("end", (1, A, "completed"), ("ok",)), ("acquire", ("two", "q0"), ("granted", 2, B)),
    ],
    "a release undone": [
        GRANTED_1, ("end", (1, A, "drained"), ("ok",)), ("acquire", ("two", "q0"), ("refused", "held")),
    ],
    "an answer from before the call": [
        (*GRANTED_1, 0.0, 0.0),
        ("end", (1, A, "completed"), ("ok",), 1.0, 2.0),
        ("renew", (1, A), ("ok",), 3.0, 4.0),
    ],
    "an order on what changed since": [GRANTED_1, ("force", (0, True), ("ok", 2))],
    "registered over a holder": [GRANTED_1, ("register", ("two", 7, B, False), ("ok",))],
    "registered over a later one": [
        ("register", ("one", 7, A, True), ("ok",)), ("register", ("two", 6, B, True), ("ok",)),
    ],
    "registered, and the earlier one is renewed": [
        GRANTED_1, ("register", ("two", 7, B, True), ("ok",)), ("renew", (1, A), ("ok",)),
    ],
    "a cancelled run is granted": [
        GRANTED_1, ("cancel", (1,), ("ok",)), ("end", (1, A, "preempted"), ("ok",)),
        ("acquire", ("two", "q0"), ("granted", 2, B)),
    ],
    "a completed run that an unanswered call cannot explain": [
        GRANTED_1,
        ("end", (1, A, "drained"), None),
        ("acquire", ("two", "q0"), ("refused", "ended"), 9.0, 9.0),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_history_is_found_right(name: str) -> None:
    assert judge(history(*RIGHT[name]))


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_wrong_history_is_found_wrong(name: str) -> None:
    assert not judge(history(*WRONG[name]))


def by_brute_force(calls: Sequence[Call]) -> bool:
    """Every order that time allows, of all answered calls and any of the others."""
    model = LeaseModel(L, ())  # without what it knows of who made which epoch
    answered, unanswered = [c for c in calls if not c.open], [c for c in calls if c.open]
    for count in range(len(unanswered) + 1):
        for some in itertools.combinations(unanswered, count):
            for order in itertools.permutations([*answered, *some]):
                if any(late.answered < early.called for early, late in itertools.combinations(order, 2)):
                    continue
                states = {Lease()}
                for call in order:
                    states = {after for state in states for after in {*model.step(state, call)}}
                if states:
                    return True
    return False


def test_a_wrong_turn_is_seen_without_trying_what_unanswered_calls_may_have_done_since() -> None:
    """They could be in any order, and each makes an epoch in which the first one's renewal is refused otherwise."""
    unanswered = [("acquire", (f"lost {n}", "q"), None, 1.0) for n in range(12)]
    calls = history(
        (*GRANTED_1, 0.0, 0.0),
        *unanswered,
        ("acquire", ("two", "q0"), ("granted", 2, B), 50.0, 100.0),
        ("renew", (1, A), ("refused", "released"), 50.0, 99.0),
        ("end", (1, A, "preempted"), ("ok",), 50.0, 100.0),
    )
    verdict = check(calls, Lease(), LeaseModel(L, calls))
    assert verdict.linearizable
    assert verdict.looked <= 2 * len(calls)


ANSWERS = {
    "acquire": [("granted", 1, A), ("granted", 2, B), ("refused", "held"), None],
    "renew": [("ok",), ("refused", "superseded"), ("refused", "released"), None],
    "end": [("ok",), None],
    "drain": [("ok",), ("refused", "not_held"), ("refused", "epoch_changed")],
    "force": [("ok", 2), ("ok", 3), ("refused", "epoch_changed"), None],
}
SAID = {
    "acquire": [("one", "q0"), ("two", "q0")],
    "renew": [(1, A), (2, B)],
    "end": [(1, A, "drained"), (1, A, "completed")],
    "drain": [(1,), (2,)],
    "force": [(1, False), (1, True), (2, True)],
}


@st.composite
def small_histories(draw: st.DrawFn) -> list[Call]:
    lines: list[tuple[Any, ...]] = [(*GRANTED_1, 0.0, draw(st.sampled_from([0.0, 40.0])))]
    for _ in range(draw(st.integers(1, 4))):
        what = draw(st.sampled_from(sorted(ANSWERS)))
        at = draw(st.sampled_from([0.0, 1.0, 30.0, 59.0, 61.0, 100.0]))
        until = at + draw(st.sampled_from([0.0, 1.0, 40.0]))
        lines.append((what, draw(st.sampled_from(SAID[what])), draw(st.sampled_from(ANSWERS[what])), at, until))
    return history(*lines)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(small_histories())
def test_what_the_search_spares_itself_changes_no_verdict(calls: list[Call]) -> None:
    assert judge(calls) == by_brute_force(calls)


# -- wrong commanders ----------------------------------------------------------------------------------------------


def renews_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    right = leases.decide_renew
    monkeypatch.setattr(
        leases, "decide_renew",
        lambda run, lease, epoch, **k: Renewal.EXTEND if epoch < run.epoch else right(run, lease, epoch, **k),
    )  # fmt: skip


def grants_to_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    right = leases.decide_acquire
    monkeypatch.setattr(
        leases, "decide_acquire",
        lambda run, lease, **k: right(run, lease and changed(lease, incarnation=k["incarnation"]), **k),
    )  # fmt: skip


def expires_too_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    right = runs.due_leases
    monkeypatch.setattr(runs, "due_leases", lambda tx, now: right(tx, now + 0.7 * L))
    monkeypatch.setattr("relaytui.commander.services.board.Board.soonest_expiry", lambda board: 0.0)


def uses_an_epoch_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    right = leases.decide_acquire

    def decide(run: Any, lease: Any, **k: Any) -> Any:
        decision = right(run, lease, **k)
        again = isinstance(decision, Grant) and lease is not None and lease.state is LeaseState.RELEASED
        return Grant(lease.epoch) if again else decision

    monkeypatch.setattr(leases, "decide_acquire", decide)


def acks_and_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "extend_many", lambda tx, claims, boot_id, expires: set(claims))


@pytest.mark.parametrize(
    "break_it", [renews_anybody, grants_to_anybody, expires_too_soon, uses_an_epoch_twice, acks_and_does_nothing]
)
def test_a_wrong_commander_is_caught(root: Path, monkeypatch: pytest.MonkeyPatch, break_it: Any) -> None:
    break_it(monkeypatch)
    history, _ = uvloop.run(load(root, calls=4_000, runs=4, each=3, length=L, kills=0, seed=2))
    verdicts = (check(calls, Lease(), LeaseModel(L, calls), 20_000) for calls in history.calls.values())
    assert not all(verdict.linearizable for verdict in verdicts)
