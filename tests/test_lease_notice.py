"""ON_LEASE_LOSS=stop under a lease that is short beside the grace: stopped in time, and never for nothing."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agent_rig import mock, rigged
from commander_kit import FakeClock

from relay_agent import doctor
from relay_agent.attempt import tenure
from relay_agent.attempt.telling import Teller
from relay_agent.attempt.tenure import Tenure
from relay_agent.guardian import EARLY, main
from relay_agent.lease.lease import LEAST_TO_STOP, MARGIN, Lease
from relay_agent.link.contact import Whoami
from relay_agent.link.link import Link
from relay_agent.outcome.stop import Stop, Why
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.messages import Refused


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def event(self, kind: str, message: str, data: object = None, *, send: bool = True) -> None:
        self.events.append((kind, message))


def held(clock: FakeClock, seconds: float, grace: float | None) -> tuple[Tenure, Stop, Told]:
    stop, told = Stop(), Told()
    lease = Lease.granted("run", 1, "t" * 64, seconds, clock.boot())
    made = Tenure(lease, cast(Link, None), stop, cast(Teller, told), clock, random.Random(1), "sft", grace)
    return made, stop, told


@pytest.mark.parametrize("seconds", [LEAST_TO_STOP, 6.0, 10.0, 30.0, 60.0, 300.0, 86_400.0])
@pytest.mark.parametrize("grace", [0.1, 1.0, 30.0, 600.0])
def test_a_lease_that_is_renewed_is_never_taken_for_nearly_over(seconds: float, grace: float) -> None:
    clock = FakeClock()
    made, stop, told = held(clock, seconds, grace)
    assert made.notice <= min(grace, seconds / 3)
    began = clock.boot()
    clock.advance(1.2 * made.lease.every)  # one renewal was lost on its way, or is late
    made.note_cut_off()
    assert (stop.why, told.events) == (None, [])
    clock.advance(began + MARGIN * seconds - EARLY - made.notice + 0.01 - clock.boot())
    made.note_cut_off()
    assert stop.why is Why.CUT_OFF
    assert made.lease.safe_until - EARLY - made.notice > began + 1.2 * made.lease.every


@pytest.mark.parametrize("grace", [None, 30.0])
@pytest.mark.parametrize("stopped", [False, True])
def test_of_a_trainer_that_has_ended_nobody_says_that_it_goes_on_or_is_stopped(
    monkeypatch: pytest.MonkeyPatch, grace: float | None, stopped: bool
) -> None:
    """Its agent waited for a commander that was gone, and said that training goes on."""
    said: list[str] = []
    monkeypatch.setattr(tenure, "say", said.append)
    clock = FakeClock()
    made, _, told = held(clock, 300.0, grace)
    clock.advance(301.0)
    made.trains = False
    made.note_cut_off(stopped=stopped)
    ((kind, words),) = told.events
    assert kind == "lease.cut_off"
    for line in (words, *said):
        assert "goes on" not in line
        assert "stopping" not in line
    if grace is not None and stopped:  # its guardian knows the end of the lease as well, and was first
        assert said == ["cut off from the commander for nearly a lease: the trainer was stopped, as ON_LEASE_LOSS says"]
    else:
        assert said == [
            "cut off from the commander for longer than the lease; the trainer has ended, nothing is pruned"
        ]
    made.refused(Refused("run", 1, "unknown", "no such lease here", 1))
    assert "training goes on" not in said[-1] + told.events[-1][1]


def test_that_the_grace_is_shorter_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(tenure, "say", said.append)
    clock = FakeClock()
    made, _, told = held(clock, 30.0, 30.0)
    made.say_notice()
    made.say_notice()
    ((kind, words),) = told.events
    assert kind == "lease.short"
    assert "gets 10 s" in words
    assert "the 30 s of RELAY_STOP_GRACE" in words
    assert said == [words]
    made.lease = made.lease.renewed(clock.boot(), 15.0)  # the commander was started again with another length
    made.say_notice()
    assert ["gets 5 s" in words for _, words in told.events] == [False, True]
    for seconds, grace in ((300.0, 30.0), (30.0, None), (30.0, 10.0)):
        made, _, told = held(clock, seconds, grace)
        made.say_notice()
        assert told.events == []


def test_a_lease_in_which_nothing_can_be_saved_is_refused() -> None:
    clock = FakeClock()
    with pytest.raises(RelayError) as refused:
        held(clock, 3.0, 30.0)[0].refuse_too_short()
    assert refused.value.exit_code == Exit.USAGE
    assert "ON_LEASE_LOSS=stop cannot be kept under a lease of 3 s" in refused.value.message
    held(clock, LEAST_TO_STOP, 30.0)[0].refuse_too_short()
    held(clock, 1.0, None)[0].refuse_too_short()


def guard(boot: list[float], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[tuple[float, str]]]:
    stops: list[tuple[float, str]] = []
    made = main.Guardian.__new__(main.Guardian)
    made.line = cast(Any, SimpleNamespace(lost_at=None, drop_silent=lambda: None))
    made.log = cast(Any, SimpleNamespace(trouble=""))
    made.trainer = cast(Any, SimpleNamespace(look=lambda: None, code=None))
    made.deadline, made.kill_at, made.left_alone, made.told_trouble = 0.0, None, False, ""
    made.grace = made.notice = 30.0
    made.takes = []
    monkeypatch.setattr(main, "boot_clock", lambda: boot[0])
    monkeypatch.setattr(made, "stop", lambda grace, why: stops.append((grace, why)))
    return made, stops


def test_the_guardian_stops_as_early_as_it_was_told_and_no_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = [100.0]
    made, stops = guard(boot, monkeypatch)
    for order in (b"G10.0", b"D129.4"):
        made.obey(order)
    for now in (100.0, 118.3):
        boot[0] = now
        made._on_time()
    assert stops == []
    boot[0] = 118.5
    made._on_time()
    ((left, why),) = stops
    assert (round(left, 6), why) == (9.9, "deadline"), "dead a second before its lease ends"


def test_a_trainer_that_is_being_stopped_is_hurried_by_a_deadline_however_far(monkeypatch: pytest.MonkeyPatch) -> None:
    made, stops = guard([100.0], monkeypatch)
    made.obey(b"G10.0")
    made.kill_at = 1e9
    made.obey(b"D121")
    made._on_time()
    assert [left for left, _ in stops] == [20.0]


@pytest.mark.parametrize("word", [b"G", b"Gnan", b"Ginf", b"G-1", b"G1e999", b"G\xff", b"G 1 2"])
def test_no_other_word_changes_the_notice(word: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = guard([100.0], monkeypatch)
    made.obey(word)
    assert made.notice == 30.0
    made.obey(b"G90")
    assert made.notice == 30.0, "never more than its grace"


def test_a_doctor_says_what_a_lease_leaves() -> None:
    who = Whoami("worker", "c", 0.0, lease_seconds=30.0)
    settings = cast(Any, SimpleNamespace(on_lease_loss="stop", stop_grace=30.0))
    (check,) = doctor.lease_checks(settings, who)
    assert check.level is doctor.Level.WARN
    assert "gets 10 s" in check.why
    assert "--lease-seconds 90" in check.todo
    (check,) = doctor.lease_checks(settings, Whoami("worker", "c", 0.0, lease_seconds=2.0))
    assert (check.level, check.exit_code) == (doctor.Level.FAIL, Exit.USAGE)
    for seconds, rule in ((0.0, "stop"), (300.0, "stop"), (2.0, "continue")):
        settings.on_lease_loss = rule
        assert list(doctor.lease_checks(settings, Whoami("worker", "c", 0.0, lease_seconds=seconds))) == []


def test_a_run_under_a_lease_shorter_than_the_grace_goes_to_its_end(tmp_path: Path) -> None:
    with rigged(tmp_path, lease_seconds=10.0) as rig:
        agent = rig.agent(mock("--steps", 20, "--step-seconds", 0.05), ON_LEASE_LOSS="stop")
        assert agent.wait() == 0, agent.says()
        assert "cut off" not in agent.says()
        assert agent.says().count("RELAY_STOP_GRACE") == 1
        assert "agent.lease.short" in rig.kinds()
