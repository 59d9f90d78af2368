"""What gives way when a spool is full: log lines become a counted gap, of steps every second one goes, of how far
transfers are only the newest word stays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from relay_agent.spool.segments import MARK, REPORT, Damaged, Folder, Segment, pack
from relaytui.wire.codec import decode, encode
from relaytui.wire.errors import RelayError
from relaytui.wire.reports import Gap, Log, Step, TelemetryReport, Transfer

MEMORY_BOUND = 2 << 20
"""Bytes of one stream in memory at most, where the disk takes nothing."""
FEWEST = 6
"""How often what waits is thinned at most: of 64 steps one stays."""
LARGEST = 2 << 20
"""Bytes that give way in one go, about."""


def make_room(
    segments: list[Segment], reading: Segment, folder: Folder, header: bytes, bound: int
) -> tuple[list[Segment], int, int]:
    """Segments within `bound` on disk and MEMORY_BOUND in memory, how many reports went for that, and of these how many
    steps. Oldest first, least thinned first; never what has numbers, what is read now, or the last, which is written.
    """
    segments = list(segments)
    gone = thinned = 0
    for in_memory, most in ((False, bound), (True, MEMORY_BOUND)):
        for level in range(FEWEST):
            while _held(segments, in_memory) > most and (batch := _batch(segments, reading, in_memory, level)):
                kept, reports, steps = give_way(_all(batch), thin=level > 0)
                merged = folder.replace(batch, header + kept)
                merged.reports, merged.level = reports, level + 1
                gone += sum(segment.reports for segment in batch) - reports
                thinned += steps
                at = segments.index(batch[0])
                segments[at : at + len(batch)] = [merged]
    return segments, gone, thinned


def _held(segments: list[Segment], in_memory: bool) -> int:
    return sum(segment.size for segment in segments if (segment.path is None) is in_memory)


def _batch(segments: list[Segment], reading: Segment, in_memory: bool, level: int) -> list[Segment]:
    """Neighbours that may give way together."""
    batch: list[Segment] = []
    for segment in segments[:-1]:
        fits = (
            segment.first is None
            and (segment.path is None) is in_memory
            and segment.level == level
            and segment is not reading
        )
        if fits:
            batch.append(segment)
        if batch and (not fits or sum(each.size for each in batch) >= LARGEST):
            break
    return batch


def _all(batch: list[Segment]) -> Iterator[tuple[bytes, bytes]]:
    for segment in batch:
        with suppress(Damaged, OSError):
            for record in segment.records():
                yield record.kind, record.payload


def give_way(records: Iterable[tuple[bytes, bytes]], *, thin: bool) -> tuple[bytes, int, int]:
    """Records (kind, payload) → what is kept of them, how many reports that are, and how many steps went.

    Every line is either kept or counted. The newest step is always kept, and of marks the last.
    """
    reports: list[TelemetryReport] = []
    mark = b""
    for kind, payload in records:
        if kind == MARK:
            mark = payload
        elif kind == REPORT:
            try:
                reports.append(decode(payload, TelemetryReport))  # type: ignore[arg-type]  # a union is a type to msgspec
            except RelayError:
                continue  # whole as written, and no report of this version
    kept = _gapped(_newest(reports))
    kept, thinned = _thinned(kept) if thin else (kept, 0)
    data = b"".join(pack(REPORT, encode(report)) for report in kept)
    return data + (pack(MARK, mark) if mark else b""), len(kept), thinned


def _newest(reports: list[TelemetryReport]) -> list[TelemetryReport]:
    """Of what transfers of one kind said, the last; all else."""
    last = {report.kind: at for at, report in enumerate(reports) if isinstance(report, Transfer)}
    return [r for at, r in enumerate(reports) if not isinstance(r, Transfer) or last[r.kind] == at]


def _gapped(reports: list[TelemetryReport]) -> list[TelemetryReport]:
    kept: list[TelemetryReport] = []
    gap: Gap | None = None
    for report in reports:
        if isinstance(report, Step | Transfer):
            kept.append(report)
            continue
        count = len(report.lines) if isinstance(report, Log) else report.count
        if gap is not None and gap.n + gap.count == report.n:
            gap = Gap(gap.t, gap.n, gap.count + count)
            continue
        if gap is not None:
            kept.append(gap)
        gap = Gap(report.t, report.n, count)
    return kept if gap is None else [*kept, gap]


def _thinned(reports: list[TelemetryReport]) -> tuple[list[TelemetryReport], int]:
    kept: list[TelemetryReport] = []
    odd = False
    for report in reversed(reports):
        if isinstance(report, Step):
            odd = not odd
            if not odd:
                continue
        kept.append(report)
    return kept[::-1], len(reports) - len(kept)
