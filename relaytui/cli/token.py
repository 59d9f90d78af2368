"""`relay-tui token`: what an agent or a remote client needs to be let in."""

from __future__ import annotations

import os

import click

from relaytui.cli.options import Target, state_option, usage
from relaytui.client.discover import read_key
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.proof import Role, derived_token

SECRET = "RELAY_SHARED_SECRET"  # noqa: S105 - the name of the variable


@click.command()
@click.argument("role", type=click.Choice(["worker", "operator"]))
@state_option
def token(target: Target, role: Role) -> None:
    """Print the token of ROLE on stdout, and nothing else.

    A worker's goes into RELAY_SHARED_SECRET on a pod, an operator's into RELAY_TOKEN beside --connect. Where
    RELAY_SHARED_SECRET is set, as for a commander with a secret of your own, that is what is printed for workers.
    """
    key = read_key(target.state)
    if role == "worker" and (secret := _own_secret()):
        if key is not None and secret != derived_token(key, role):
            words = f"this is {SECRET} as it is set here, for a commander that was started with it"
            click.echo(f"relay-tui: {words}; unset it to see the state folder's own", err=True)
        click.echo(secret)
        return
    if key is None:
        raise RelayError(
            "no_key",
            f"no key in {target.state}",
            "start the commander once (`relay-tui serve`), or name its folder with --state",
            exit_code=Exit.STATE,
        )
    click.echo(derived_token(key, role))


def _own_secret() -> str:
    """As a commander reads it: without the white space around it."""
    secret = os.environ.get(SECRET, "").strip()
    if not secret.isascii() or any(not mark.isprintable() or mark == " " for mark in secret):
        raise usage(f"{SECRET} has characters that a header cannot carry", "use letters, digits and -._~")
    return secret
