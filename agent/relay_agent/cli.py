"""Entry point of `relay-agent`. Signals are taken care of before anything that takes time is loaded."""

from __future__ import annotations

import sys

from relay_agent.early import stop_at_once
from relaytui.shell.interrupt import leave_at_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    import click


def main() -> None:
    """What a person can mend is one line on stderr and an exit code."""
    stop_at_once()
    leave_at_once()
    code = start()
    stop_at_once(code)
    sys.exit(code)


def start(args: Sequence[str] | None = None) -> int:
    from relaytui.shell import program

    return program.start("relay-agent", _commands, args)


def _commands() -> click.Group:
    from relay_agent.commands import cli

    return cli
