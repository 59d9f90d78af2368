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
from relaytui.wire.rows import LogLine
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
    answer, silence = ask(target, lambda client: question(client, run_id, epoch, limit))
    if as_json:
        print_json(answer)
        return
    for line in printed(answer.lines, times):
        sys.stdout.write(line + "\n")
    if silence:
        click.echo(silence, err=True)
    first = answer.lines[0] if answer.lines else None
    if first is not None and first.n > 1 and len(answer.lines) < limit:
        before = f"lines before number {first.n:,} of attempt {first.epoch} are not here"
        click.echo(f"{before}; where they gave way `relay-tui events {run_id}` says so", err=True)


async def question(client: CommanderClient, run_id: str, epoch: int | None, limit: int) -> tuple[Log, str]:
    """The lines; where there are none, why."""
    answer = await client.log(run_id, epoch=epoch, limit=limit)
    return answer, "" if answer.lines else await _silence(client, run_id, epoch)


async def _silence(client: CommanderClient, run_id: str, epoch: int | None) -> str:
    """Why there are no lines, in words. RelayError `no_attempt` where there is no such attempt."""
    epochs = [attempt.epoch for attempt in (await client.run(run_id)).attempts]
    if epoch is None:
        return f"{run_id} has printed nothing" + ("" if epochs else ": it was never granted")
    if epoch in epochs:
        return f"attempt {epoch} of {run_id} has printed nothing"
    known = f"; its attempts are {_newest(epochs)}" if epochs else ""
    raise RelayError("no_attempt", f"{run_id} has no attempt {epoch}{known}", f"see `relay-tui runs {run_id}`")


def _newest(epochs: Sequence[int], most: int = 8) -> str:
    """`…, 2, 10006`."""
    shown = ", ".join(map(str, epochs[-most:]))
    return f"…, {shown}" if len(epochs) > most else shown


def printed(lines: Sequence[LogLine], times: bool) -> Iterator[str]:
    several = len({line.epoch for line in lines}) > 1
    epoch = None
    for line in lines:
        if several and line.epoch != epoch:
            yield f"── attempt {line.epoch} ──"
        epoch = line.epoch
        yield (f"{_moment(line.t)} " if times else "") + clean(line.text)


def _moment(at: float) -> str:
    """Local time; dashes for one that no clock can say."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "-" * 19
