"""`relay-tui status | runs | workers | events`: what the dashboard shows, for shells and programs."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from functools import partial

import click
from msgspec.structs import replace

from relaytui.cli.options import Target, json_option, target_options
from relaytui.cli.output import Column, print_json, print_table
from relaytui.cli.runs import print_detail, print_runs
from relaytui.cli.session import ask
from relaytui.client.answers import Events, RunDetail
from relaytui.client.api import CommanderClient
from relaytui.client.discover import read_address
from relaytui.client.order import runs_in_order, workers_in_order
from relaytui.client.transfers import syncs_in_words
from relaytui.client.waiting import waits
from relaytui.client.words import age, details, held_off, sentence, standing
from relaytui.shell.arguments import COUNT, RUN_ID, Whole
from relaytui.wire.rows import EventRow
from relaytui.wire.status import RunStatus


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
            "silent": sum(run.silent_since is not None for run in runs.runs),
            "workers": dict(Counter(standing(worker) for worker in workers.workers)),
            "syncs": syncs_in_words(runs.runs),
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
        silent = f" ({answer['silent']} of them silent)" if kind == "runs" and answer["silent"] else ""
        click.echo(f"{kind:<9}  {', '.join(f'{count} {name}' for name, count in counts.items()) or 'none yet'}{silent}")
    if syncs := answer["syncs"]:
        click.echo(f"{'hub':<9}  {syncs}")


@click.command()
@click.argument("run_id", type=RUN_ID, required=False)
@target_options
@json_option
def runs(target: Target, run_id: str | None, as_json: bool) -> None:
    """List runs; with RUN_ID, one run's attempts, checkpoints and artifacts."""
    if run_id is not None:
        if as_json:
            print_json(ask(target, lambda client: client.run(run_id)))
        else:
            print_detail(*ask(target, partial(_detail, run_id)))
        return
    answer = ask(target, lambda client: client.runs())
    if as_json:
        print_json(answer)
        return
    if said := held_off(answer.no_grants_until, answer.now):
        click.echo(said, err=True)
    if answer.runs:
        print_runs(replace(answer, runs=runs_in_order(answer.runs)))
    else:
        click.echo(
            "no runs yet; an agent makes one when it asks for a lease (see the pod recipe in the README)", err=True
        )


async def _detail(run_id: str, client: CommanderClient) -> tuple[RunDetail, str]:
    """One run, and what its start waits for."""
    detail = await client.run(run_id)
    run = detail.run
    workers = (await client.workers()).workers
    events = (await client.events(run=run_id, limit=20)).events if run.status is RunStatus.LEASED else []
    to_be_granted = not (run.status.active or run.status.ended)
    no_grants_until = (await client.whoami()).no_grants_until if to_be_granted else None
    return detail, waits(run, workers, reversed(events), detail.now, no_grants_until)


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
            standing(w),
            w.run_id or w.waiting_for or "-",
            w.host or "-",
            w.gpu if w.gpus <= 1 else f"{w.gpus}x {w.gpu}",
            age(answer.now - w.seen_at),
        )
        for w in workers_in_order(answer.workers)
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
    Column("RUN", 1, told=True),
    Column("EPOCH", 3),
    Column("WHO", 2, told=True),
    Column("WHAT", least=24),
)


@click.command()
@click.argument("run_id", type=RUN_ID, required=False)
@click.option("--run", "run_before", type=RUN_ID, hidden=True, help="RUN_ID, as it was said before.")
@click.option("--after", type=COUNT, help="Only events with a higher id; for programs that follow.")
@click.option("--limit", type=Whole(1, 5000), default=100, show_default=True)
@target_options
@json_option
def events(
    target: Target, run_id: str | None, run_before: str | None, after: int | None, limit: int, as_json: bool
) -> None:
    """Who did what to what, when; oldest first. With RUN_ID, of one run."""
    run = run_id or run_before

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
        whose = [i for i, column in enumerate(EVENT_COLUMNS) if run is None or column.title != "RUN"]
        print_table([EVENT_COLUMNS[i] for i in whose], [tuple(row[i] for i in whose) for row in rows])


def _what(event: EventRow) -> str:
    more = ", ".join(details(event))
    return f"{sentence(event)} ({more})" if more else sentence(event)


def _when(at: float, now: float) -> str:
    """Local time; with the date where it is not the day of `now`."""
    said, today = (datetime.fromtimestamp(seconds).astimezone() for seconds in (at, now))
    return said.strftime("%H:%M:%S" if said.date() == today.date() else "%m-%d %H:%M:%S")
