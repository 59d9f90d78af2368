"""The spool: numbers that never mean two things, nothing lost but what is counted."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from checkpoint_kit import Crash, FaultyDisk
from spool_kit import TOKEN, Commander, asked, lane, opened, step

from relay_agent.checkpoints.disk import Disk
from relay_agent.link.pace import Pace
from relay_agent.spool import segments
from relay_agent.spool.lane import BUFFER, FRAME, SEGMENT, Frame, Mark
from relay_agent.spool.spool import Spool
from relaytui.wire.messages import MAX_REPORTS
from relaytui.wire.reports import AnyReport, Event, Gap, Log
from relaytui.wire.status import Stream


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
