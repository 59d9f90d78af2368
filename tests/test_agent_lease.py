"""The lease as its holder counts it: safe from when it was asked for, and never longer by a late answer."""

from __future__ import annotations

from relay_agent.lease.lease import Lease

TOKEN = "t" * 32


def test_a_lease_is_safe_from_when_it_was_asked_for() -> None:
    lease = Lease.granted("run-1", 3, TOKEN, 100.0, asked=50.0)
    assert lease.safe(147.9)
    assert not lease.safe(148.0)
    assert lease.renewed(sent=60.0, seconds=100.0).safe_until == 158.0


def test_a_late_answer_never_shortens_and_never_extends_beyond_its_question() -> None:
    lease = Lease.granted("run-1", 3, TOKEN, 100.0, asked=50.0).renewed(80.0, 100.0)
    assert lease.renewed(sent=60.0, seconds=100.0).safe_until == 178.0


def test_a_lost_lease_stays_lost() -> None:
    lease = Lease.granted("run-1", 3, TOKEN, 100.0, asked=0.0).over("superseded")
    assert not lease.safe(1.0)
    assert lease.renewed(2.0, 100.0).lost == "superseded"
    assert lease.over("released").lost == "superseded"


def test_renewals_come_often_but_not_too_often() -> None:
    def every(seconds: float) -> float:
        return Lease.granted("run-1", 3, TOKEN, seconds, 0.0).every

    assert (every(300), every(6), every(3600)) == (30, 1, 30)
