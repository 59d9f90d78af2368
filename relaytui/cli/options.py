"""Options that every command shares: which commander, and how its answers are printed."""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from relaytui.client.discover import state_folder
from relaytui.shell.arguments import COUNT, PATH, URL, WHY, usable_path
from relaytui.wire.errors import Exit, RelayError

F = TypeVar("F", bound=Callable[..., Any])

STATE_VARIABLE = "RELAY_COMMANDER_STATE"
NO_TARGET = ("print-lium-command", "demo")
HERE = ("serve", "stop", "backup", "restore", "token")
"""About a folder of this machine: `--connect` means nothing to them."""
CALL = "`relay-tui"


@dataclass(frozen=True)
class Target:
    """The commander that a command is about: one at a URL, or the one of a state folder."""

    state: Path
    connect: str | None

    @property
    def program(self) -> str:
        """How one calls `relay-tui` to mean this commander again."""
        if self.connect:
            return f"relay-tui --connect {shlex.quote(self.connect)}"
        return "relay-tui" if self.state == default_state() else f"relay-tui --state {shlex.quote(str(self.state))}"

    def typed(self, words: str) -> str:
        """`words` with each command in them as it has to be typed to reach this commander."""

        def call(match: re.Match[str]) -> str:
            elsewhere = HERE if self.connect else ()
            return match[0] if match[1] in (*NO_TARGET, *elsewhere) else f"`{self.program}{match[0][len(CALL) :]}"

        return re.sub(CALL + r"(?=[ `])(?! --)(?: ([a-z-]+))?", call, words)


@dataclass(frozen=True)
class Given:
    """What was said of it so far, before the command's name."""

    state: Path | None = None
    connect: str | None = None


def target_options(command: F) -> F:
    """`--state` and `--connect`, here or before the command's name, handed on as `target`."""
    return _target(command, connect=True)


def state_option(command: F) -> F:
    """As `target_options`, for a command that is about a folder of this machine and nothing elsewhere."""
    return _target(command, connect=False)


def _target(command: F, *, connect: bool) -> F:
    """None is handed on where a command follows that will say more."""

    @functools.wraps(command)
    def wrapped(ctx: click.Context, /, *args: Any, state: Path | None, **kwargs: Any) -> Any:
        outer = ctx.find_object(Given) or Given()
        given = ctx.obj = Given(state or outer.state, kwargs.pop("connect", None) or outer.connect)
        if given.connect and not connect:
            raise usage(f"--connect means nothing to {ctx.info_name}, which is about this machine", "leave it out")
        target = None if ctx.invoked_subcommand else Target(given.state or default_state(), given.connect)
        try:
            return ctx.invoke(command, *args, target=target, **kwargs)
        except RelayError as error:
            if target is not None:
                error.message, error.hint = target.typed(error.message), target.typed(error.hint)
            raise

    options = click.pass_context(wrapped)
    if connect:
        options = click.option(
            "--connect", type=URL, metavar="URL", help="A commander elsewhere; its token comes from env RELAY_TOKEN."
        )(options)
    return click.option("--state", type=PATH, help=f"State folder. [env {STATE_VARIABLE}]")(options)  # type: ignore[return-value]


def default_state() -> Path:
    """The state folder that the environment names, or this user's own; an empty name is a slip, not a wish."""
    named = os.environ.get(STATE_VARIABLE)
    if named is None:
        return state_folder(environ={})
    try:
        return usable_path(named)
    except ValueError as error:
        raise usage(f"{STATE_VARIABLE} {error}", "name a folder, or unset it for your own state folder") from None


def epoch_options(command: F) -> F:
    """What an act on a run is told: why, on which epoch it was decided, and whether to ask."""
    asks = click.option("--yes", is_flag=True, help="Do not ask.")(command)
    return _decided(asks, " Needed with --yes.")


def decided_options(command: F) -> F:
    """As `epoch_options`, for an act that asks nothing."""
    return _decided(command, "")


def _decided(command: F, more: str) -> F:
    for option in (
        click.option("--expected-epoch", type=COUNT, help=f"Refuse if the run is at another epoch.{more}"),
        click.option("--why", type=WHY, default="", help="Goes into the history."),
    ):
        command = option(command)
    return command


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def usage(message: str, hint: str) -> RelayError:
    return RelayError("usage", message, hint, exit_code=Exit.USAGE)
