"""`relay-tui status | runs | workers | events | log`: what the dashboard shows, for shells and programs."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import datetime

import click

from relaytui.cli.options import Target, json_option, target_options
from relaytui.cli.output import ago, number, print_json, print_table
from relaytui.cli.session import ask
from relaytui.client.answers import RunDetail, Runs
from relaytui.client.api import CommanderClient
from relaytui.client.discover import read_address
from relaytui.shell.arguments import COUNT, MAX_COUNT, RUN_ID
from relaytui.wire.rows import RunRow
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
    elif answer.runs:
        _print_runs(answer)
    else:
        click.echo(
            "no runs yet; an agent makes one when it asks for a lease (see the pod recipe in the README)", err=True
        )


def _print_runs(answer: Runs) -> None:
    header = ("RUN", "STATUS", "HOLDER", "EPOCH", "LEASE", "STEP", "RATE", "LOSS", "REWARD", "CHECKPOINT", "REPORTED")
    print_table(header, [_run_cells(run, answer.now) for run in answer.runs])


def _run_cells(run: RunRow, now: float) -> tuple[str, ...]:
    lease = "-" if run.lease_expires_at is None else f"{max(0, int(run.lease_expires_at - now))}s"
    step = str(run.step) if run.total is None else f"{run.step}/{run.total}"
    reported = "-" if run.reported_at is None else f"{ago(now - run.reported_at)} ago"
    return (
        run.run_id,
        run.status.value,
        run.holder or "-",
        str(run.epoch),
        lease,
        step,
        "-" if run.rate is None or not run.status.active else f"{run.rate:.3g}/s",
        number(run.loss),
        number(run.reward),
        run.newest_checkpoint or "-",
        reported,
    )


def _print_detail(detail: RunDetail) -> None:
    _print_runs(Runs(detail.now, [detail.run]))
    if detail.run.message:
        click.echo(f"\n{clean(detail.run.message)}")
    if detail.attempts:
        click.echo("\nattempts")
        print_table(
            ("EPOCH", "WORKER", "FROM STEP", "LAST STEP", "OUTCOME", "EXIT", "MESSAGE"),
            [
                (
                    str(attempt.epoch),
                    attempt.worker,
                    str(attempt.started_step),
                    str(attempt.last_step),
                    attempt.outcome.value if attempt.outcome else "going on",
                    "-" if attempt.exit_code is None else str(attempt.exit_code),
                    attempt.message,
                )
                for attempt in detail.attempts
            ],
        )
    if detail.checkpoints:
        click.echo("\ncheckpoints")
        print_table(
            ("NAME", "STEP", "EPOCH", "BYTES", "FILES", "PUBLISHED", ""),
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
            f"{w.gpus}x {w.gpu}",
            ago(answer.now - w.seen_at),
        )
        for w in answer.workers
    ]
    if rows:
        print_table(("WORKER", "STATUS", "RUN", "HOST", "GPU", "SEEN"), rows)
    else:
        click.echo("no workers yet; start `relay-agent` on a pod", err=True)


@click.command()
@click.option("--run", type=RUN_ID, metavar="RUN_ID", help="Only events of this run.")
@click.option("--after", type=COUNT, help="Only events with a higher id; for programs that follow.")
@click.option("--limit", type=click.IntRange(1, 5000), default=100, show_default=True)
@target_options
@json_option
def events(target: Target, run: str | None, after: int | None, limit: int, as_json: bool) -> None:
    """Who did what to what, when; oldest first."""
    answer = ask(target, lambda client: client.events(run=run, after=after, limit=limit))
    if as_json:
        print_json(answer)
        return
    rows = [
        (_when(event.at), event.kind, event.run_id or "-", str(event.epoch or "-"), event.actor, event.message)
        for event in answer.events
    ]
    if rows:
        print_table(("TIME", "EVENT", "RUN", "EPOCH", "WHO", "WHAT"), rows)


@click.command()
@click.argument("run_id", type=RUN_ID)
@click.option("--epoch", type=click.IntRange(1, MAX_COUNT), help="Of this attempt only.")
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


def _when(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%m-%d %H:%M:%S")
