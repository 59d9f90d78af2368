"""`relay-tui stop`: ends the commander of a state folder, such as one that was left running."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import click

from relaytui.cli.options import Target, state_option
from relaytui.cli.session import endpoint_of
from relaytui.client.discover import read_address
from relaytui.wire.errors import Exit, RelayError

STOP_SECONDS = 10.0


@click.command()
@state_option
def stop(target: Target) -> None:
    """Stop the commander of the state folder. Runs train on, and report when a commander is back."""
    asyncio.run(endpoint_of(target))  # it proved that it is this folder's, so the process is the one to stop
    address = read_address(target.state)
    if address is None:
        raise RelayError("no_commander", "it has just ended", exit_code=Exit.UNAVAILABLE)
    os.kill(address.pid, signal.SIGTERM)
    if not until(lambda: read_address(target.state) is None, STOP_SECONDS):
        raise RelayError("still_there", f"process {address.pid} was asked to stop and is still there", "look at it")
    click.echo(f"the commander at {address.url} has stopped", err=True)


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
