"""`relay-tui serve`: the commander without a screen."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from relaytui.cli.options import Target, json_option, state_option, usage
from relaytui.cli.output import print_json, printable
from relaytui.shell.arguments import WORDS, Seconds, Whole
from relaytui.shell.loading import loading
from relaytui.wire.errors import sentences
from relaytui.wire.proof import SHORT_SECRET
from relaytui.wire.text import counted
from relaytui.wire.url import BadUrl, plain_url

if TYPE_CHECKING:
    from relaytui.commander.settings import CommanderSettings


LEAST_KEPT = 2
"""Checkpoints that agents keep whatever they are told."""


@click.command()
@click.option("--host", type=WORDS, help="Address to listen on. [env RELAY_HOST, 127.0.0.1]")
@click.option("--port", type=Whole(0, 65535), help="Port to listen on; 0 takes a free one. [env PORT, 8080]")
@click.option("--lease-seconds", type=Seconds(1, 86_400), help="[env RELAY_LEASE_SECONDS, 300]")
@click.option("--new-key", is_flag=True, help="Make a new key where the state folder's own is lost or damaged.")
@state_option
@json_option
def serve(
    target: Target, host: str | None, port: int | None, lease_seconds: float | None, new_key: bool, as_json: bool
) -> None:
    """Run the commander without a screen until Ctrl-C or SIGTERM. A restart is harmless: runs train on.

    The secret of the agents comes from RELAY_SHARED_SECRET; without one, `relay-tui token worker` prints the folder's
    own. With --json one object (url, pid, state) is printed once it listens.
    """
    import uvloop  # this process is the commander alone: with a loop in C it answers half as many pods again

    uvloop.run(_serve(target.state, host, port, lease_seconds, new_key, as_json))


async def _serve(
    state: Path, host: str | None, port: int | None, lease_seconds: float | None, new_key: bool, as_json: bool
) -> None:
    with loading():
        import relaytui.shell.web  # noqa: F401 - before the rest: its aiohttp loads no certificates
        from relaytui.commander.logs import say
        from relaytui.commander.server import Commander
        from relaytui.commander.settings import CommanderSettings

    settings = CommanderSettings.from_env(
        os.environ, state=state, host=host, port=port, lease_seconds=lease_seconds, new_key=new_key
    )
    check(settings)
    if said := weak(settings.shared_secret):
        click.echo(said, err=True)
    for said in slipped(os.environ, settings.ckpt_keep_last_n):
        click.echo(said, err=True)
    _take_descriptors()
    commander = Commander(settings)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    await commander.start()
    try:
        if new_key:
            click.echo("the key is new: pods need the new worker token (relay-tui token worker)", err=True)
        click.echo(f"commander at {commander.url}, state in {printable(settings.state)}; Ctrl-C stops it", err=True)
        if said := exposed(settings, commander.url):
            click.echo(said, err=True)
        if as_json:
            print_json({"url": commander.url, "pid": os.getpid(), "state": printable(settings.state)})
        await _first(stopped, commander.lost)
        if commander.trouble is not None:
            raise commander.trouble
        say("stopping; runs train on and report when a commander is back\n")
    finally:
        await commander.stop()


def weak(secret: str | None) -> str:
    """What to say of a secret that may be guessed, wherever it listens: a tunnel makes any address reachable."""
    if not secret or len(secret) >= SHORT_SECRET:
        return ""
    return sentences(
        f"RELAY_SHARED_SECRET has {counted(len(secret), 'character')}, and whoever reaches the commander may guess it",
        "unset it and give pods what `relay-tui token worker` prints, or set 32 random characters",
    )


def exposed(settings: CommanderSettings, url: str) -> str:
    """That it listens for other machines, where it does: its URL may say nothing of that."""
    if settings.loopback:
        return ""
    port = url.rpartition(":")[2]
    where = f"it listens on {settings.host} port {port}, beyond this machine and without TLS"
    return f"{where}: let only the proxy reach it"


def slipped(environ: Mapping[str, str], keep: int) -> Iterator[str]:
    """What to say of variables that mean something else than they say, or nothing. `keep`: RELAY_CKPT_KEEP_LAST_N."""
    from relaytui.wire.variables import sentence, slips

    if keep < LEAST_KEPT:
        what = f"{keep} is raised to {LEAST_KEPT}: the newest two checkpoints of a run are always kept"
        yield f"RELAY_CKPT_KEEP_LAST_N: {what}"
    for slip in slips(environ):
        yield sentences(*sentence(*slip))


async def _first(*events: asyncio.Event) -> None:
    """Until one of them is set."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()


def check(settings: CommanderSettings) -> None:
    """RelayError where the address cannot be; a state folder that is not there yet is not made for that."""
    from relaytui.commander.listening import listen, located

    located(settings.host, settings.port, settings.host_named)
    settings.check_exposure()
    try:
        plain_url(f"http://[{settings.host}]" if ":" in settings.host else f"http://{settings.host}")
    except BadUrl as error:
        raise usage(f"{settings.host_named}: the host {settings.host!r} {error}", "name another address") from None
    if not settings.state.exists():
        # Of a folder that is there a running commander may say whose the port is.
        listen(settings.host, settings.port, settings.host_named).close()


def _take_descriptors() -> None:
    """As many as this process may have: each agent and each dashboard needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, 65_536)
    with contextlib.suppress(OSError, ValueError):  # some systems have a limit beyond the limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
