"""`relay-tui token`: what an agent or a remote client needs to be let in."""

from __future__ import annotations

import os

import click

from relaytui.cli.options import Target, state_option
from relaytui.client.discover import read_key
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.proof import Role, derived_token


@click.command()
@click.argument("role", type=click.Choice(["worker", "operator"]))
@state_option
def token(target: Target, role: Role) -> None:
    """Print the token of ROLE on stdout, and nothing else.

    A worker's goes into RELAY_SHARED_SECRET on a pod, an operator's into RELAY_TOKEN beside --connect. Where the
    commander was started with a RELAY_SHARED_SECRET of your own, that is what its workers use.
    """
    if role == "worker" and os.environ.get("RELAY_SHARED_SECRET"):
        raise RelayError(
            "own_secret",
            "RELAY_SHARED_SECRET is set here, and that is what workers use",
            "give the pod the same value; unset it to use the state folder's own token",
            exit_code=Exit.USAGE,
        )
    key = read_key(target.state)
    if key is None:
        raise RelayError(
            "no_key",
            f"no key in {target.state}",
            "start the commander once (`relay-tui serve`), or name its folder with --state",
            exit_code=Exit.STATE,
        )
    click.echo(derived_token(key, role))
