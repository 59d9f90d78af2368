"""What is set and not read, and what is taken for granted where nothing is set: a line each, said by `relay-agent
doctor` and by an agent before all else. None of it is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from relay_agent.checkpoints.looked import CURE, names
from relay_agent.config import KEYS, Settings
from relay_agent.trainer.command import Launch, find_launch
from relay_agent.trainer.foreseen import plain_scripts
from relaytui.wire.errors import RelayError, sentences
from relaytui.wire.variables import COMMANDERS, PREFIX, THERE, TRAINERS, sentence, slips

_EXAMPLE = b"char_lm.py"
"""What Relay's own launchers start."""
_TOLD = re.compile(r"RELAY_(?:OUTPUT_DIR|CKPT_STAGING_ROOT|RESUME_|RUN_ROOT|LAUNCHERS)|\$[@*]|\$\{[@*]")
"""In a command that hands on where to save, or what to go on from."""
_ASKS = b"RELAY_"
"""In a script that looks for that itself."""


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


def saves_unseen(settings: Settings, launch: Launch) -> Remark | None:
    """A plain `python3 train.py` that is not told where to save, and does not ask: nothing of it would be taken."""
    command = launch.argv[-1]
    if launch.argv[:2] != ("bash", "-c") or settings.checkpoint_dir != Path() or _TOLD.search(command):
        return None
    scripts = plain_scripts(command)
    try:
        if not scripts or any(not path.is_file() or _ASKS in path.read_bytes() for path in scripts):
            return None  # one that is not there is said by who looks for it
    except OSError:
        return None
    named, script = ", ".join(names(settings)), scripts[-1].name
    return Remark(
        f"{launch.name} names none of {named} and $RELAY_RESUME_FROM, nor does {script}: unless it finds them otherwise"
        ", nothing that it saves is taken, and each attempt begins anew",
        CURE,
    )


def first_lines(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """What an agent says of them."""
    for remark in remarks(settings, environ):
        yield sentences(*remark)
    with suppress(RelayError):  # no launcher: said where it is to be started
        launch = find_launch(settings)
        for each in (example_trainer(launch), saves_unseen(settings, launch)):
            if each is not None:
                yield sentences(*each)
