"""The spool: numbers without holes, nothing lost but what is counted; and the lease that the reports travel under."""

from __future__ import annotations

import random

from relay_agent.lease import Lease
from relay_agent.link import Pace
from relay_agent.spool import BOUND, FRAME, Frame, Lane, Spool
from relaytui.wire.codec import decode
from relaytui.wire.messages import MAX_FRAME, MAX_REPORTS, Reports
from relaytui.wire.reports import AnyReport, Event, Gap, Log, Step
from relaytui.wire.status import Stream

TOKEN = "t" * 32


def lane(stream: Stream = Stream.TELEMETRY) -> Lane:
    return Lane(stream, "run-1", 3, TOKEN)


def step(number: int) -> Step:
    return Step(1.0, number, 100, {"loss": 1.5})


def opened(frame: Frame | None) -> Reports:
    assert frame is not None
    message = decode(frame.data, Reports)
    assert len(frame.data) <= MAX_FRAME
    assert (message.first_seq, message.first_seq + len(message.reports) - 1) == (frame.first, frame.last)
    return message


def test_a_frame_is_what_the_commander_expects() -> None:
    spool = Spool("run-1", 3, TOKEN)
    spool.state.append(Event(1.0, "resume.cold", "from the beginning"))
    message = opened(spool.state.take())
    assert (message.run_id, message.epoch, message.token, message.stream) == ("run-1", 3, TOKEN, Stream.STATE)
    assert message.reports == [Event(1.0, "resume.cold", "from the beginning")]
    assert not spool.empty
    spool.state.ack(1)
    assert spool.empty


def test_what_was_not_acknowledged_goes_again_as_it_was() -> None:
    queue = lane()
    sent = []
    for number in range(3):
        queue.append(step(number))
        sent.append(queue.take())
    queue.append(step(3))
    queue.ack(1)
    queue.rewind()
    assert queue.take() == sent[1]
    assert queue.take() == sent[2]
    assert opened(queue.take()).first_seq == 4
    assert queue.take() is None


def test_an_acknowledgement_in_the_middle_of_a_frame_keeps_the_frame() -> None:
    queue = lane()
    for number in range(5):
        queue.append(step(number))
    frame = queue.take()
    queue.ack(3)
    queue.rewind()
    assert queue.take() == frame


def test_the_commander_says_where_it_wants_to_go_on() -> None:
    queue = lane()
    for number in range(4):
        queue.append(step(number))
        queue.take()
    assert queue.resume(3)
    assert opened(queue.take()).first_seq == 3
    queue.ack(4)
    assert not queue.resume(2), "acknowledged and gone: that cannot be sent again"
    queue.append(step(9))
    assert opened(queue.take()).first_seq == 5


def test_waiting_lines_are_merged_and_frames_are_bounded() -> None:
    queue = lane()
    n = 1
    rng = random.Random(1)
    for _ in range(3_000):
        lines = ["🙂" * rng.randrange(200) + '"\\' * 50 for _ in range(rng.randrange(1, 4))]
        queue.append(Log(1.0, n, lines))
        n += len(lines)
    expected_seq = expected_n = 1
    while (frame := queue.take()) is not None:
        message = opened(frame)
        assert message.first_seq == expected_seq
        assert len(message.reports) <= MAX_REPORTS
        expected_seq = frame.last + 1
        for report in message.reports:
            if isinstance(report, Log):
                assert report.n == expected_n
                expected_n += len(report.lines)
            elif isinstance(report, Gap):
                assert report.n == expected_n
                expected_n += report.count
        queue.ack(frame.last)
    assert expected_n == n
    assert queue.size == 0


def test_lines_give_way_counted_and_steps_stay() -> None:
    queue = lane()
    n = 1
    for number in range(400):
        queue.append(step(number))
        lines = ["x" * 1000] * 50
        queue.append(Log(1.0, n, lines))
        n += len(lines)
        assert queue.size <= BOUND
    everything: list[AnyReport] = list(queue.waiting)
    gaps = [report for report in everything if isinstance(report, Gap)]
    kept = sum(len(report.lines) for report in everything if isinstance(report, Log))
    assert sum(gap.count for gap in gaps) + kept == n - 1
    assert kept > 1000
    assert sum(isinstance(report, Step) for report in everything) == 400


def test_steps_are_thinned_when_nothing_else_can_give_way() -> None:
    queue = lane()
    for number in range(100_000):
        queue.append(step(number))
        assert queue.size <= BOUND
    steps = [report.step for report in queue.waiting if isinstance(report, Step)]
    assert steps == sorted(steps)
    assert steps[-1] == 99_999
    assert queue.thinned == 100_000 - len(steps)


def test_state_is_never_dropped() -> None:
    queue = lane(Stream.STATE)
    for number in range(20_000):
        queue.append(Event(1.0, "checkpoint.torn", "x" * 400, {"number": str(number)}))
    seen = 0
    while (frame := queue.take()) is not None:
        for report in opened(frame).reports:
            assert isinstance(report, Event)
            assert report.data["number"] == str(seen)
            seen += 1
        queue.ack(frame.last)
    assert seen == 20_000


def test_a_thin_line_gets_small_frames() -> None:
    pace = Pace()
    for seq in range(1, 9):
        pace.sent(Frame(Stream.TELEMETRY, seq, seq, b""), now=seq * 10.0)
        pace.acked(seq, now=seq * 10.0 + 3)
    assert pace.frame <= 16 << 10
    for seq in range(9, 20):
        pace.sent(Frame(Stream.TELEMETRY, seq, seq, b""), now=seq * 10.0)
        pace.acked(seq, now=seq * 10.0 + 0.01)
    assert pace.frame == FRAME


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
