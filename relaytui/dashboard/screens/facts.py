"""What is said of one run, in lines: below the list, on top of its own screen, and in dialogs."""

from __future__ import annotations

from relaytui.client.mirror import Mirror
from relaytui.client.transfers import hub_sign, store_sign, transfer_lines
from relaytui.client.waiting import waits
from relaytui.client.words import (
    alarm,
    details,
    kept,
    last_step_made,
    rate_now,
    reason,
    sentence,
    silent,
    stalled,
    time_left,
    volume_lost,
)
from relaytui.dashboard.format import ago, bar, duration, number_piece, per_second, percent, steps
from relaytui.dashboard.glyphs import event_ink, run_state
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.screens.lists import lease_piece
from relaytui.dashboard.widgets.pieces import fit, folded, named, shortened, spread, width_of
from relaytui.wire.rows import EventRow, RunRow
from relaytui.wire.status import RunStatus
from relaytui.wire.text import clean, counted

DOT = Piece("  ·  ", "faint")


def joined(*groups: list[Piece]) -> list[Piece]:
    """Groups with a dot between; empty ones vanish."""
    pieces: list[Piece] = []
    for group in groups:
        if group:
            if pieces:
                pieces.append(DOT)
            pieces += group
    return pieces


def heading(row: RunRow, now: float, width: int | None = None) -> list[Piece]:
    """Its name, its state and whatever is wrong with it. In `width` cells its mode, the words of the marks and the name
    give way, in this order, before one of the marks does."""
    name, state, mode = Piece(clean(row.run_id, 128), "strong"), run_state(row), Piece(clean(row.mode, 128), "muted")
    marks = wrong(row, now)
    line = _apart(name, state, *(mark for mark, _ in marks))
    whole = [*line, Piece("  "), mode]
    if width is None or _cells(whole) <= width:
        return whole
    if _cells(line) <= width:
        return line
    _, _, *rest = _apart(name, state, *(short for _, short in marks))
    return [*named((Piece(" "), name), width - _cells(rest)), *rest]


def wrong(row: RunRow, now: float) -> list[tuple[Piece, Piece]]:
    """All that is, the worst first; at length and in short. What a silent holder told may not be so any more."""
    said = [(unheard, unheard)] if (unheard := silent(row, now)) else []
    if alarm(row):
        said.append(("no resume", "no resume"))
    if gone := volume_lost(row, now):
        said.append((gone, "no volume"))
    if not unheard and (halted := stalled(row, now)):
        said.append((halted, "stalled"))
    return [(Piece(f"▲ {words}", "warn"), Piece(f"▲ {short}", "warn")) for words, short in said]


def _apart(*pieces: Piece) -> list[Piece]:
    first, *others = pieces
    return [Piece(" "), first, *(part for piece in others for part in (Piece("  "), piece))]


def _cells(pieces: list[Piece]) -> int:
    return sum(width_of(text) for text, _ in pieces)


def holding(row: RunRow, now: float) -> list[list[Piece]]:
    """Who holds the run, for how long still, under which epoch, when it was heard: what matters most first."""
    if row.status.active and row.holder:
        return [
            [Piece("held by ", "muted"), Piece(clean(row.holder, 128))],
            [Piece("lease ", "muted"), lease_piece(row, now)],
            [Piece("epoch ", "muted"), Piece(str(row.epoch))],
            reported(row, now),
        ]
    return [
        [Piece("held by nobody", "muted")],
        [Piece("epoch ", "muted"), Piece(str(row.epoch))] if row.epoch else [],
        [Piece(counted(row.attempts, "attempt"), "muted")] if row.attempts else [],
        reported(row, now),
    ]


def fitting(width: int, groups: list[list[Piece]]) -> list[Piece]:
    """A line of the groups; the last ones give way whole, as half a number would be another one."""
    there = [group for group in groups if group]
    for count in range(len(there), 0, -1):
        line = [Piece(" "), *joined(*there[:count])]
        if sum(width_of(text) for text, _ in line) <= width:
            return line
    return [Piece(" "), *joined(*there[:1])]


def as_many_as_fit(left: list[Piece], groups: list[list[Piece]], width: int) -> list[Piece]:
    """A line with the groups on its right; the last ones give way."""
    for count in range(len(groups), 0, -1):
        right = [*joined(*groups[:count]), Piece(" ")]
        if sum(width_of(text) for text, _ in [*left, *right]) + 2 <= width:
            return spread(left, right, width)
    return left


def reported(row: RunRow, now: float) -> list[Piece]:
    if row.reported_at is None:  # a worker of the original's kind sends steps and no telemetry
        return [] if row.step else [Piece("nothing reported yet", "muted")]
    return [Piece("heard ", "muted"), Piece(ago(now - row.reported_at))]


def pace(row: RunRow) -> list[list[Piece]]:
    rate, left = rate_now(row), time_left(row)
    if not row.step and row.total is None:  # a bare 0 would be read as a number of something
        return [[Piece("no step yet" if not row.status.ended else "no step was made", "muted")]]
    part = percent(row.step, row.total)
    return [
        [Piece(steps(row.step, row.total), "strong"), *([Piece(f"  {part}")] if part else [])],
        [Piece(per_second(rate))] if rate is not None else [],
        [Piece("eta ", "muted"), Piece(duration(left))] if left is not None else [],
        [Piece("last step made", "muted")] if last_step_made(row) else [],
    ]


def metrics(row: RunRow) -> list[list[Piece]]:
    """What a run is judged by comes first, as the end of a line is what gives way."""
    loss = [Piece("loss ", "muted"), number_piece(row.loss)] if row.loss is not None else []
    if loss and row.first_loss is not None and row.first_loss != row.loss:
        loss += [Piece(" from ", "muted"), number_piece(row.first_loss)]
    return [
        [Piece("reward ", "muted"), number_piece(row.reward)] if row.reward is not None else [],
        loss,
        [Piece("lr ", "muted"), number_piece(row.lr)] if row.lr is not None else [],
    ]


def saved(row: RunRow, *, whole: bool = False) -> list[list[Piece]]:
    """How far it is in safety: on the volume, on the Hub, in the artifact store; then what was published at all.
    `whole`: also where it is not."""
    if row.newest_checkpoint is None and not row.published:
        return [[Piece("no checkpoint yet", "muted")]]
    newest = clean(row.newest_checkpoint or "none", 128)
    where = [Piece("newest ", "muted"), Piece(newest)]
    for name, sign in (("hub", hub_sign(row)), ("store", store_sign(row))):
        if whole or sign.tone != "faint":
            where += [Piece(f"  {name} ", "muted"), Piece(*sign)]
    return [where, [Piece(kept(row), "muted")]]


def progress_line(row: RunRow, width: int) -> list[Piece]:
    """A bar as wide as there is room, where a total is known, then the numbers."""
    said = joined(*pace(row))
    room = width - sum(width_of(text) for text, _ in said) - 4
    if room < 8 or not row.total:
        return [Piece(" "), *said]
    return [Piece(" "), *bar(row.step, row.total, room), Piece("  "), *said]


def why(row: RunRow) -> list[Piece]:
    if ignored := alarm(row):  # the message is where it was to go on from, and did not
        return [Piece(f"▲ {ignored}", "warn")]
    ink = "bad" if row.status is RunStatus.FAILED else "muted"
    return [Piece(said, ink)] if (said := reason(row)) else []


def why_lines(row: RunRow, width: int, rows: int) -> list[list[Piece]]:
    return [[Piece(" "), *line] for piece in why(row) for line in shortened(piece, max(8, width - 2), rows)]


def waiting(row: RunRow, mirror: Mirror) -> list[Piece]:
    """What the run's start waits for."""
    said = waits(row, mirror.workers.values(), reversed(mirror.events), mirror.now, mirror.no_grants_until)
    return [Piece(said, "warn" if row.status is RunStatus.LEASED else "muted")] if said else []


def why_and_waiting(row: RunRow, mirror: Mirror, width: int, rows: int) -> list[list[Piece]]:
    """Why a run is as it is, on at most `rows` lines, and what its start waits for: of one that is held in one line."""
    meanwhile = waiting(row, mirror)
    if not row.status.active:
        said = why_lines(row, width, rows)
        return [*said, fit([Piece(" "), *meanwhile], width)] if meanwhile else said
    if row.status is RunStatus.LEASED:  # the message is that it was granted, which is seen
        return [fit([Piece(" "), *meanwhile], width)]
    return [fitting(width, [meanwhile, why(row)])] if meanwhile and not alarm(row) else why_lines(row, width, 1)


def moving_lines(row: RunRow, now: float, width: int, rows: int) -> list[list[Piece]]:
    """How far its checkpoints are on their way to the Hub, the artifact store and back, in at most `rows` lines."""
    said = [[[Piece(*word) for word in group] for group in line] for line in transfer_lines(row, now)]
    for folds in (2, 1):
        lines = [line for groups in said for line in _moving(groups, width, folds)]
        if len(lines) <= rows:
            break
    return lines[:rows]


def _moving(groups: list[list[Piece]], width: int, folds: int) -> list[list[Piece]]:
    """Why it fails has lines of its own where there is no room beside what fails."""
    line = fitting(width - 1, groups)
    trouble = next((group[0] for group in groups[1:] if len(group) == 1 and group[0].ink in ("bad", "warn")), None)
    if trouble is None or trouble in line:
        return [line]
    return [line, *([Piece(" "), *rest] for rest in shortened(trouble, max(8, width - 2), folds))]


def run_lines(row: RunRow, mirror: Mirror, width: int, *, least: int, most: int, moving: int = 0) -> list[list[Piece]]:
    """The head of a run's own screen, in `least` lines: the message has the last one, or where there are only three the
    numbers' one if the run is over. Why nobody trains it any more takes as many as it needs, up to `most` more; how far
    its transfers are, where there are any, up to `moving`."""
    now = mirror.now
    *judged, lr = metrics(row)
    newest, *counts = saved(row, whole=True)
    numbers = fitting(width, [newest, *judged, *counts, lr])
    said = why_and_waiting(row, mirror, width, most) if least > 3 else why_lines(row, width, most)
    lines = [as_many_as_fit(heading(row, now, width), holding(row, now), width), progress_line(row, width)]
    if least > 3:
        return [*lines, numbers, *moving_lines(row, now, width, moving), *(said or [[]])]
    return [*lines, *(said if row.message and row.status.ended else [numbers])]


def peek_lines(row: RunRow, mirror: Mirror, width: int, rows: int = 3) -> list[list[Piece]]:
    """The same below the list on at most `rows` lines, whatever columns gave way. Where nobody holds the run, why that
    is comes instead, on as many lines as it needs; if that is all there are, on the numbers' too, unless these say what
    its start waits for: until its trainer runs that comes after the first of them."""
    now = mirror.now
    numbers = fitting(width, [*pace(row), *metrics(row)])
    trains = row.status in (RunStatus.RUNNING, RunStatus.DRAINING)
    meanwhile = waiting(row, mirror)
    if meanwhile and not trains:
        numbers = fit([Piece(" "), *joined(pace(row)[0], meanwhile)], width)
    if row.message and not row.status.active:
        _, *rest = holding(row, now)
        said = why_lines(row, width, max(rows - 2, 1 if meanwhile else 2))
        lines = [as_many_as_fit(heading(row, now, width), [*saved(row), *rest], width), *said]
        return [*lines, numbers] if len(lines) < rows else lines
    said, held = [*saved(row), why(row)], holding(row, now)
    if alarm(row):
        said, held = saved(row), [why(row), *held]
    below = fitting(width, held)
    if meanwhile and trains:  # who waits for a run is said, whatever gives way
        who, lease, *rest = holding(row, now)
        below = fitting(width, [who, lease, meanwhile, *rest])
        if meanwhile[0] not in below:
            below = fit([Piece(" "), *joined(lease, meanwhile)], width)
    head = as_many_as_fit(heading(row, now, width), said, width)
    lines = [head, below, numbers]
    if rows > len(lines) and _tried_again(row) and not {*why(row)} & {*head, *below}:
        lines += why_lines(row, width, rows - len(lines))
    return lines


def _tried_again(row: RunRow) -> bool:
    """Whether its message says more than from where it began: why the attempt before ended."""
    return row.status.active and "; " in row.message


def event_lines(row: EventRow, now: float, width: int, rows: int = 3) -> list[list[Piece]]:
    """One event: what, about whom, by whom, and the message on as many lines as it needs and there are."""
    head = joined(
        [Piece(" "), Piece(clean(row.kind, 60), event_ink(row.kind))],
        [Piece(clean(row.run_id, 128), "strong")] if row.run_id else [],
        [Piece("epoch ", "muted"), Piece(str(row.epoch))] if row.epoch else [],
        [Piece("by ", "muted"), Piece(clean(row.actor, 128))],
        [Piece(ago(now - row.at))],
    )
    more = ", ".join(details(row))
    pieces = [Piece(sentence(row)), *([Piece(f"({more})", "muted")] if more else [])]
    lines = [[Piece(" "), *line] for line in folded(pieces, max(8, width - 2))]
    if len(lines) > (most := max(1, rows - 1)):
        rest = [piece for line in lines[most - 1 :] for piece in line]  # it is cut, and seen to be
        lines = [*lines[: most - 1], fit(rest, width - 1)]
    return [head, *lines]
