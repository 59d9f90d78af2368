"""`relay-tui status | runs | workers | events | log`: what the dashboard shows, for shells and programs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime

import click

from relaytui.cli.options import Target, json_option, target_options
from relaytui.cli.output import Column, ago, laid_out, number, print_json, print_table, terminal_width
from relaytui.cli.session import ask
from relaytui.client.answers import Events, RunDetail, Runs
from relaytui.client.api import CommanderClient
from relaytui.client.discover import read_address
from relaytui.client.words import details, duration, held_off, remaining, sentence, stalled
from relaytui.shell.arguments import COUNT, RUN_ID, Count
from relaytui.wire.rows import EventRow, RunRow
from relaytui.wire.text import clean


@click.command()
@target_options
@json_option
def status(target: Target, as_json: bool) -> None:
    """Is a commander running, and how is everything? Exit code 69 says that none is."""

    async def question(client: CommanderClient) -> dict[str, object]:
        who, runs, workers = await client.whoami(), await client.runs(), await client.workers()
        return {
            "url": client.endpoint.url,
            "pid": None if target.connect or address is None else address.pid,
            "version": who.version,
            "lease_seconds": who.lease_seconds,
            "no_grants_seconds": None if who.no_grants_until is None else max(0.0, who.no_grants_until - who.now),
            "runs": dict(Counter(run.status.value for run in runs.runs)),
            "workers": dict(Counter(worker.status.value for worker in workers.workers)),
        }

    address = None if target.connect else read_address(target.state)
    answer = ask(target, question)
    if as_json:
        print_json(answer)
        return
    process = f", process {answer['pid']}" if answer["pid"] else ""
    click.echo(f"commander  {answer['url']}  (version {answer['version']}{process})")
    waits = answer["no_grants_seconds"]
    if isinstance(waits, float) and (said := held_off(waits, 0.0)):
        click.echo(said)
    for kind in ("runs", "workers"):
        counts = answer[kind]
        assert isinstance(counts, dict)
        click.echo(f"{kind:<9}  " + (", ".join(f"{count} {name}" for name, count in counts.items()) or "none yet"))


@click.command()
@click.argument("run_id", type=RUN_ID, required=False)
@target_options
@json_option
def runs(target: Target, run_id: str | None, as_json: bool) -> None:
    """List runs; with RUN_ID, one run's attempts and checkpoints."""
    if run_id is not None:
        detail = ask(target, lambda client: client.run(run_id))
        print_json(detail) if as_json else _print_detail(detail)
        return
    answer = ask(target, lambda client: client.runs())
    if as_json:
        print_json(answer)
        return
    if said := held_off(answer.no_grants_until, answer.now):
        click.echo(said, err=True)
    if answer.runs:
        _print_runs(answer)
    else:
        click.echo(
            "no runs yet; an agent makes one when it asks for a lease (see the pod recipe in the README)", err=True
        )


RUN_COLUMNS = (
    Column("RUN"),
    Column("STATUS"),
    Column("HOLDER", 3),
    Column("EPOCH", 6),
    Column("LEASE", 4),
    Column("STEP"),
    Column("RATE", 5),
    Column("ETA", 1),
    Column("LOSS"),
    Column("REWARD", 7),
    Column("CHECKPOINT", 8),
    Column("REPORTED", 2),
)


def _print_runs(answer: Runs) -> None:
    print_table(RUN_COLUMNS, [_run_cells(run, answer.now) for run in answer.runs])


def _run_cells(run: RunRow, now: float) -> tuple[str, ...]:
    return (
        run.run_id,
        "stalled" if run.stalled_at is not None else run.status.value,
        run.holder or "-",
        str(run.epoch),
        _lease(run, now) or "-",
        _step(run),
        _rate(run) or "-",
        _eta(run) or "-",
        number(run.loss),
        number(run.reward),
        run.newest_checkpoint or "-",
        _reported(run, now) or "-",
    )


def _step(run: RunRow) -> str:
    if run.total is not None:
        return f"{run.step}/{run.total}"
    return str(run.step or "-")  # nothing was heard of any yet


def _lease(run: RunRow, now: float) -> str:
    return "" if run.lease_expires_at is None else f"{max(0, int(run.lease_expires_at - now))}s"


def _rate(run: RunRow) -> str:
    return "" if run.rate is None or not run.status.active else f"{run.rate:.3g}/s"


def _eta(run: RunRow) -> str:
    left = remaining(run.step, run.total, run.rate) if run.status.active else None
    return "" if left is None else duration(left)


def _reported(run: RunRow, now: float) -> str:
    return "" if run.reported_at is None else f"{ago(now - run.reported_at)} ago"


def _facts(detail: RunDetail) -> Iterator[tuple[str, str]]:
    """One run in words, a line each; what is not known is left out."""
    run, now = detail.run, detail.now
    yield "run", f"{run.run_id} ({run.mode})"
    holder = f", held by {run.holder} at epoch {run.epoch}" if run.holder else f", held by nobody, epoch {run.epoch}"
    yield "status", run.status.value + holder + (f", lease left {lease}" if (lease := _lease(run, now)) else "")
    if halted := stalled(run, now):
        yield "trainer", halted
    if run.message:
        yield "why", run.message
    share = f" ({min(100, 100 * run.step // run.total)}%)" if run.total else ""
    pace = "".join(f", {word}{said}" for word, said in (("", _rate(run)), ("ETA ", _eta(run))) if said)
    yield "step", _step(run) + share + pace
    if run.loss is not None:
        yield "loss", number(run.loss) + (f", {number(run.first_loss)} at first" if run.first_loss is not None else "")
    for name, value in (("reward", run.reward), ("lr", run.lr)):
        if value is not None:
            yield name, number(value)
    if run.newest_checkpoint:
        yield "checkpoint", f"{run.newest_checkpoint}, {run.checkpoints} kept of {run.published} published"
    if reported := _reported(run, now):
        yield "reported", reported


def _print_detail(detail: RunDetail) -> None:
    width = terminal_width()
    for line in laid_out((Column(""), Column("", least=20)), list(_facts(detail)), width):
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
                    str(attempt.started_step),
                    str(attempt.last_step),
                    attempt.outcome.value if attempt.outcome else "going on",
                    attempt.ending or "-",
                    "-" if attempt.exit_code is None else str(attempt.exit_code),
                    attempt.message,
                )
                for attempt in detail.attempts
            ],
        )
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
                Column(""),
            ),
            [
                (
                    row.name,
                    str(row.step),
                    str(row.epoch),
                    str(row.bytes),
                    str(row.files),
                    f"{ago(detail.now - row.published_at)} ago",
                    "pruned" if row.pruned_at is not None else "",
                )
                for row in detail.checkpoints
            ],
        )


@click.command()
@target_options
@json_option
def workers(target: Target, as_json: bool) -> None:
    """List workers: who is connected, and what it does."""
    answer = ask(target, lambda client: client.workers())
    if as_json:
        print_json(answer)
        return
    rows = [
        (
            w.worker,
            w.status.value,
            w.run_id or w.waiting_for or "-",
            w.host or "-",
            w.gpu if w.gpus <= 1 else f"{w.gpus}x {w.gpu}",
            ago(answer.now - w.seen_at),
        )
        for w in answer.workers
    ]
    if rows:
        columns = (
            Column("WORKER"), Column("STATUS"), Column("RUN"), Column("HOST", 2), Column("GPU", 1), Column("SEEN"),
        )  # fmt: skip
        print_table(columns, rows)
    else:
        click.echo("no workers yet; start `relay-agent` on a pod", err=True)


EVENT_COLUMNS = (
    Column("TIME"),
    Column("EVENT"),
    Column("RUN", 1),
    Column("EPOCH", 3),
    Column("WHO", 2),
    Column("WHAT", least=24),
)


@click.command()
@click.option("--run", type=RUN_ID, metavar="RUN_ID", help="Only events of this run.")
@click.option("--after", type=COUNT, help="Only events with a higher id; for programs that follow.")
@click.option("--limit", type=click.IntRange(1, 5000), default=100, show_default=True)
@target_options
@json_option
def events(target: Target, run: str | None, after: int | None, limit: int, as_json: bool) -> None:
    """Who did what to what, when; oldest first."""

    async def question(client: CommanderClient) -> Events:
        answer = await client.events(run=run, after=after, limit=limit)
        if run is not None and not answer.events:
            await client.run(run)  # none there, or no such run
        return answer

    answer = ask(target, question)
    if as_json:
        print_json(answer)
        return
    rows = [
        (
            _when(event.at, answer.now),
            event.kind,
            event.run_id or "-",
            str(event.epoch or "-"),
            event.actor,
            _what(event),
        )
        for event in answer.events
    ]
    if rows:
        print_table(EVENT_COLUMNS, rows)


def _what(event: EventRow) -> str:
    more = ", ".join(details(event))
    return f"{sentence(event)} ({more})" if more else sentence(event)


@click.command()
@click.argument("run_id", type=RUN_ID)
@click.option("--epoch", type=Count(1), help="Of this attempt only.")
@click.option("--lines", "limit", type=click.IntRange(1, 5000), default=200, show_default=True)
@target_options
@json_option
def log(target: Target, run_id: str, epoch: int | None, limit: int, as_json: bool) -> None:
    """What a run's trainer printed: the newest lines, oldest first."""
    answer = ask(target, lambda client: client.log(run_id, epoch=epoch, limit=limit))
    if as_json:
        print_json(answer)
        return
    for line in answer.lines:
        sys.stdout.write(clean(line.text) + "\n")


def _when(at: float, now: float) -> str:
    """Local time; with the date where it is not the day of `now`."""
    said, today = (datetime.fromtimestamp(seconds).astimezone() for seconds in (at, now))
    return said.strftime("%H:%M:%S" if said.date() == today.date() else "%m-%d %H:%M:%S")
