"""`relay-tui backup` and `relay-tui restore`: the commander's state as one file, and back."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import click

from relaytui.cli.options import Target, json_option, state_option, usage
from relaytui.cli.output import print_json, printable
from relaytui.cli.questions import confirmed
from relaytui.client.words import ago
from relaytui.shell.arguments import PATH
from relaytui.shell.interrupt import INTERRUPTED
from relaytui.wire.errors import RelayError


@click.command()
@click.option(
    "--to",
    type=PATH,
    help="New file to write, in a folder that is there. [backups/ of the state folder]",
)
@state_option
@json_option
def backup(target: Target, to: Path | None, as_json: bool) -> None:
    """Copy who may train what, runs, checkpoints and events into one file, and print its name.

    It is checked row by row before it gets its name. Whether a commander runs meanwhile does not matter; it makes one a
    day by itself. Not in it: steps and log lines, and the folder's key, of which you keep a copy of your own. With
    --json one object: path, bytes, at (seconds since 1970), seconds (how long it took), verified.
    """
    from relaytui.commander.store.backup import back_up, copy_whole
    from relaytui.commander.store.database import RELAY

    if to is not None:
        _new_file(to)
    at, began = time.time(), time.monotonic()
    if to is None:
        made = back_up(target.state, at)
    else:
        made = to
        copy_whole(target.state / RELAY.file, made)
    if not as_json:
        click.echo(str(made))
        return
    took = round(time.monotonic() - began, 3)
    # Where it is not whole there is none: that is an error, with an exit code of its own.
    print_json({"path": printable(made), "bytes": made.stat().st_size, "at": at, "seconds": took, "verified": True})


@click.command()
@click.argument("file", type=PATH)
@click.option("--yes", is_flag=True, help="Do not ask.")
@state_option
@json_option
def restore(target: Target, file: Path, yes: bool, as_json: bool) -> None:
    """Put the backup FILE in the place of the commander's state. FILE is checked; then, where there is a state, it
    asks; what was there is kept beside it.

    Stop the commander first. At the next start, agents that hold a lease keep it, those that were granted one after the
    backup register again, and for the length of a lease nobody else is granted a run. With --json one object: path, at,
    replaced (what was there, null where nothing was), epoch_floor.
    """
    from relaytui.client.api import whoami_here
    from relaytui.commander.folder import StateFolder
    from relaytui.commander.settings import CommanderSettings
    from relaytui.commander.store.database import RELAY
    from relaytui.commander.store.restore import restore as put_back

    _a_file(file)
    settings = CommanderSettings.from_env(os.environ, state=target.state)
    folder = StateFolder(settings.state, keyless=True, allow_network=settings.allow_network_state)
    try:
        at = time.time()
        agreed = (lambda: None) if yes else partial(_agreed, folder.path / RELAY.file, file, at)
        done = put_back(folder.path, file, at, actor=whoami_here(), agreed=agreed)
    finally:
        folder.close()
    if as_json:
        replaced = None if done.aside is None else printable(done.aside)
        print_json({"path": printable(file), "at": at, "replaced": replaced, "epoch_floor": done.epoch_floor})
        return
    kept = f"; what was there is {done.aside}" if done.aside is not None else ""
    click.echo(f"restored from {file}{kept}; epochs go on above {done.epoch_floor}", err=True)


def _agreed(there: Path, file: Path, now: float) -> None:
    """RelayError unless the operator says yes to what `there` gives way to; it may not be there."""
    try:
        written = ago(max(0.0, now - there.stat().st_mtime))
    except OSError:
        return
    try:
        made = f", {ago(max(0.0, now - file.stat().st_mtime))},"
    except OSError:
        made = ""
    lost = f"what was granted and reported since the backup{made} goes with it"
    kept = f"{lost}, and it is kept beside as relay.db.replaced-…"
    click.echo(f"{there}, last written {written}, gives way to {file}: {kept}.", err=True)
    if not confirmed("restore", there.name):
        raise RelayError("not_agreed", "nothing was done", exit_code=INTERRUPTED)


def _new_file(path: Path) -> None:
    """RelayError where it can be none, as far as the name says; what the disk has to say comes with the writing."""
    if os.path.lexists(path):
        raise usage(f"{path} is there already", "name another file: a backup replaces none")
    if not path.parent.is_dir():
        raise usage(f"{path}: there is no folder {path.parent}", "make it first, or name another file")


def _a_file(path: Path) -> None:
    if not os.path.lexists(path):
        raise usage(f"{path} is not there", "name a backup's file")
    if path.is_dir():
        raise usage(f"{path} is a folder", "name a backup's file")
