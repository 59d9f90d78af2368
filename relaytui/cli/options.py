"""Options that every command shares: which commander, and how its answers are printed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from relaytui.client.discover import state_folder

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Target:
    """The commander that a command is about: one at a URL, or the one of a state folder."""

    state: Path
    connect: str | None


def target_options(command: F) -> F:
    """`--state` and `--connect`, here or before the command's name, handed on as `target`."""

    @click.option("--state", type=click.Path(path_type=Path), help="State folder. [env RELAY_COMMANDER_STATE]")
    @click.option("--connect", metavar="URL", help="A commander elsewhere; its token comes from env RELAY_TOKEN.")
    @click.pass_context
    @functools.wraps(command)
    def wrapped(ctx: click.Context, /, *args: Any, state: Path | None, connect: str | None, **kwargs: Any) -> Any:
        outer = ctx.find_object(Target)
        target = Target(
            state=state or (outer.state if outer else state_folder()),
            connect=connect or (outer.connect if outer else None),
        )
        ctx.obj = target
        return ctx.invoke(command, *args, target=target, **kwargs)

    return wrapped  # type: ignore[return-value]


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)
