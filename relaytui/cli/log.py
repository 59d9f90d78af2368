"""`relay-tui log RUN`: what its trainer printed, each attempt under its own mark."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence

import click

from relaytui.cli.options import Target, json_option, target_options
from relaytui.cli.output import print_json
from relaytui.cli.session import ask
from relaytui.client.answers import Log
from relaytui.client.api import CommanderClient
from relaytui.shell.arguments import RUN_ID, Count, Whole
from relaytui.wire.errors import RelayError
from relaytui.wire.rows import AttemptRow, LogLine
from relaytui.wire.status import Outcome
from relaytui.wire.text import clean


@click.command()
@click.argument("run_id", type=RUN_ID)
@click.option("--epoch", type=Count(1), help="Of this attempt only.")
@click.option("--lines", "limit", type=Whole(1, 5000), default=200, show_default=True)
@click.option("--times", is_flag=True, help="When each line was printed, by the pod's clock, before it.")
@target_options
@json_option
def log(target: Target, run_id: str, epoch: int | None, limit: int, times: bool, as_json: bool) -> None:
    """What a run's trainer printed: the newest lines, oldest first. Where they are of several attempts, a line with
    each one's epoch stands before its own."""
    answer, remarks = ask(target, lambda client: question(client, run_id, epoch, limit))
    if as_json:
        print_json(answer)
        return
    for line in printed(answer.lines, times):
        sys.stdout.write(line + "\n")
    for remark in remarks:
        click.echo(remark, err=True)


async def question(client: CommanderClient, run_id: str, epoch: int | None, limit: int) -> tuple[Log, list[str]]:
    """The lines; and what is to be said of those that are not there. RelayError `no_attempt` where there is no such
    attempt."""
    answer = await client.log(run_id, epoch=epoch, limit=limit)
    attempts = (await client.run(run_id)).attempts
    remarks = [said] if (said := _silence(answer.lines, run_id, attempts, epoch)) else []
    first = answer.lines[0] if answer.lines else None
    if first is not None and first.n > 1 and len(answer.lines) < limit:
        before = f"lines before number {first.n:,} of epoch {first.epoch} are"
        if (await client.log(run_id, epoch=first.epoch, before=first.n, limit=1)).lines:
            remarks.append(f"{before} left out, as one answer takes no more text; the whole log is on the run's volume")
        else:
            remarks.append(f"{before} not here; where they gave way `relay-tui events {run_id}` says so")
    return answer, remarks


def _silence(lines: Sequence[LogLine], run_id: str, attempts: Sequence[AttemptRow], epoch: int | None) -> str:
    """Why there is none of the attempt that is meant (the newest, where none is named), in words; empty where there
    is."""
    if lines and (epoch is not None or not attempts):
        return ""
    if epoch is None and not attempts:
        return f"{run_id} has printed nothing: it was never granted"
    meant = attempts[-1] if epoch is None else next((each for each in attempts if each.epoch == epoch), None)
    if meant is None:
        known = f"; its epochs are {_newest([each.epoch for each in attempts])}" if attempts else ""
        raise RelayError("no_attempt", f"{run_id} has no epoch {epoch}{known}", f"see `relay-tui runs {run_id}`")
    if any(line.epoch == meant.epoch for line in lines):
        return ""
    others = f"; the lines above are of epoch {lines[-1].epoch}" if lines else ""
    return f"epoch {meant.epoch} of {run_id}, by {clean(meant.worker, 128)}, {_why(meant, run_id)}{others}"


def _why(attempt: AttemptRow, run_id: str) -> str:
    if attempt.lines:
        gone = "has printed what is not here any more"
        return f"{gone}: where it gave way `relay-tui events {run_id}` says so, and its volume has all of it"
    if attempt.outcome in (Outcome.SUPERSEDED, Outcome.LOST):
        return f"is {attempt.outcome}, and nothing came of what it may have printed: its volume has that"
    return "has printed nothing" + (" yet" if attempt.outcome is None else "")


def _newest(epochs: Sequence[int], most: int = 8) -> str:
    """`…, 2, 10006`."""
    shown = ", ".join(map(str, epochs[-most:]))
    return f"…, {shown}" if len(epochs) > most else shown


def printed(lines: Sequence[LogLine], times: bool) -> Iterator[str]:
    several = len({line.epoch for line in lines}) > 1
    epoch = None
    for line in lines:
        if several and line.epoch != epoch:
            yield f"── epoch {line.epoch} ──"
        epoch = line.epoch
        yield (f"{_moment(line.t)} " if times else "") + clean(line.text)


def _moment(at: float) -> str:
    """Local time; dashes for one that no clock can say."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "-" * 19
