"""What bash would not find of a command, as far as a look can tell: nothing is run of it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

from relay_agent.trainer.command import Launch, pod_environment
from relaytui.wire.errors import Exit, RelayError

TODO = "name it as it is there, or put it there before the agent starts"
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=")
_PLAIN = re.compile(r"[\w+][\w.+-]{0,200}", re.ASCII)
_PATH = re.compile(r"[\w./+@,=:-]{1,1000}")
"""Without a sign that means something to bash."""
_OPERATOR = re.compile(r"[;&|()<>]+")
_REDIRECTION = re.compile(r"&?[<>]+[&|]?")
_BEFORE = ("set", "export", "umask", "ulimit", ":", "true")
"""Commands that may stand before the one that trains, and change nothing that counts here."""
_ERREXIT = re.compile(r"-[a-zA-Z]*e[a-zA-Z]*|errexit")
_UNREADABLE = "?"
"""In an operator's place: what comes then is not known."""
_LOOKS = ("PATH", "CDPATH", "BASH_ENV")
"""Variables that say where bash looks."""
_HANDLER = "BASH_FUNC_command_not_found_handle%%"
"""A function that bash calls for a program that is not there, as it is exported."""
_SHELL = re.compile(r"(?:ba|da|z)?sh")
_READERS = (
    (_SHELL, re.compile(r"-[euxE]{1,4}")),
    (re.compile(r"python(?:\d(?:\.\d+)?)?"), re.compile(r"-[uOBEsSIx]{1,4}")),
)
"""Whose first word is a script, and the switches that may stand before it."""
_STARTERS = ("torchrun", "accelerate", "deepspeed")
"""The first word of theirs that ends in `.py` is the script."""
_NO_SCRIPT = frozenset({"-m", "--module", "--no-python", "--no_python"})
"""With one of these what they start is no script."""


class Missing(NamedTuple):
    """What is not there. `certain`: whatever else bash makes of the command, it cannot train."""

    words: str
    certain: bool


def missing(command: str) -> Missing | None:
    """None: nothing to say. A variable, a substitution or another of bash's arts ends the look."""
    folder = _here()
    env = pod_environment(os.environ)
    # A comment ends where no look sees it, and a substitution may make what is missing.
    sure = not any(mark in command for mark in ("#", "`")) and not any(name in env for name in (*_LOOKS[1:], _HANDLER))
    errexit = False
    parts = list(_simple(command))
    for at, (words, then) in enumerate(parts):
        rest = _own(words, then)
        replaces = False  # the shell
        while rest and (rest[0] == "exec" or _ASSIGNMENT.match(rest[0])):
            replaces = replaces or rest[0] == "exec"
            sure = sure and not _says_where(rest[0])
            del rest[0]
        if not rest or then in ("||", "()"):  # it may fail; it is made a function here
            return None
        if rest[0] == "cd":
            if folder is None or len(rest) != 2 or rest[1].startswith("-") or not _PATH.fullmatch(rest[1]):
                return None
            folder = folder / rest[1]
            if not folder.is_dir():
                return Missing(f"there is no folder {folder}", sure and _is_all(parts[at:], errexit=errexit))
        elif rest[0] not in _BEFORE:
            what = _program(rest[0], folder, env) or _no_script(rest, folder, env)
            certain = sure and _is_all(parts[at:], errexit=errexit, replaces=replaces) and not _unclear(rest)
            return Missing(what, certain) if what else None
        elif rest[0] == "set":
            errexit = any(map(_ERREXIT.fullmatch, rest)) or (errexit and not any(word[:1] == "+" for word in rest))
        elif rest[0] == "export":
            sure = sure and not any(map(_says_where, rest[1:]))
        if then not in ("&&", ";"):
            return None
    return None


def refuse_missing(launch: Launch) -> None:
    """RelayError (exit 2) for a command that cannot train for certain: a lease of it would be lost, and the run
    failed."""
    gone = missing(launch.argv[2]) if launch.argv[:2] == ("bash", "-c") else None
    if gone is not None and gone.certain:
        words = f"{launch.name} cannot train: {gone.words}"
        raise RelayError("command_not_startable", words, TODO, exit_code=Exit.USAGE)


def plain_scripts(command: str) -> list[Path]:
    """The Python scripts that it runs, where it plainly runs nothing else; none where that is not plain."""
    folder, found, before = _here(), list[Path](), ""
    for words, then in _simple(command):
        rest = _own(words, then)
        rest = rest[1:] if _REDIRECTION.fullmatch(before) else rest  # the file that is written to or read
        while rest and (rest[0] == "exec" or _ASSIGNMENT.match(rest[0])):
            rest = rest[1:]
        script = _script(rest) if rest else None
        if then == _UNREADABLE or folder is None:
            return []
        if script is not None and script.endswith(".py"):
            found.append(folder / script)
        elif rest[:1] == ["cd"] and len(rest) == 2 and _PATH.fullmatch(rest[1]):
            folder /= rest[1]
        elif rest and rest[0] not in (*_BEFORE, "echo", "tee"):
            return []
        before = then
    return found


def _own(words: list[str], then: str) -> list[str]:
    """Without the number before a redirection, the descriptor that it is of."""
    return words[: -1 if words and words[-1].isdigit() and _REDIRECTION.fullmatch(then) else None]


def _says_where(word: str) -> bool:
    found = _ASSIGNMENT.match(word)
    return found is not None and found[1] in _LOOKS


def _is_all(parts: Sequence[tuple[list[str], str]], *, errexit: bool, replaces: bool = False) -> bool:
    """Whether nothing trains where the first of them fails. `replaces`: the shell ends with it."""
    stops = errexit or replaces
    for at, (_, then) in enumerate(parts):
        after = parts[at + 1 :]
        if then == "|" and after and after[0][0][:1] == ["tee"]:
            stops = False  # it is `tee` that the shell hears of
        elif then == "&&":
            stops = replaces and stops  # what fails before one of these is no failure to `set -e`
        elif then and not _REDIRECTION.fullmatch(then) and not (then == ";" and (stops or not after)):
            return False
    return True


def _program(program: str, folder: Path | None, env: Mapping[str, str]) -> str:
    """Why it cannot be started; empty where nothing is known against it."""
    if "/" not in program:
        where = "that the trainer gets (without the agent's own virtual environment)"
        return f"there is no {program} on the PATH {where}" if _is_unknown(program, folder, env) else ""
    if folder is None or not _PATH.fullmatch(program):
        return ""
    there = "" if program.startswith("/") else f" in {folder}"
    path = folder / program
    if not os.path.lexists(path):
        return f"there is no {program}{there}"
    startable = not path.exists() or (path.is_file() and os.access(path, os.X_OK))
    return "" if startable else f"{program}{there} is not an executable file"


def _no_script(words: list[str], folder: Path | None, env: Mapping[str, str]) -> str:
    script = _script(words)
    if folder is None or script is None or os.path.lexists(folder / script):
        return ""
    # A shell looks for one as for a program then.
    searched = env["PATH"].split(os.pathsep) if _SHELL.fullmatch(Path(words[0]).name) and "/" not in script else ()
    if any(os.path.lexists(Path(place, script)) for place in searched):
        return ""
    return f"there is no {script} in {folder}"


def _unclear(words: list[str]) -> bool:
    """Whether what was taken for the script of a starter may be what the option before it is given."""
    script = _script(words)
    starts = Path(words[0]).name in _STARTERS and script is not None
    return starts and words[words.index(script or "") - 1].startswith("-")


def _simple(command: str) -> Iterator[tuple[list[str], str]]:
    """Its simple commands, each with the operator after it; ends where only bash makes it out."""
    lexer = shlex.shlex(command.replace("\\\n", " ").strip().replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if _OPERATOR.fullmatch(word):
                yield words, word
                words = []
            else:
                words.append(word)
    except ValueError:  # quotes
        yield [], _UNREADABLE
        return
    if words:
        yield words, ""


def _script(words: list[str]) -> str | None:
    """The file that an interpreter is to read; None where that is not plain."""
    program, arguments = Path(words[0]).name, words[1:]
    found = None
    if program in _STARTERS and not _NO_SCRIPT & {*arguments}:
        found = next((word for word in arguments if word.endswith(".py")), None)
    for name, switch in _READERS:
        if name.fullmatch(program):
            after = list(dropwhile(switch.fullmatch, arguments))
            found = after[0] if after and not after[0].startswith("-") else None
    return found if found is not None and _PATH.fullmatch(found) else None


def _is_unknown(program: str, folder: Path | None, env: Mapping[str, str]) -> bool:
    """A plain name of which bash knows nothing."""
    if not _PLAIN.fullmatch(program):
        return False
    known = ["bash", "-c", 'type -t -- "$1"', "bash", program]
    env = {name: value for name, value in env.items() if name != "BASH_ENV"}
    try:
        found = subprocess.run(
            known, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 1


def _here() -> Path | None:
    try:
        return Path.cwd()
    except OSError:
        return None
