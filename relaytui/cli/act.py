"""The dashboard's acts from the shell. Each says what it does, then asks, and takes `y` or the run's
name for a yes; a save and a sync cost nothing and ask nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from relaytui.cli.options import (
    Target,
    decided_options,
    epoch_options,
    json_option,
    target_options,
    usage,
)
from relaytui.cli.output import print_json
from relaytui.cli.questions import confirmed
from relaytui.cli.session import ask
from relaytui.client import acts
from relaytui.client.answers import Forced, Ordered, Requeued, RunDetail
from relaytui.client.api import CommanderClient
from relaytui.client.orders import PATIENCE, Answer, Outcome, outcome
from relaytui.client.refusals import REFUSALS
from relaytui.client.words import ago, silent
from relaytui.shell.arguments import RUN_ID, Seconds
from relaytui.shell.interrupt import INTERRUPTED
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.status import OrderKind
from relaytui.wire.text import clean

T = TypeVar("T")

wait_option = click.option(
    "--wait", type=Seconds(0, 3_600), default=PATIENCE, show_default=True, metavar="SECONDS",
    help="How long to wait for the answer of its holder.",
)  # fmt: skip


@click.command(name="force-acquire")
@click.argument("run_id", type=RUN_ID)
@click.option(
    "--pod-gone", is_flag=True, help="You know that the old pod is gone: do not wait for its lease to run out."
)
@epoch_options
@target_options
@json_option
def force_acquire(
    target: Target, run_id: str, why: str, pod_gone: bool, expected_epoch: int | None, yes: bool, as_json: bool
) -> None:
    """Take RUN_ID away from its holder, so that the next agent that asks gets it.

    The holder is told to stop and publishes nothing more. The next agent starts once the old one said that its trainer
    is dead, or its lease ran out, or at once with --pod-gone. What the old one has saved whole by then, the new one
    publishes and goes on from, if both have the same volume.
    """

    def consequence(detail: RunDetail, held: str) -> tuple[str, ...]:
        return acts.forces(detail.run, acts.lease_left(detail.run, detail.now), pod_gone=pod_gone, held=held)

    epoch = _agreed(target, run_id, "force-acquire", consequence, expected_epoch, yes)

    async def act(client: CommanderClient) -> Forced:
        return await client.force_acquire(run_id, expected_epoch=epoch, why=why, pod_gone=pod_gone)

    answer = _acted(target, act)
    if as_json:
        print_json(answer)
    else:
        click.echo(acts.forced(answer.run, answer.epoch, ask(target, _hold_off)), err=True)


@click.command()
@click.argument("run_id", type=RUN_ID)
@epoch_options
@wait_option
@target_options
@json_option
def drain(
    target: Target, run_id: str, why: str, expected_epoch: int | None, yes: bool, wait: float, as_json: bool
) -> None:
    """Let RUN_ID save, publish and release, so that the next agent goes on from there."""
    epoch = _agreed(target, run_id, "drain", lambda detail, held: acts.drains(detail.run), expected_epoch, yes)
    _order(target, OrderKind.DRAIN, run_id, why, epoch, wait, as_json)


@click.command()
@click.argument("run_id", type=RUN_ID)
@epoch_options
@wait_option
@target_options
@json_option
def cancel(
    target: Target, run_id: str, why: str, expected_epoch: int | None, yes: bool, wait: float, as_json: bool
) -> None:
    """End RUN_ID for good: its trainer saves, if it can, and stops; no agent gets it again.

    A run that is queued is cancelled at once. One that is held is cancelled once its attempt has ended, in whatever
    way; only where that reaches its last step first is it completed. `relay-tui requeue` takes a cancel back.
    """
    epoch = _agreed(target, run_id, "cancel", lambda detail, held: acts.cancels(detail.run), expected_epoch, yes)
    _order(target, OrderKind.CANCEL, run_id, why, epoch, wait, as_json)


@click.command()
@click.argument("run_id", type=RUN_ID)
@decided_options
@wait_option
@target_options
@json_option
def save(target: Target, run_id: str, why: str, expected_epoch: int | None, wait: float, as_json: bool) -> None:
    """Ask for a checkpoint of RUN_ID now; training goes on.

    The trainer is asked in its own way, as far as it has one, and how is said; the checkpoint shows in
    `relay-tui events`.
    """
    _order(target, OrderKind.SAVE, run_id, why, expected_epoch, wait, as_json)


@click.command()
@click.argument("run_id", type=RUN_ID)
@decided_options
@wait_option
@target_options
@json_option
def sync(target: Target, run_id: str, why: str, expected_epoch: int | None, wait: float, as_json: bool) -> None:
    """Bring RUN_ID's newest checkpoint to the Hub now; training goes on.

    How far that is shows in `relay-tui runs RUN_ID`, and what came of it in `relay-tui events`. A run without a
    repository (HF_REPO) refuses.
    """
    _order(target, OrderKind.SYNC, run_id, why, expected_epoch, wait, as_json)


def _order(
    target: Target, kind: OrderKind, run_id: str, why: str, epoch: int | None, wait: float, as_json: bool
) -> None:
    """Gives it, and says what its holder answers within `wait` seconds; RelayError where that is a refusal."""

    async def act(client: CommanderClient) -> tuple[Ordered, Outcome]:
        at = (await client.run(run_id)).run.epoch if epoch is None else epoch
        given = await client.order(kind, run_id, expected_epoch=at, why=why)
        return given, await outcome(client, kind, given, wait)

    given, came = _acted(target, act)
    if as_json:
        print_json({"run": given.run, "order_id": given.order_id, "outcome": came.answer, "order": came.order})
    if came.in_vain:
        raise RelayError("refused", came.words, exit_code=Exit.LEASE)
    if not as_json:
        later = f" (order {given.order_id}); `{target.program} events {run_id}` shows it then"
        click.echo(came.words + (later if came.answer is Answer.UNANSWERED else ""), err=True)


@click.command()
@click.argument("run_id", type=RUN_ID)
@epoch_options
@target_options
@json_option
def requeue(target: Target, run_id: str, why: str, expected_epoch: int | None, yes: bool, as_json: bool) -> None:
    """Queue RUN_ID again after it failed, was cancelled or completed; the next agent that asks for it goes on from its
    newest checkpoint."""
    epoch = _agreed(
        target, run_id, "requeue", lambda detail, held: acts.requeues(detail.run, held), expected_epoch, yes
    )

    async def act(client: CommanderClient) -> Requeued:
        return await client.requeue(run_id, expected_epoch=epoch, why=why)

    answer = _acted(target, act)
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{run_id} is {answer.run.status.value} again", err=True)


def _agreed(
    target: Target,
    run_id: str,
    verb: str,
    consequence: Callable[[RunDetail, str], tuple[str, ...]],
    expected: int | None,
    yes: bool,
) -> int:
    """The epoch on which the operator decided; asks unless that was said beforehand."""
    if yes:
        if expected is None:
            hint = f"`relay-tui runs {run_id}` shows its epoch: add --expected-epoch N, or leave out --yes to be asked"
            raise usage("--yes needs --expected-epoch, the epoch that you decided on", hint)
        return expected
    detail = ask(target, lambda client: client.run(run_id))
    if words := REFUSALS[verb](detail.run):
        hint = f"`relay-tui requeue {run_id}` queues it again" if detail.run.status.ended else ""
        raise RelayError("no_use", words, hint, exit_code=Exit.LEASE)
    said = consequence(detail, ask(target, _hold_off))
    click.echo("\n".join((_describe(detail), *said)), err=True)
    if not confirmed(verb, run_id, ", and with --expected-epoch on which epoch you decided"):
        raise RelayError("not_agreed", "nothing was done", exit_code=INTERRUPTED)
    return detail.run.epoch if expected is None else expected


async def _hold_off(client: CommanderClient) -> str:
    try:
        who = await client.whoami()
    except RelayError:  # what it is said beside is so all the same
        return ""
    return acts.hold_off(who.no_grants_until, who.now)


def _describe(detail: RunDetail) -> str:
    run = detail.run
    told = "" if run.reported_at is None else f"last report {ago(detail.now - run.reported_at)}"
    heard = f", {said}" if (said := silent(run, detail.now) or told) else ""
    seconds = acts.lease_left(run, detail.now)
    left = "" if seconds is None else f", lease left {int(seconds)}s"
    return clean(f"{run.run_id} is {run.status.value}, {acts.held(run)}{heard}{left}.", 1_000)


def _acted(target: Target, act: Callable[[CommanderClient], Awaitable[T]]) -> T:
    try:
        return ask(target, act)
    except RelayError as error:
        if error.status == 409:
            error.exit_code = int(Exit.LEASE)
            error.hint = error.hint or "look again with `relay-tui runs` and decide anew"
        raise
