"""What is set and not read, and what is taken for granted where nothing is set: a line each, said by `relay-agent
doctor` and by an agent before all else. None of it is an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from relay_agent.config import KEYS, Settings
from relay_agent.trainer.command import Launch, find_launch
from relaytui.wire.errors import RelayError, sentences
from relaytui.wire.variables import COMMANDERS, PREFIX, THERE, TRAINERS, sentence, slips

_EXAMPLE = b"char_lm.py"
"""What Relay's own launchers start."""


class Remark(NamedTuple):
    why: str
    todo: str


def remarks(settings: Settings, environ: Mapping[str, str]) -> Iterator[Remark]:
    if not settings.run_id_set:
        yield Remark(
            f"RUN_ID is not set: this pod trains the run {settings.run_id}, as does every pod without RUN_ID",
            "set RUN_ID to a name for what is trained here",
        )
    names = [key.name for key in KEYS]
    given = sorted(name for name, value in environ.items() if value.strip())
    for name in given:
        if name in COMMANDERS:
            yield Remark(f"{name} is the commander's, and is not read on a pod", THERE)
        elif name in TRAINERS:
            own = name.removeprefix(PREFIX)
            yield Remark(
                f"{name} is what Relay tells the trainer, and is not read from a pod's environment",
                f"did you mean {own}?" if own in names else "unset it: the trainer gets Relay's",
            )
    for name, near in slips(environ, names):
        why, todo = sentence(name, near)
        yield Remark(why, f"{todo} It is the commander's: {THERE}" if near in COMMANDERS else todo)


def example_trainer(launch: Launch) -> Remark | None:
    """None: it is a command of somebody's own, or a launcher that somebody changed."""
    with suppress(OSError):
        if len(launch.argv) == 1 and _EXAMPLE in Path(launch.argv[0]).read_bytes():
            return Remark(
                f"no command is set for this mode: {launch.name} trains the small example model that comes with Relay"
                " (char_lm)",
                "set TRAIN_CMD to the command of your own trainer",
            )
    return None


def first_lines(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """What an agent says of them."""
    for remark in remarks(settings, environ):
        yield sentences(*remark)
    with suppress(RelayError):  # no launcher: said where it is to be started
        if example := example_trainer(find_launch(settings)):
            yield sentences(*example)
