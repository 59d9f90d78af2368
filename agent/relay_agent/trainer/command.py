"""What to start for a run, and the environment it gets: the pod's own, with nothing of the agent's in it."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import relay_agent
import relaytui
from relay_agent.config import Settings
from relay_agent.volume.volume import RunFolder
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.messages import RunConfig

# Ours, and none of a trainer's business: secrets, where the commander is, and how this agent is set up.
_WITHHELD = re.compile(
    r"(?:RELAY_SHARED_SECRET|RELAY_TOKEN|RELAY_RUN_CONFIG|RELAY_AGENT_STATE|COMMANDER_\w+|SLIME_\w+_CMD|TRAIN_CMD)\Z"
)

MAX_COMMAND = (128 << 10) - 1
"""Bytes of one argument, or of one variable with its name, that Linux takes."""
MAX_TOTAL = 6 << 20
"""Bytes of all of them together, at most, however large the stack may grow."""
ROOM = 8 << 10
"""Of these, for what the guardian is told."""


@dataclass(frozen=True)
class Launch:
    """Command line of a trainer, and what to call it."""

    argv: tuple[str, ...]
    name: str

    @property
    def digest(self) -> str:
        """Identifies the command in claims and grants; the command itself may hold secrets and stays here."""
        return hashlib.sha256("\0".join(self.argv).encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def resuming(self, args: str) -> tuple[str, ...]:
        """The command line with RELAY_RESUME_ARGS (`args`) as `"$@"` of a command for bash: as words, whatever is in
        them. A launcher of Relay's reads RELAY_RESUME_FROM."""
        if self.argv[:2] != ("bash", "-c") or not args:
            return self.argv
        return (*self.argv, "bash", *shlex.split(args))


def launcher_folders() -> list[Path]:
    """Where launchers may lie: in an installed package, or beside `agent/` in a checkout."""
    package = Path(relay_agent.__file__).resolve().parent
    return [package / "launchers", package.parent.parent / "launchers"]


def find_launch(settings: Settings) -> Launch:
    """The command for the run's mode; RelayError (exit 2) where it cannot be started."""
    name, of_mode = f"launch_{settings.mode}.sh", f"SLIME_{settings.mode.upper()}_CMD"
    command = settings.slime_sft_cmd if settings.mode == "sft" else settings.slime_rl_cmd
    named = of_mode if command else "TRAIN_CMD"
    if command := command or settings.train_cmd:
        if len(os.fsencode(command)) > MAX_COMMAND:
            raise RelayError(
                "command_too_long",
                f"{named} is {len(os.fsencode(command))} bytes long, and the system takes {MAX_COMMAND}",
                f"put it into a script, and set {named} to that",
                exit_code=Exit.USAGE,
            )
        return Launch(("bash", "-c", command), named)
    for folder in launcher_folders():
        path = folder / name
        if not path.exists():
            continue
        if not path.is_file() or not os.access(path, os.X_OK):
            raise RelayError(
                "launcher_not_executable",
                f"the launcher {path} is not an executable file",
                "chmod +x it, or set TRAIN_CMD to a command of your own",
                exit_code=Exit.USAGE,
            )
        return Launch((str(path),), name)
    raise RelayError(
        "launcher_missing",
        f"there is no launcher {name} in {' or '.join(map(str, launcher_folders()))}",
        "install the relay-tui package anew, or set TRAIN_CMD to a command of your own",
        exit_code=Exit.USAGE,
    )


def refuse_too_large(launch: Launch, env: Mapping[str, str]) -> None:
    """RelayError (exit 2) that names what is too large, where the system would only say that something is."""
    sizes = {name: len(os.fsencode(name)) + 1 + len(os.fsencode(value)) for name, value in env.items()}
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:3]
    if largest and sys.platform.startswith("linux") and sizes[largest[0]] > MAX_COMMAND:
        raise RelayError(
            "variable_too_long",
            f"the trainer cannot be started: the variable {largest[0][:200]} is {sizes[largest[0]]} bytes long,"
            f" and the system takes {MAX_COMMAND}",
            "put its value into a file, and name the file",
            exit_code=Exit.USAGE,
        )
    pointer = 8
    total = sum(len(os.fsencode(text)) + 1 + pointer for text in launch.argv) + ROOM
    total += sum(size + 1 + pointer for size in sizes.values())
    allowed = min(MAX_TOTAL, os.sysconf("SC_ARG_MAX"))
    if total > allowed > 0:
        named = ", ".join(f"{name[:200]} ({sizes[name]} bytes)" for name in largest)
        raise RelayError(
            "environment_too_large",
            f"the trainer cannot be started: {len(sizes)} environment variables and the command are {total} bytes"
            f" together, and the system takes {allowed}; the largest are {named}",
            "unset what the trainer does not need, or put it into files",
            exit_code=Exit.USAGE,
        )


def exec_trouble(launch: Launch, environ: Mapping[str, str]) -> str:
    """Why the system would not start it, as far as one can see without starting it; empty: it looks well."""
    search = pod_environment(environ)["PATH"]
    program = launch.argv[0]
    if "/" not in program:
        return "" if shutil.which(program, path=search) else f"there is no {program} on PATH"
    try:
        with Path(program).open("rb") as file:
            first = file.read(4096).partition(b"\n")[0]
    except OSError as error:
        return f"{program} cannot be read: {error.strerror}"
    if first.startswith(b"\x7fELF"):
        return ""
    if not first.startswith(b"#!"):
        return f"{program} is neither a program nor a script that says what runs it"
    if first.endswith(b"\r"):
        return f"{program} has Windows line ends, so that nothing runs it"
    words = os.fsdecode(first[2:]).split(maxsplit=1)
    if not words:
        return f"{program} has a first line that names nothing"
    if not (Path(words[0]).is_file() and os.access(words[0], os.X_OK)):
        return f"{program} is run by {words[0]!a}, which is not an executable file here"
    named = words[1] if len(words) == 2 and Path(words[0]).name == "env" else ""
    if re.fullmatch(r"[\w.+-]+", named) and not named.startswith("-") and not shutil.which(named, path=search):
        return f"{program} is run by {named!a}, which is not on PATH"
    return ""


def trainer_environment(
    environ: Mapping[str, str],
    settings: Settings,
    config: RunConfig,
    folder: RunFolder,
    epoch: int,
    resume: Path | str | None,
    resume_args: str = "",
) -> dict[str, str]:
    """The pod's environment without the agent's virtual environment and secrets, with what a trainer is told."""
    env = pod_environment(environ)
    if settings.hf_token:
        env["HF_TOKEN"] = settings.hf_token
    env.update(
        RELAY_RUN_ROOT=str(folder.root),
        RELAY_OUTPUT_DIR=str(folder.output(epoch)),
        RELAY_RESUME_FROM=str(resume) if resume else "",
        RELAY_RESUME_ARGS=resume_args,
        RELAY_BASE_MODEL="" if resume else settings.base_model,
        RELAY_CKPT_STAGING_ROOT=str(folder.staging(epoch)),
        RELAY_SAVE_FILE=str(folder.save_file(epoch)),
        RELAY_TRAIN_MODE=settings.mode,
        RELAY_RUN_ID=settings.run_id,
        RELAY_EPOCH=str(epoch),
        RELAY_CKPT_INTERVAL=str(config.ckpt_interval_sec),
        RELAY_LAUNCHERS=str(next((path for path in launcher_folders() if path.is_dir()), "")),
        PYTHONUNBUFFERED="1",
    )
    return env


def pod_environment(environ: Mapping[str, str], ours: tuple[Path, ...] | None = None) -> dict[str, str]:
    """`environ` as it is without the agent's virtual environment and without our secrets.

    `ours`: folders whose programs and modules are the agent's own.
    """
    ours = own_folders() if ours is None else ours
    env: dict[str, str] = {}
    for name, value in environ.items():
        if _WITHHELD.match(name):
            continue
        if name in ("VIRTUAL_ENV", "PYTHONHOME") and _is_in(value, ours):
            continue
        if name == "VIRTUAL_ENV_PROMPT" and _is_in(environ.get("VIRTUAL_ENV", ""), ours):
            continue
        if name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH"):
            value = os.pathsep.join(part for part in value.split(os.pathsep) if not _is_in(part, ours))
            if not value:
                continue
        env[name] = value
    env.setdefault("PATH", os.defpath)
    return env


def own_folders() -> tuple[Path, ...]:
    """The virtual environment the agent runs in, if it does, and where its code lies."""
    folders = [Path(relay_agent.__file__).resolve().parent.parent, Path(relaytui.__file__).resolve().parent.parent]
    prefix = Path(sys.prefix)
    if (prefix / "pyvenv.cfg").exists():
        return prefix, prefix.resolve(), *folders
    # Installed beside everybody else's: only where the code itself lies outside can be ours alone.
    return tuple(folder for folder in folders if not folder.is_relative_to(prefix.resolve()))


def _is_in(text: str, folders: tuple[Path, ...]) -> bool:
    """Whether it lies in one of them, and in no virtual environment of its own there."""
    if not text:
        return False
    absolute = Path(text).absolute()
    for path in {absolute, absolute.resolve()}:
        for folder in folders:
            if f"{path}/".startswith(f"{folder}/"):
                below = path.relative_to(folder).parts
                inside = (folder.joinpath(*below[:depth]) for depth in range(1, len(below) + 1))
                if not any((each / "pyvenv.cfg").exists() for each in inside):
                    return True
    return False
