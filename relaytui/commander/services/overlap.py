"""What an attempt tells a second time: its agent's spool was lost or cut off, and another one read the log again.

A line of an attempt is known by its number. Steps have none: those that were told with lines that are known are known.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from relaytui.wire.reports import AnyReport, Gap, Log, Step


def unknown(
    reports: Sequence[AnyReport], lines: int, step: int | None, stale: bool
) -> tuple[Sequence[AnyReport], bool]:
    """Those that are new where lines up to number `lines` and steps up to `step` are known, and whether the next step
    would not be. `stale`: what this answered for the frame before."""
    new: list[AnyReport] = []
    passed = step if stale else None  # steps up to this one were told with lines that are known
    for report in reports:
        if isinstance(report, Log):
            known = min(len(report.lines), max(0, lines + 1 - report.n))
            passed = step if known else None
            stale = known > 0 and known == len(report.lines)
            if not known:
                new.append(report)
            elif not stale:
                new.append(replace(report, n=report.n + known, lines=report.lines[known:]))
        elif isinstance(report, Gap):
            known = max(0, lines + 1 - report.n)
            if not known:
                new.append(report)
            elif known < report.count:
                new.append(replace(report, n=report.n + known, count=report.count - known))
        elif not isinstance(report, Step) or not (stale or (passed is not None and report.step <= passed)):
            new.append(report)
    return new, stale
