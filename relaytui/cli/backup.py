"""`relay-tui backup` and `relay-tui restore`: the commander's state as one file, and back."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from relaytui.cli.options import Target, target_options
from relaytui.shell.arguments import PATH
from relaytui.wire.errors import Exit, RelayError


@click.command()
@click.option("--to", type=PATH, help="File to write, instead of one in the state folder's backups/.")
@target_options
def backup(target: Target, to: Path | None) -> None:
    """Copy who may train what, runs, checkpoints and events into one file, and print its name.

    It is checked row by row before it gets its name. Whether a commander runs meanwhile does not matter; it makes one a
    day by itself. Not in it: steps and log lines, and the folder's key, of which you keep a copy of your own.
    """
    here(target)
    from relaytui.commander.store.backup import back_up, copy_whole
    from relaytui.commander.store.database import RELAY

    if to is None:
        made = back_up(target.state, time.time())
    else:
        made = to.expanduser()
        copy_whole(target.state / RELAY.file, made)
    click.echo(str(made))


@click.command()
@click.argument("file", type=PATH)
@target_options
def restore(target: Target, file: Path) -> None:
    """Put the backup FILE in the place of the commander's state. What was there is kept beside it.

    Stop the commander first. At the next start, agents that hold a lease keep it, those that were granted one after the
    backup register again, and for the length of a lease nobody else is granted a run.
    """
    here(target)
    from relaytui.commander.folder import StateFolder
    from relaytui.commander.settings import CommanderSettings
    from relaytui.commander.store.restore import restore as put_back

    settings = CommanderSettings.from_env(os.environ, state=target.state)
    folder = StateFolder(settings.state, keyless=True, allow_network=settings.allow_network_state)
    try:
        done = put_back(folder.path, file.expanduser(), time.time())
    finally:
        folder.close()
    kept = f"; what was there is {done.aside}" if done.aside is not None else ""
    click.echo(f"restored from {file}{kept}; epochs go on above {done.epoch_floor}", err=True)


def here(target: Target) -> None:
    if target.connect:
        raise RelayError(
            "usage", "a commander's state is a folder of its machine", "go there, and leave out --connect",
            exit_code=Exit.USAGE,
        )  # fmt: skip
