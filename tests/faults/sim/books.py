"""What the commander has in its books, beside what was sent, acknowledged and printed."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from tests.faults.sim.observer import Observer, Saw

UNIQUE_EVENTS = ("trainer.exited", "resume.checkpoint", "resume.cold", "agent.took_over", "attempt.refused")
"""Kinds of which every single one must be in the history exactly once, told apart by epoch and count."""


@dataclass
class _Read:
    """How far one epoch's telemetry has been read."""

    seq: int = 0
    line: int = 0
    again: bool = False
    """Its agent tells lines once more."""


def judge_acks(observer: Observer, db: sqlite3.Connection) -> None:
    """What was acknowledged is stored; called while the books lie still."""
    stored = dict(db.execute("SELECT epoch, last_seq FROM main.streams").fetchall())
    lines = dict(db.execute("SELECT epoch, last_seq FROM lines.streams").fetchall())
    for (epoch, name), stream in observer.streams.items():
        last = (stored if name == "state" else lines).get(epoch, 0)
        observer.check(
            "acked is stored",
            last >= stream.acked,
            f"epoch {epoch}: {name} acked to {stream.acked}, stored to {last}",
        )
        # What a commander took in and lost with its memory means nothing to anybody any more.
        stream.arrived = {number for number in stream.arrived if number <= last}


def judge_telemetry(observer: Observer, db: sqlite3.Connection) -> None:
    rows = db.execute(
        "SELECT s.epoch, f.first_seq, f.last_seq, f.data FROM lines.frames f "
        "JOIN lines.streams s ON s.id = f.stream ORDER BY s.epoch, f.id"
    )
    read: defaultdict[int, _Read] = defaultdict(_Read)
    for epoch, first, last, data in rows:
        so_far = read[epoch]
        words = f"epoch {epoch}: frame from {first} after {so_far.seq}"
        observer.check("once, in order", first == so_far.seq + 1, words)
        so_far.seq = last
        sent = observer.streams[epoch, "telemetry"].sent
        frame = [orjson.loads(sent[number]) for number in range(first, last + 1) if number in sent]
        _judge_frame(observer, epoch, orjson.loads(data), frame, so_far)


def _judge_frame(
    observer: Observer, epoch: int, stored: list[dict[str, Any]], sent: list[dict[str, Any]], so_far: _Read
) -> None:
    """All of it, in order; where its agent told a log again whose reports were lost, only the lines after those
    read so far, and no more steps than were sent."""
    spans = [report for report in sent if report["type"] in ("log", "gap")]
    so_far.again = any(report["n"] <= so_far.line for report in spans) or (so_far.again and not spans)
    if not stored:
        return  # skipped, or known
    wanted: list[dict[str, Any]] = []
    for report in sent:
        if report in spans:
            count = len(report["lines"]) if report["type"] == "log" else report["count"]
            known = max(0, so_far.line + 1 - report["n"])
            so_far.line = max(so_far.line, report["n"] + count - 1)
            if known >= count:
                continue
            rest = {"lines": report["lines"][known:]} if report["type"] == "log" else {"count": count - known}
            report = report | {"n": report["n"] + known} | rest
        wanted.append(report)
    left = iter(wanted)
    whole = all(report in left for report in stored)
    if not so_far.again:
        whole = stored == wanted
    logs = [report for report in stored if report["type"] == "log"]
    whole = whole and logs == [report for report in wanted if report["type"] == "log"][: len(logs)]
    observer.checks["stored as sent"] += len(stored)
    if not whole:
        observer.fail("stored as sent", f"epoch {epoch}: {stored} is not what was sent: {wanted}")
    for report in logs:
        _judge_lines(observer, epoch, report)


def _judge_lines(observer: Observer, epoch: int, report: dict[str, Any]) -> None:
    """Line n of an epoch is the n-th that its trainers printed, one after another: without a commander a second one
    is started under the same lease."""
    printed = [step for saw in observer.trainers.values() if saw.epoch == epoch for step in _steps_of(saw)]
    observer.checks["lines in order"] += len(report["lines"])
    for n, line in enumerate(report["lines"], report["n"]):
        if n > len(printed) or not line.startswith(f"step {printed[n - 1]}/"):
            observer.fail("lines in order", f"epoch {epoch}: line {n} is {line!r}")


def judge_events(observer: Observer, db: sqlite3.Connection) -> None:
    if observer.restored:
        return
    rows = db.execute("SELECT epoch, kind, count(*) FROM main.events GROUP BY epoch, kind")
    found = {(epoch, kind): count for epoch, kind, count in rows}
    applied = dict(db.execute("SELECT epoch, last_seq FROM main.streams").fetchall())
    for (epoch, name), stream in observer.streams.items():
        if name != "state":
            continue
        sent: Counter[str] = Counter()
        lost: Counter[str] = Counter()
        for seq, raw in stream.sent.items():
            report = orjson.loads(raw)
            if report["type"] == "event" and seq <= applied.get(epoch, 0):
                sent[report["kind"]] += 1
                lost.update([report["kind"]] * (seq in stream.given_up))
        cut = observer.world.faults.counts["pod power cut"]
        observer.check("given up", bool(cut) or not lost, f"epoch {epoch}: {dict(lost)} went without a power cut")
        for kind in UNIQUE_EVENTS:
            told = found.get((epoch, kind), 0) + found.get((epoch, f"agent.{kind}"), 0)
            observer.check(
                "events once",
                sent[kind] - lost[kind] <= told <= sent[kind],
                f"epoch {epoch}: {kind} was told {sent[kind]} times, stored {told}",
            )


def _steps_of(saw: Saw) -> range:
    """Those that it made, each of which it printed."""
    return range(saw.first + 1, saw.last + 1)
