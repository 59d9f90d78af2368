"""A spool that is full keeps of how far transfers are only the newest word on each kind."""

from __future__ import annotations

import pytest

from relay_agent.spool.segments import REPORT
from relay_agent.spool.yielding import give_way
from relaytui.wire.codec import encode
from relaytui.wire.reports import Log, Step, TelemetryReport, Transfer
from relaytui.wire.status import TransferKind, TransferPhase


@pytest.mark.parametrize("thin", [False, True])
def test_the_newest_of_each_kind_stays_and_nothing_else_is_thinned_for_it(thin: bool) -> None:
    hub = [Transfer(1.0, TransferKind.HUB, 500, done=done, phase=TransferPhase.UPLOADING) for done in range(9)]
    restore = Transfer(1.0, TransferKind.RESTORE, 400)
    reports: list[TelemetryReport] = [*hub[:5], restore, Log(1.0, 1, ["a"]), *hub[5:], Log(2.0, 2, ["b"]), Step(3.0, 7)]
    kept, count, steps = give_way([(REPORT, encode(report)) for report in reports], thin=thin)
    assert count == 4, "two transfers, one gap, one step"
    assert steps == 0
    assert encode(hub[-1]) in kept
    assert encode(hub[-2]) not in kept
    assert encode(restore) in kept
