"""The spool: numbers that never mean two things, nothing lost but what is counted; and the lease it all goes under."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest
from checkpoint_kit import Crash, FaultyDisk

from relay_agent.checkpoints.disk import SYSTEM, Disk
from relay_agent.lease.lease import Lease
from relay_agent.link.pace import Pace
from relay_agent.spool import segments
from relay_agent.spool.lane import BUFFER, FRAME, SEGMENT, Frame, Lane, Mark
from relay_agent.spool.segments import Folder
from relay_agent.spool.spool import Spool
from relay_agent.spool.yielding import MEMORY_BOUND
from relaytui.wire.codec import decode
from relaytui.wire.messages import MAX_FRAME, MAX_REPORTS, Reports, Skip
from relaytui.wire.reports import AnyReport, Event, Gap, Log, Step
from relaytui.wire.status import Stream

TOKEN = "t" * 32


def lane(
    folder: Path | None, stream: Stream = Stream.TELEMETRY, bound: int = 64 << 20, disk: Disk = SYSTEM
) -> tuple[Lane, list[str]]:
    """One that took up what lies in the folder, and what it complained about."""
    told: list[str] = []
    made = Lane(stream, "run-1", 3, TOKEN, Folder(folder, stream, disk), bound, told.append)
    made.load()
    return made, told


def step(number: int) -> Step:
    return Step(1.0, number, 100, {"loss": 1.5})


def opened(frame: Frame | None) -> Reports:
    assert frame is not None
    message = decode(frame.data, Reports)
    assert len(frame.data) <= MAX_FRAME
    assert (message.first_seq, message.first_seq + len(message.reports) - 1) == (frame.first, frame.last)
    return message


def asked(queue: Lane, seq: int) -> None:
    """A new session begins with the question how far the commander is."""
    frame = queue.take()
    assert frame is not None
    assert (frame.first, frame.last) == (seq, seq - 1)
    assert decode(frame.data, Skip).last_seq == seq - 1


class Commander:
    """Takes frames as the real one does: what it has it acknowledges, and it never goes on over a gap."""

    def __init__(self) -> None:
        self.got: dict[int, AnyReport] = {}
        self.skipped: list[tuple[int, int]] = []
        self.applied = 0

    def hear(self, frame: Frame) -> int | None:
        """The number acknowledged; None where it asks for `applied + 1`."""
        if frame.first > self.applied + 1:
            return None
        if b'"type":"skip"' in frame.data[:64]:
            skip = decode(frame.data, Skip)
            if skip.last_seq > self.applied:
                self.skipped.append((max(skip.first_seq, self.applied + 1), skip.last_seq))
                self.applied = skip.last_seq
            return self.applied
        message = opened(frame)
        for seq, report in enumerate(message.reports, message.first_seq):
            assert self.got.get(seq, report) == report, "the same number means two things"
            if seq > self.applied:
                assert seq == self.applied + 1
                self.got[seq] = report
                self.applied = seq
        return self.applied

    def take_all(self, queue: Lane) -> None:
        while (frame := queue.take()) is not None:
            acked = self.hear(frame)
            if acked is None:
                queue.resume(self.applied + 1)
            else:
                queue.ack(acked)

    @property
    def reports(self) -> list[AnyReport]:
        return [self.got[seq] for seq in sorted(self.got)]


def test_a_frame_is_what_the_commander_expects(tmp_path: Path) -> None:
    spool = Spool("run-1", 3, TOKEN, tmp_path)
    spool.state.append(Event(1.0, "resume.cold", "from the beginning"))
    message = opened(spool.state.take())
    assert (message.run_id, message.epoch, message.token, message.stream) == ("run-1", 3, TOKEN, Stream.STATE)
    assert message.reports == [Event(1.0, "resume.cold", "from the beginning")]
    assert not spool.empty
    spool.state.ack(1)
    assert spool.empty
    spool.delete()
    assert list(tmp_path.iterdir()) == []


class Flushes(Disk):
    """What of each file is on the plate: it is there after a power cut, and nothing else is sure to be."""

    def __init__(self) -> None:
        self.sure: dict[int, int] = {}

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        found = os.fstat(fd)
        self.sure[found.st_ino] = found.st_size

    def left_out(self, folder: Path) -> list[str]:
        found = ((path.name, path.stat()) for path in sorted(folder.iterdir()))
        return [name for name, stat in found if self.sure.get(stat.st_ino, 0) < stat.st_size]


def test_a_moment_later_all_of_it_survives_a_power_cut(tmp_path: Path) -> None:
    """The file that is written to, those that are full, and what an earlier agent had no time to flush."""
    first, _ = lane(tmp_path, Stream.STATE)
    for number in range(3):
        first.append(Event(1.0, "kind", f"event {number}", {}))
    first.close()

    disk = Flushes()
    queue, _ = lane(tmp_path, Stream.STATE, disk=disk)
    assert disk.left_out(tmp_path)
    queue.sync()
    assert disk.left_out(tmp_path) == []
    for number in range(3 * SEGMENT // 1000):
        queue.append(Event(1.0, "kind", f"event {number} {'x' * 1000}", {}))
    assert len(list(tmp_path.iterdir())) > 3
    queue.take()  # what is sent gets another name
    queue.take()
    queue.sync()
    assert disk.left_out(tmp_path) == []


def test_what_was_not_acknowledged_goes_again(tmp_path: Path) -> None:
    queue, _ = lane(tmp_path)
    for number in range(3):
        queue.append(step(number))
        assert queue.take() is not None
    queue.append(step(3))
    queue.ack(1)
    queue.rewind()
    asked(queue, 2)
    again = opened(queue.take())
    assert again.first_seq == 2
    assert again.reports == [step(1), step(2), step(3)]
    assert queue.take() is None
    assert not queue.ready
    assert not queue.empty


def test_an_acknowledgement_in_the_middle_of_a_frame_keeps_the_frame(tmp_path: Path) -> None:
    queue, _ = lane(tmp_path)
    for number in range(5):
        queue.append(step(number))
    frame = queue.take()
    queue.ack(3)
    queue.rewind()
    asked(queue, 1)
    assert queue.take() == frame


def test_a_report_is_on_the_disk_before_it_is_sent(tmp_path: Path) -> None:
    queue, _ = lane(tmp_path)
    queue.append(step(1))
    frame = queue.take()
    after, _ = lane(tmp_path)  # as after kill -9: nothing was closed
    asked(after, 1)
    assert after.take() == frame


def test_the_commander_says_where_it_wants_to_go_on(tmp_path: Path) -> None:
    queue, _ = lane(tmp_path)
    for number in range(4):
        queue.append(step(number))
        queue.take()
    assert queue.resume(3) == 0
    assert opened(queue.take()).first_seq == 3


def test_what_the_commander_lost_after_it_acknowledged_is_sent_again_or_counted(tmp_path: Path) -> None:
    queue, _ = lane(tmp_path)
    n = 1
    for _ in range(300):
        queue.append(Log(1.0, n, ["x" * 10_000]))
        n += 1
    commander = Commander()
    commander.take_all(queue)
    assert queue.empty
    queue.append(Log(1.0, n, ["the last"]))
    restored = Commander()
    restored.take_all(queue)
    assert restored.applied == 301
    ((first, last),) = restored.skipped
    assert first == 1
    assert sorted(restored.got) == list(range(last + 1, 302))
    assert restored.got[301] == Log(1.0, n, ["the last"])


def test_a_later_agent_goes_on_with_the_next_number(tmp_path: Path) -> None:
    commander = Commander()
    expected: list[AnyReport] = []
    for life in range(6):
        queue, told = lane(tmp_path)
        for number in range(life * 3000):
            report = step(life * 100_000 + number)
            expected.append(report)
            queue.append(report)
        if life % 2:
            commander.take_all(queue)
        queue.close()
        assert told == []
    queue, _ = lane(tmp_path)
    commander.take_all(queue)
    assert commander.reports == expected
    assert queue.empty


@pytest.mark.parametrize("waits", [0, 2])
def test_numbers_that_never_reached_the_disk_are_asked_for(tmp_path: Path, waits: int) -> None:
    earlier, _ = lane(tmp_path)
    for number in range(waits):
        earlier.append(step(number))
    earlier.close()
    later, _ = lane(tmp_path)  # its agent had a full disk, sent reports 1 to 5 from memory, and died
    later.rewind()  # its first session
    asked(later, 1)
    later.append(step(6))
    assert later.take() is None, "nothing is sent before it is known how far the commander is"
    later.ack(5)
    assert opened(later.take()).first_seq == 6


def test_acknowledged_segments_are_deleted(tmp_path: Path) -> None:
    queue, _ = lane(tmp_path)
    commander = Commander()
    for n in range(1, 2000):
        queue.append(Log(1.0, n, ["x" * 3000]))
        if not n % 100:
            commander.take_all(queue)
    commander.take_all(queue)
    assert len(list(tmp_path.iterdir())) <= 3


def test_frames_are_bounded_and_lines_stay_in_order(tmp_path: Path) -> None:
    queue, _ = lane(tmp_path)
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
        assert len(frame.data) <= FRAME + (64 << 10)
        expected_seq = frame.last + 1
        for report in message.reports:
            assert isinstance(report, Log)
            assert report.n == expected_n
            expected_n += len(report.lines)
        queue.ack(frame.last)
    assert expected_n == n
    assert queue.size == 0


@pytest.mark.parametrize("on_disk", [True, False])
def test_lines_give_way_counted_and_steps_stay(tmp_path: Path, on_disk: bool) -> None:
    bound = 8 << 20
    queue, _ = lane(tmp_path if on_disk else None, bound=bound)
    n = 1
    most = (bound if on_disk else MEMORY_BOUND) + 2 * SEGMENT
    for number in range(600):
        queue.append(step(number))
        lines = ["x" * 1000] * 50
        queue.append(Log(1.0, n, lines))
        n += len(lines)
        assert queue.size <= most
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= most
    commander = Commander()
    commander.take_all(queue)
    lines_seen = 1
    for report in commander.reports:
        if isinstance(report, Log | Gap):
            assert report.n == lines_seen, "every line is there, or counted where it would be"
            lines_seen += len(report.lines) if isinstance(report, Log) else report.count
    assert lines_seen == n
    assert sum(len(report.lines) for report in commander.reports if isinstance(report, Log)) > 500
    assert [report.step for report in commander.reports if isinstance(report, Step)] == list(range(600))
    assert commander.skipped == []


def test_steps_are_thinned_when_nothing_else_can_give_way(tmp_path: Path) -> None:
    queue, _ = lane(tmp_path, bound=2 << 20)
    for number in range(60_000):
        queue.append(step(number))
    assert queue.size <= (2 << 20) + 2 * SEGMENT
    commander = Commander()
    commander.take_all(queue)
    steps = [report.step for report in commander.reports if isinstance(report, Step)]
    assert steps == sorted(steps)
    assert steps[-1] == 59_999
    assert queue.thinned == 60_000 - len(steps)


def test_a_week_without_a_commander_costs_its_bound_and_survives_the_agent(tmp_path: Path) -> None:
    bound = 4 << 20
    n, expected = 1, 1
    for day in range(7):
        queue, told = lane(tmp_path, bound=bound)
        for number in range(400):
            queue.append(step(day * 1000 + number))
            queue.append(Log(1.0, n, ["y" * 4000]))
            n += 1
        queue.close()
        assert told == []
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= bound + 2 * SEGMENT
    queue, _ = lane(tmp_path, bound=bound)
    commander = Commander()
    commander.take_all(queue)
    for report in commander.reports:
        if isinstance(report, Log | Gap):
            assert report.n == expected
            expected += len(report.lines) if isinstance(report, Log) else report.count
    assert expected == n
    steps = [report.step for report in commander.reports if isinstance(report, Step)]
    assert steps == [day * 1000 + number for day in range(7) for number in range(400)]


def test_state_is_never_dropped(tmp_path: Path) -> None:
    queue, _ = lane(tmp_path, Stream.STATE, bound=1 << 20)
    for number in range(20_000):
        queue.append(Event(1.0, "checkpoint.torn", "x" * 400, {"number": str(number)}))
    commander = Commander()
    commander.take_all(queue)
    assert [report.data["number"] for report in commander.reports if isinstance(report, Event)] == [
        str(number) for number in range(20_000)
    ]


def test_a_full_disk_is_said_once_and_loses_nothing(tmp_path: Path) -> None:
    class Full(Disk):
        full = False

        def write(self, fd: int, data: bytes) -> None:
            if self.full:
                super().write(fd, data[: len(data) // 2])
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(fd, data)

    disk = Full()
    queue, told = lane(tmp_path, disk=disk)
    expected: list[AnyReport] = []
    for number in range(3_000):
        disk.full = 500 < number < 1_500
        expected.append(Log(1.0, number + 1, ["z" * 500]))
        queue.append(expected[-1])
        if not number % 7:
            queue.flush()
    commander = Commander()
    commander.take_all(queue)
    assert commander.reports == expected
    assert len(told) == 1
    assert "wait in memory" in told[0]


def test_how_far_the_output_was_read_is_kept(tmp_path: Path) -> None:
    queue, _ = lane(tmp_path)
    queue.append(Log(1.0, 1, ["a", "b"]))
    queue.note(Mark(4, 3))
    queue.append(step(7))
    queue.note(Mark(20, 4))
    commander = Commander()
    commander.take_all(queue)
    after, _ = lane(tmp_path)
    assert after.mark == Mark(20, 4)


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes() or b"\0")
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(90))
def test_whatever_happens_numbers_mean_one_thing_and_losses_are_counted(tmp_path: Path, seed: int) -> None:
    """Sessions, lost acknowledgements, kills, restored commanders, flipped bits and cut files, at random."""
    rng = random.Random(seed)
    damage = seed % 3 == 0
    queue, told = lane(tmp_path, bound=64 << 20)
    commander, number, damaged = Commander(), 0, 0
    backup: Commander | None = None
    for _ in range(rng.randrange(20, 120)):
        match rng.choice("aaattttkwrbx"):
            case "a":
                for _ in range(rng.choice([1, 3, 50, 400])):
                    number += 1
                    queue.append(Log(1.0, number, ["q" * rng.choice([10, 10, 2000])]))
            case "t":
                frame = queue.take(rng.choice([100, 5_000, FRAME]))
                if frame is not None and rng.random() < 0.9:  # else the frame is lost with its session
                    acked = commander.hear(frame)
                    if acked is None:
                        queue.resume(commander.applied + 1)
                    elif rng.random() < 0.8:
                        queue.ack(acked)
                elif frame is not None:
                    queue.rewind()
            case "k":
                queue.flush()
                queue, _ = lane(tmp_path, bound=64 << 20)
            case "w":
                queue.rewind()
            case "r" if backup is not None:
                commander, backup = backup, None
                queue.rewind()
            case "b":
                backup = Commander()
                backup.got, backup.applied = dict(commander.got), commander.applied
                backup.skipped = list(commander.skipped)
            case "x" if damage:
                queue.flush()
                files = [path for path in sorted(tmp_path.iterdir()) if path.suffix == ".log"]
                if files:
                    path = rng.choice(files)
                    if rng.random() < 0.5:
                        flip(path, rng)
                    else:
                        path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size + 1)])
                    damaged += 1
                queue, told = lane(tmp_path, bound=64 << 20)
    queue.rewind()
    for _ in range(3):
        commander.take_all(queue)
    assert queue.empty
    lines = [report.n for report in commander.reports if isinstance(report, Log)]
    assert lines == sorted(set(lines)), "in order, each once"
    if not damaged:
        missing = set(range(1, number + 1)) - set(lines)
        counted = sum(last + 1 - first for first, last in commander.skipped)
        assert len(missing) == counted, "without damage only what the commander lost is missing, and it is counted"
        assert told == []


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (b"SQLite format 3\0" * 100, "not readable"),
        (segments.pack(segments.HEADER, b'[2,"run-1",3,"telemetry"]'), "another version"),
        (segments.pack(segments.HEADER, b'[1,"run-2",3,"telemetry"]'), "another attempt"),
        (segments.pack(segments.HEADER, b'[1,"run-1",3,"state"]'), "another attempt"),
        (segments.pack(segments.REPORT, b"{}"), "another version"),
    ],
)
def test_what_is_no_spool_of_this_attempt_is_set_aside_and_said(tmp_path: Path, what: bytes, says: str) -> None:
    (tmp_path / "telemetry.0000000001.log").write_bytes(what)
    queue, told = lane(tmp_path)
    assert len(told) == 1
    assert says in told[0]
    queue.append(step(1))
    assert opened(queue.take()).reports == [step(1)]
    assert [path.read_bytes() for path in tmp_path.iterdir() if path.suffix == ".damaged"] == [what]


def test_a_crash_at_any_call_loses_nothing_that_was_sent(tmp_path: Path) -> None:
    """Killed before, after and halfway through each call of the disk: what a commander heard stays what it means."""

    def story(folder: Path, disk: Disk, commander: Commander, appended: list[AnyReport]) -> None:
        queue, _ = lane(folder, bound=1 << 20, disk=disk)
        n = 1
        for round_ in range(8):
            for _ in range(12):
                report = Log(1.0, n, ["x" * 16_000])
                appended.append(report)
                queue.append(report)
                n += 1
            if round_ in (0, 6):
                for _ in range(2):
                    frame = queue.take()
                    assert frame is not None
                    commander.hear(frame)
                    queue.ack(frame.last)

    counted = FaultyDisk()
    (tmp_path / "counted").mkdir()
    story(tmp_path / "counted", counted, Commander(), [])
    assert {"create", "write", "fsync", "rename", "unlink"} == {call.partition(" ")[0] for call in counted.calls}
    for number, call in enumerate(counted.calls):
        for way in ("before", "after", "half")[: 3 if call == "write" else 2]:
            folder = tmp_path / f"{number}-{way}"
            folder.mkdir()
            commander, appended = Commander(), []
            with pytest.raises(Crash):
                story(folder, FaultyDisk(number, Crash, after=way == "after", half=way == "half"), commander, appended)
            before = dict(commander.got)
            queue, _ = lane(folder, bound=1 << 20)
            commander.take_all(queue)
            for seq, report in before.items():
                assert commander.got[seq] == report
            expected = 1
            for report in commander.reports:
                assert isinstance(report, Log | Gap)
                assert report.n == expected
                expected += len(report.lines) if isinstance(report, Log) else report.count
            written = len(appended) - 1 if way != "after" else len(appended)
            assert expected - 1 >= written - (BUFFER // 16_000 + 1), "at most what was being buffered is missing"


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


@pytest.mark.parametrize("sent", [False, True])
def test_a_folder_that_is_deleted_loses_nothing_and_is_not_said_to_keep_it(tmp_path: Path, sent: bool) -> None:
    """What was written is there for as long as its file is open; it goes on in memory."""
    folder = tmp_path / "pod"
    folder.mkdir()
    told: list[str] = []
    spool = Spool("run-1", 3, TOKEN, folder, trouble=told.append)
    commander, queue = Commander(), spool.telemetry
    for number in range(1, 6):
        queue.append(step(number))
    queue.flush()
    if sent:
        frame = queue.take()
        assert frame is not None
        commander.hear(frame)  # the answer is lost
    assert spool.on_disk
    shutil.rmtree(folder)
    if sent:
        queue.rewind()
    queue.append(step(6))
    queue.flush()
    queue.append(step(7))
    assert not spool.on_disk
    while (frame := queue.take()) is not None:
        if (acknowledged := commander.hear(frame)) is not None:
            queue.ack(acknowledged)
    assert [report.step for report in commander.got.values() if isinstance(report, Step)] == list(range(1, 8))
    assert queue.empty
    assert commander.skipped == []
    assert told == [f"{folder} takes no reports: they wait in memory; training goes on"]


def test_what_is_read_of_a_deleted_folder_is_what_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "pod"
    folder.mkdir()
    queue, told = lane(folder)
    queue.append(step(1))
    queue.flush()
    shutil.rmtree(folder)
    assert [report.step for report in opened(queue.take()).reports if isinstance(report, Step)] == [1]
    assert told == []
