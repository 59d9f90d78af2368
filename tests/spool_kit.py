"""Queues of reports as an agent has them, and a commander that takes them as the real one does."""

from __future__ import annotations

from pathlib import Path

from relay_agent.checkpoints.disk import SYSTEM, Disk
from relay_agent.spool.lane import Frame, Lane
from relay_agent.spool.segments import Folder
from relaytui.wire.codec import decode
from relaytui.wire.messages import MAX_FRAME, Reports, Skip
from relaytui.wire.reports import AnyReport, Step
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
