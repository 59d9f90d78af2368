"""What gives way when a spool is full: log lines become a counted gap, of steps every second one goes."""

from __future__ import annotations

from collections.abc import Iterable

from relay_agent.segments import MARK, REPORT, pack
from relaytui.wire.codec import decode, encode
from relaytui.wire.errors import RelayError
from relaytui.wire.reports import Gap, Log, Step, TelemetryReport


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
    kept, thinned = _thinned(_gapped(reports)) if thin else (_gapped(reports), 0)
    data = b"".join(pack(REPORT, encode(report)) for report in kept)
    return data + (pack(MARK, mark) if mark else b""), len(kept), thinned


def _gapped(reports: list[TelemetryReport]) -> list[TelemetryReport]:
    kept: list[TelemetryReport] = []
    gap: Gap | None = None
    for report in reports:
        if isinstance(report, Step):
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
