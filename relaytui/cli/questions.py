"""The one question that commands ask before they do what cannot be undone."""

from __future__ import annotations

import sys

import click

from relaytui.shell.interrupt import INTERRUPTED
from relaytui.wire.errors import RelayError

MAX_ANSWER = 256


def confirmed(verb: str, name: str, without: str = "") -> bool:
    """`y`, `yes` and the name itself are a yes. `without`: what else to say where there is nobody to answer."""
    click.echo(f"{verb} {name}? [y/N]: ", nl=False, err=True)
    try:
        answer = sys.stdin.readline(MAX_ANSWER)  # what answers may never come to the end of a line
    except (OSError, ValueError):
        answer = ""
    if not answer or len(answer) == MAX_ANSWER:
        click.echo(err=True)
        raise RelayError(
            "no_answer",
            "nobody answered, so nothing was done",
            f"without a terminal say --yes{without}",
            exit_code=INTERRUPTED,
        )
    return answer.strip() == name or answer.strip().lower() in ("y", "yes")
