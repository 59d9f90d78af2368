"""The picture a client keeps: logs without doubles or silent holes, curves, time."""

from __future__ import annotations

import math
import random

from msgspec.structs import replace
from scripted_commander import NOW, snapshot

from relaytui.client.answers import RunDetail
from relaytui.client.curve import MAX_POINTS, Curve
from relaytui.client.link import Link, LinkState
from relaytui.client.logbuffer import LogBuffer
from relaytui.client.mirror import Mirror
from relaytui.wire.artifacts import ArtifactKind, ArtifactRow
from relaytui.wire.feed import (
    ArtifactChanged,
    ArtifactGone,
    Beat,
    CheckpointChanged,
    EventAdded,
    Lines,
    RunChanged,
    WorkerChanged,
    WorkerGone,
)
from relaytui.wire.rows import AttemptRow, CheckpointRow, EventRow, RunRow, WorkerRow
from relaytui.wire.status import RunStatus, WorkerStatus


class HandClock:
    def __init__(self) -> None:
        self.t = 100.0

    def __call__(self) -> float:
        return self.t


def run(run_id: str, *, updated_at: float = NOW, step: int = 0) -> RunRow:
    return RunRow(
        run_id=run_id, mode="sft", status=RunStatus.RUNNING, epoch=1, created_at=NOW, updated_at=updated_at, step=step
    )


def event(number: int) -> EventRow:
    return EventRow(id=number, at=NOW, kind="lease.granted", actor="a", message="m")


def test_lines_repeated_by_a_reconnect_appear_once_and_in_order() -> None:
    log = LogBuffer()
    log.add(1, 1, NOW, ["a", "b", "c"])
    log.add(1, 2, NOW, ["b", "c", "d"])
    log.add(2, 1, NOW, ["x"])
    log.add(1, 5, NOW, ["e"])  # history of the first attempt, come late
    assert [entry.text for entry in log.entries] == ["a", "b", "c", "d", "e", "x"]
    assert log.generation == 1  # the late line alone was not an append


def test_any_order_of_arrival_gives_the_same_log() -> None:
    rng = random.Random(7)
    frames = [(epoch, n, [f"{epoch}.{n + i}" for i in range(5)]) for epoch in (1, 2) for n in range(1, 50, 3)]
    for _ in range(20):
        rng.shuffle(frames)
        log = LogBuffer()
        for epoch, n, lines in frames:
            log.add(epoch, n, NOW, lines)
        assert [e.key for e in log.entries] == sorted({e.key for e in log.entries})
        assert all(e.text == f"{e.epoch}.{e.n}" for e in log.entries)


def test_the_log_is_bounded_and_counts_what_went() -> None:
    log = LogBuffer(limit=100)
    log.add(1, 1, NOW, [str(n) for n in range(1, 251)])
    assert (len(log), log.dropped, log.appended) == (100, 150, 250)
    assert log.entries[0].n == 151
    log.add(1, 1, NOW, ["1"])  # too old to keep: no place is made for it
    assert log.entries[0].n == 151


def test_a_gap_is_kept_as_a_gap_until_the_lines_come() -> None:
    log = LogBuffer()
    log.add_gap(1, 3, 40)
    assert log.entries[0].missing == 40
    log.add(1, 3, NOW, ["found"])
    assert (log.entries[0].missing, log.entries[0].text) == (0, "found")


def test_a_curve_keeps_its_extremes_and_its_nan_when_thinned() -> None:
    curve = Curve()
    count = MAX_POINTS * 4
    spike, hole = 5_001, 9_001
    curve.add(
        (1, step, 99.0 if step == spike else "nan" if step == hole else 1.0 + (step % 7) / 10) for step in range(count)
    )
    line = curve.lines[1]
    assert len(line.steps) <= MAX_POINTS
    assert line.steps == sorted(set(line.steps))
    assert max(v for v in line.values if not math.isnan(v)) == 99.0
    assert any(math.isnan(v) for v in line.values)


def test_a_curve_that_hears_nothing_new_does_not_change() -> None:
    curve = Curve()
    curve.add([(1, 1, 2.0), (1, 2, 1.5)])
    version = curve.version
    curve.add([(1, 1, 2.0)])
    assert curve.version == version


def test_a_new_snapshot_replaces_rows_and_keeps_logs() -> None:
    mirror = Mirror(HandClock())
    mirror.apply(snapshot([run("a"), run("b")], events=[event(1), event(2)]))
    mirror.apply(Lines("a", 1, 1, NOW, ["hello"]))
    mirror.apply(snapshot([run("a")], events=[event(2), event(3)]))
    assert list(mirror.runs) == ["a"]
    assert [e.id for e in mirror.events] == [1, 2, 3]
    assert len(mirror.picture("a").log) == 1


def test_another_commanders_history_is_not_mixed_in() -> None:
    mirror = Mirror(HandClock())
    mirror.apply(snapshot(events=[event(900)], commander="first"))
    mirror.apply(Lines("a", 1, 1, NOW, ["old"]))
    mirror.apply(snapshot(events=[event(1)], commander="second"))
    assert [e.id for e in mirror.events] == [1]
    assert len(mirror.picture("a").log) == 0


def test_only_the_part_that_changed_is_counted() -> None:
    mirror = Mirror(HandClock())
    mirror.apply(snapshot([run("a")]))
    before = (mirror.versions.runs, mirror.versions.workers, mirror.versions.events)
    mirror.apply(Beat(NOW + 1))
    assert (mirror.versions.runs, mirror.versions.workers, mirror.versions.events) == before
    mirror.apply(RunChanged(NOW + 1, run("a", step=5)))
    mirror.apply(EventAdded(event(1)))
    assert (mirror.versions.runs, mirror.versions.workers, mirror.versions.events) == (
        before[0] + 1,
        before[1],
        before[2] + 1,
    )


def test_ages_follow_the_commanders_clock() -> None:
    clock = HandClock()
    mirror = Mirror(clock)
    mirror.apply(snapshot(now=NOW))
    clock.t += 10
    assert mirror.now == NOW + 10
    mirror.apply(Beat(NOW + 9.5))  # waited in a buffer
    assert mirror.now == NOW + 10
    mirror.apply(Beat(NOW + 300))
    assert mirror.now == NOW + 300
    mirror.apply(Beat(NOW))  # the commander's clock was set back
    assert mirror.now == NOW


def test_heard_ago_is_zero_only_while_live() -> None:
    clock = HandClock()
    mirror = Mirror(clock)
    mirror.set_link(Link(LinkState.STALE, clock.t))
    clock.t += 12
    assert mirror.heard_ago == 12
    mirror.set_link(Link(LinkState.LIVE, clock.t))
    assert mirror.heard_ago == 0


def test_workers_come_and_go_by_incarnation() -> None:
    mirror = Mirror(HandClock())
    row = WorkerRow("pod", "i1", WorkerStatus.BUSY, NOW, NOW)
    mirror.apply(WorkerChanged(now=NOW, worker=row))
    mirror.apply(WorkerChanged(now=NOW, worker=WorkerRow("pod", "i2", WorkerStatus.IDLE, NOW, NOW)))
    mirror.apply(WorkerGone("i1"))
    assert list(mirror.workers) == ["i2"]


def test_a_detail_read_before_a_newer_row_arrived_does_not_undo_it() -> None:
    mirror = Mirror(HandClock())
    mirror.apply(RunChanged(NOW, run("a", updated_at=NOW + 5, step=50)))
    mirror.load_detail(RunDetail(NOW, run("a", updated_at=NOW + 1, step=10), [AttemptRow("a", 1, "pod", NOW)]))
    assert mirror.runs["a"].step == 50
    assert list(mirror.picture("a").attempts) == [1]


def test_what_the_feed_said_while_the_details_were_asked_for_is_the_newer_word() -> None:
    """They are two connections: an answer may be older than what came before it."""
    clock = HandClock()
    mirror = Mirror(clock)
    mirror.apply(snapshot([run("a")]))
    old, new = (CheckpointRow("a", f"step_{step}", step, 1, 10, 1, "m", NOW) for step in (1, 2))
    kept, gone, damaged = (
        ArtifactRow(number, "a", ArtifactKind.FILE, f"f{number}", "0" * 64, 1, NOW, "pod") for number in (1, 2, 3)
    )
    mirror.picture("a")
    mirror.apply(CheckpointChanged(replace(old, hub="before it was asked")))
    clock.t += 1.0
    asked = mirror.clock()
    mirror.apply(CheckpointChanged(new))
    mirror.apply(ArtifactChanged(replace(damaged, damaged="its content is missing")))
    mirror.apply(ArtifactGone(run_id="a", id=gone.id))
    mirror.load_detail(RunDetail(NOW, run("a"), [], [old], [kept, gone, damaged]), asked)
    picture = mirror.picture("a")
    assert list(picture.checkpoints.values()) == [old, new]
    assert [(row.id, row.damaged) for row in picture.artifacts.values()] == [(1, ""), (3, "its content is missing")]
