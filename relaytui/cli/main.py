"""Entry point of `relay-tui`. Ctrl-C is taken care of before anything that takes time is loaded."""

from __future__ import annotations

import sys

from relaytui.shell.interrupt import leave_at_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    import click


def main() -> None:
    """Whatever goes wrong in a way that a person can mend is one line on stderr and an exit code."""
    leave_at_once()
    from relaytui.shell.program import start

    sys.exit(start("relay-tui", _commands))


def _commands() -> click.Group:
    from relaytui.cli.group import cli

    return cli
