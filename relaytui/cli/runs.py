"""Runs as `relay-tui runs` prints them: a table of all, and one with its attempts, checkpoints and artifacts."""

from __future__ import annotations

from collections.abc import Iterator

import click

from relaytui.cli.output import Column, laid_out, number, print_table, terminal_width
from relaytui.client import artifacts
from relaytui.client.acts import held, lease_left
from relaytui.client.answers import RunDetail, Runs
from relaytui.client.transfers import Word, hub_sign, store_sign, transfer_lines
from relaytui.client.words import (
    ago,
    alarm,
    behind,
    duration,
    how_it_ended,
    kept,
    last_step_made,
    rate_now,
    reason,
    silent,
    stalled,
    state,
    steps_made,
    time_left,
    volume_lost,
)
from relaytui.wire.artifacts import ArtifactKind, ArtifactRow
from relaytui.wire.rows import CheckpointRow, RunRow

RUN_COLUMNS = (
    Column("RUN"),
    Column("STATUS"),
    Column("HOLDER", 4),
    Column("EPOCH", 10),
    Column("LEASE", 6),
    Column("STEP"),
    Column("RATE", 8),
    Column("ETA", 3),
    Column("LOSS"),
    Column("REWARD", 9),
    Column("SAVED", 1),
    Column("HUB", 2, optional=True),
    Column("STORE", 2, optional=True),
    Column("REPORTED", 5),
)


def print_runs(answer: Runs) -> None:
    print_table(RUN_COLUMNS, [_run_cells(run, answer.now) for run in answer.runs])


def _run_cells(run: RunRow, now: float) -> tuple[str, ...]:
    return (
        run.run_id,
        _state(run, now),
        run.holder or "-",
        str(run.epoch),
        _lease(run, now) or "-",
        _step(run),
        _rate(run) or "-",
        _eta(run) or "-",
        number(run.loss),
        number(run.reward),
        "-" if run.newest_step is None else str(run.newest_step),
        _sign(hub_sign(run)),
        _sign(store_sign(run)),
        _reported(run, now) or "-",
    )


def _state(run: RunRow, now: float) -> str:
    """Its status, or what is wrong with it."""
    if said := silent(run, now):
        return said
    if run.volume_lost_at is not None:
        return "no volume"
    if run.stalled_at is not None:
        return "stalled"
    return "no resume" if alarm(run) else state(run)


def _step(run: RunRow) -> str:
    if run.total is not None:
        return f"{run.step}/{run.total}"
    return str(run.step or "-")  # nothing was heard of any yet


def _sign(word: Word) -> str:
    return "-" if word.text == "–" else word.text


def _lease(run: RunRow, now: float) -> str:
    left = lease_left(run, now)
    return "" if left is None else f"{int(left)}s"


def _rate(run: RunRow) -> str:
    rate = rate_now(run)
    return "" if rate is None else f"{rate:.3g}/s"


def _eta(run: RunRow) -> str:
    left = time_left(run)
    return "" if left is None else duration(left)


def _reported(run: RunRow, now: float) -> str:
    return "" if run.reported_at is None else ago(now - run.reported_at)


def _facts(detail: RunDetail, waits: str) -> Iterator[tuple[str, str]]:
    """One run in words, a line each; what is not known is left out."""
    run, now = detail.run, detail.now
    yield "run", f"{run.run_id} ({run.mode})"
    lease = _lease(run, now)
    yield (
        "status",
        ", ".join(filter(None, (state(run), silent(run, now), held(run), f"lease left {lease}" if lease else ""))),
    )
    if gone := volume_lost(run, now):
        yield "volume", f"{gone.removeprefix('volume ')} ago: what is saved now is not published until it is back"
    if halted := stalled(run, now):
        yield "trainer", halted
    if wrong := alarm(run):
        yield "alarm", wrong
    if said := reason(run):
        yield "why", said
    if waits:
        yield "waiting", waits
    if older := behind(run, now):
        yield "commander", older
    share = f" ({min(100, 100 * run.step // run.total)}%)" if run.total else ""
    pace = "".join(f", {word}{said}" for word, said in (("", _rate(run)), ("ETA ", _eta(run))) if said)
    yield "step", _step(run) + share + pace + (", last step made" if last_step_made(run) else "")
    if run.loss is not None:
        yield "loss", number(run.loss) + (f", {number(run.first_loss)} at first" if run.first_loss is not None else "")
    for name, value in (("reward", run.reward), ("lr", run.lr)):
        if value is not None:
            yield name, number(value)
    if run.newest_checkpoint:
        yield "checkpoint", f"{run.newest_checkpoint}; {kept(run)}"
    for at, line in enumerate(transfer_lines(run, now)):
        yield "" if at else "transfers", ", ".join("".join(word.text for word in group) for group in line)
    if reported := _reported(run, now):
        yield "reported", reported


def print_detail(detail: RunDetail, waits: str = "") -> None:
    """`waits`: what its start waits for."""
    width, gone = terminal_width(), silent(detail.run, detail.now)
    for line in laid_out((Column(""), Column("", least=20)), list(_facts(detail, waits)), width):
        if line:
            click.echo(line)
    if detail.attempts:
        click.echo("\nattempts")
        print_table(
            (
                Column("EPOCH"),
                Column("WORKER", 2),
                Column("FROM STEP"),
                Column("LAST STEP"),
                Column("OUTCOME"),
                Column("ENDING", 3),
                Column("EXIT", 1),
                Column("MESSAGE", least=20),
            ),
            [
                (
                    str(attempt.epoch),
                    attempt.worker,
                    *steps_made(attempt),
                    how_it_ended(attempt.outcome, attempt.ending) if attempt.outcome or not gone else gone,
                    attempt.ending or "-",
                    "-" if attempt.exit_code is None else str(attempt.exit_code),
                    attempt.message,
                )
                for attempt in detail.attempts
            ],
        )
    stored = {row.name for row in detail.artifacts if row.kind is ArtifactKind.CHECKPOINT and not row.damaged}
    if detail.checkpoints:
        click.echo("\ncheckpoints")
        print_table(
            (
                Column("NAME"),
                Column("STEP"),
                Column("EPOCH", 3),
                Column("BYTES", 2),
                Column("FILES", 4),
                Column("PUBLISHED", 1),
                Column("WHERE"),
            ),
            [
                (
                    row.name,
                    str(row.step),
                    str(row.epoch),
                    str(row.bytes),
                    str(row.files),
                    ago(detail.now - row.published_at),
                    _where(row, stored),
                )
                for row in detail.checkpoints
            ],
        )
    if detail.artifacts:
        click.echo("\nartifacts")
        print_table(ARTIFACT_COLUMNS, [_artifact_cells(row, detail.now) for row in detail.artifacts])


ARTIFACT_COLUMNS = (
    Column("ID"),
    Column("NAME"),
    Column("KIND", 3),
    Column("BYTES", 2),
    Column("STORED", 1),
    Column("STATE", least=12),
)


def _artifact_cells(row: ArtifactRow, now: float) -> tuple[str, ...]:
    kind, stored = row.kind.value, ago(now - row.stored_at)
    return str(row.id), artifacts.titled(row), kind, str(row.size), stored, artifacts.state(row, now)


def _where(row: CheckpointRow, stored: set[str]) -> str:
    """Where it can be had; of what was pruned from the volume that is said, too."""
    places = {
        "pruned": row.pruned_at is not None,
        "volume": row.pruned_at is None,
        f"hub {row.hub}": row.hub,
        "store": row.name in stored,
    }
    return ", ".join(word for word, holds in places.items() if holds)
