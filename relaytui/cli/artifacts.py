"""`relay-tui artifacts …`: what the commander stores of runs. The commands that move bytes are in `artifact_files`."""

from __future__ import annotations

import functools
import importlib
import time

import click

from relaytui.cli.options import Target, json_option, target_options, usage
from relaytui.cli.output import Column, print_json, print_table
from relaytui.cli.progress import Progress
from relaytui.cli.questions import confirmed
from relaytui.cli.session import ask
from relaytui.cli.taught import teach
from relaytui.client.api import CommanderClient
from relaytui.client.artifacts import lost_with, state
from relaytui.client.words import ago, size
from relaytui.shell.arguments import COUNT, RUN_ID, WHY
from relaytui.shell.interrupt import INTERRUPTED
from relaytui.wire.artifacts import ArtifactRow, Artifacts
from relaytui.wire.errors import RelayError
from relaytui.wire.text import clean, counted

COMMANDS = {
    # name: (module, attribute, one line of help)
    "list": ("relaytui.cli.artifacts", "list_", "List what is stored, of one run or of all."),
    "fetch": ("relaytui.cli.artifact_files", "fetch", "Bring an artifact here, checked, and unpack it if you like."),
    "verify": ("relaytui.cli.artifacts", "verify", "Read artifacts again where they lie, and compare their hashes."),
    "delete": ("relaytui.cli.artifacts", "delete", "Delete an artifact."),
    "attach": ("relaytui.cli.artifact_files", "attach", "Store a file with a run: a config, a report, rollouts."),
    "extract": (
        "relaytui.cli.artifact_files",
        "extract_",
        "Unpack a fetched archive, trusting nothing in it.",
    ),
}


class ArtifactGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        teach(f"artifacts {cmd_name}", command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, _, words) in COMMANDS.items()])


@click.group(cls=ArtifactGroup, invoke_without_command=True)
@target_options
def artifacts(target: Target | None) -> None:
    """What the commander keeps of runs: checkpoints as archives, and small files.

    Agents put checkpoints there where they are told to; `attach` adds a file. Each command takes --json.
    """
    if target is not None:
        raise usage("artifacts needs one more word", f"say which: {', '.join(COMMANDS)}")


COLUMNS = (
    Column("ID"),
    Column("RUN"),
    Column("KIND", 3),
    Column("NAME"),
    Column("STEP", 1),
    Column("SIZE"),
    Column("STORED", 2),
    Column("BY", 5),
    Column("SHA256", 6),
    Column("STATE", least=8),
)


@click.command(name="list")
@click.argument("run_id", type=RUN_ID, required=False)
@target_options
@json_option
def list_(target: Target, run_id: str | None, as_json: bool) -> None:
    """List what is stored, oldest first: of RUN_ID, or of all runs.

    STATE: `final` is what a run ended with; `verified` was read again; `damaged` is not what it was, and is not given
    out; of all others no more is known than that they are `whole`.
    """

    async def question(client: CommanderClient) -> Artifacts:
        answer = await client.artifacts(run_id)
        if run_id is not None and not answer.artifacts:
            await client.run(run_id)  # none of it, or no such run
        return answer

    answer = ask(target, question)
    if as_json:
        print_json(answer)
        return
    if answer.artifacts:
        print_table(COLUMNS, [_cells(row, answer.now) for row in answer.artifacts])
    click.echo(_summary(answer), err=True)


def _summary(answer: Artifacts) -> str:
    kept = counted(len(answer.artifacts), "artifact") if answer.artifacts else "no artifacts yet"
    return f"{kept}; the store has {size(answer.bytes)} of {size(answer.quota)}"


def _cells(row: ArtifactRow, now: float) -> tuple[str, ...]:
    return (
        str(row.id),
        row.run_id,
        row.kind.value,
        row.name,
        "-" if row.step is None else str(row.step),
        size(row.size),
        ago(now - row.stored_at),
        row.by,
        row.sha256[:12],
        state(row, now),
    )


@click.command()
@click.argument("artifact_ids", type=COUNT, nargs=-1, required=True, metavar="ID...")
@target_options
@json_option
def verify(target: Target, artifact_ids: tuple[int, ...], as_json: bool) -> None:
    """Read each artifact again where it lies, hash it, and say whether it is what it was.

    What is not is marked: nobody is given it, and whoever uploads it again mends it. Exit code 1 where one is damaged.
    """
    rows = [ask(target, functools.partial(verified, artifact=artifact)) for artifact in artifact_ids]
    if as_json:
        print_json({"artifacts": rows})
    else:
        for row in rows:
            click.echo(f"{row.id}  {row.run_id}  {row.name}  {row.damaged or 'whole'}")
    wrong = [str(row.id) for row in rows if row.damaged]
    if wrong:
        hint = "fetch none of them; one that is uploaded again is mended"
        raise RelayError("damaged", f"damaged: {', '.join(wrong)}", hint)


async def verified(client: CommanderClient, artifact: int) -> ArtifactRow:
    """Its row, once the commander has read all of it again. RelayError 404."""
    row = await client.artifact(artifact)
    with Progress(f"reading {row.name}", row.size) as progress:
        while True:
            answer = await client.verify_artifact(artifact)
            if answer.over:
                return answer.artifact
            progress.at(answer.hashed)


@click.command()
@click.argument("artifact_id", type=COUNT, metavar="ID")
@click.option("--why", type=WHY, default="", help="Goes into the history.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@target_options
@json_option
def delete(target: Target, artifact_id: int, why: str, yes: bool, as_json: bool) -> None:
    """Delete the artifact ID. Its bytes go with it, unless another artifact has the same."""
    if not yes:
        row, lost = ask(target, functools.partial(_row_and_lost, artifact_id))
        final = ", what the run ended with" if row.final else ""
        stored = f"{size(row.size)}, stored {ago(time.time() - row.stored_at)}"
        click.echo("\n".join((f"{row.kind.value} {row.name} of {row.run_id}{final}, {stored}.", *lost)), err=True)
        if not confirmed("delete", str(artifact_id)):
            raise RelayError("not_agreed", "nothing was done", exit_code=INTERRUPTED)
    gone, lost = ask(target, functools.partial(_deleted, artifact_id, why))
    if yes:  # nothing was asked that would have said it
        click.echo("".join(f"{words}\n" for words in lost), nl=False, err=True)
    if as_json:
        print_json({"artifact": gone})
    else:
        click.echo(f"{gone.kind.value} {gone.name} of {clean(gone.run_id, 128)} is deleted", err=True)


async def _row_and_lost(artifact: int, client: CommanderClient) -> tuple[ArtifactRow, list[str]]:
    """Its row, and what is lost with it."""
    row = await client.artifact(artifact)
    return row, lost_with(row, (await client.artifacts(row.run_id)).artifacts)


async def _deleted(artifact: int, why: str, client: CommanderClient) -> tuple[ArtifactRow, list[str]]:
    gone = await client.delete_artifact(artifact, why)
    try:
        return gone, lost_with(gone, (await client.artifacts(gone.run_id)).artifacts)
    except RelayError:  # it is deleted, whatever there is to say of it
        return gone, []
