"""What a spool does without room or folder: lines give way and are counted, steps are thinned, the rest stays."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from spool_kit import TOKEN, Commander, lane, opened, step

from relay_agent.checkpoints.disk import Disk
from relay_agent.spool.lane import SEGMENT
from relay_agent.spool.spool import Spool
from relay_agent.spool.yielding import MEMORY_BOUND
from relaytui.wire.reports import AnyReport, Event, Gap, Log, Step
from relaytui.wire.status import Stream


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
    queue, _ = lane(tmp_path, bound=1 << 20)
    for number in range(30_000):
        queue.append(step(number))
    assert queue.size <= (1 << 20) + 2 * SEGMENT
    commander = Commander()
    commander.take_all(queue)
    steps = [report.step for report in commander.reports if isinstance(report, Step)]
    assert steps == sorted(steps)
    assert steps[-1] == 29_999
    assert queue.thinned == 30_000 - len(steps)


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
