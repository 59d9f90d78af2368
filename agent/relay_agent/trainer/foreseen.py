"""What bash would not find of a command, as far as a look can tell: nothing is run of it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from relay_agent.trainer.command import pod_environment

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PLAIN = re.compile(r"[\w+][\w.+-]{0,200}", re.ASCII)
_PATH = re.compile(r"[\w./+@,=:-]{1,1000}")
"""Without a sign that means something to bash."""
_OPERATOR = re.compile(r"[;&|()<>]+")
_BEFORE = ("set", "export", "umask", "ulimit", ":", "true")
"""Commands that may stand before the one that trains, and change nothing that counts here."""
_SHELL = re.compile(r"(?:ba|da|z)?sh|python(?:\d(?:\.\d+)?)?")
_SWITCH = re.compile(r"-[uOBEsSIxe]{1,4}|-eux?o?")
_STARTERS = ("torchrun", "accelerate", "deepspeed")
"""The first word of theirs that ends in `.py` is the script."""


def missing(command: str) -> str:
    """What is not there, in words; empty: nothing to say. A variable, a substitution or another of bash's arts ends the
    look."""
    folder = _here()
    for words, then in _simple(command):
        rest = list(words)
        while rest and (rest[0] == "exec" or _ASSIGNMENT.match(rest[0])):
            del rest[0]
        if not rest or then == "||":  # it may fail
            return ""
        if rest[0] == "cd":
            if folder is None or len(rest) != 2 or not _PATH.fullmatch(rest[1]):
                return ""
            folder = folder / rest[1]
            if not folder.is_dir():
                return f"there is no folder {folder}"
        elif rest[0] not in _BEFORE:
            where = "that the trainer gets (without the agent's own virtual environment)"
            if _is_missing(rest[0]):
                return f"there is no {rest[0]} on the PATH {where}"
            script = _script(rest)
            gone = folder is not None and script is not None and not os.path.lexists(folder / script)
            return f"there is no {script} in {folder}" if gone else ""
        if then not in ("&&", ";"):
            return ""
    return ""


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
        return
    if words:
        yield words, ""


def _script(words: list[str]) -> str | None:
    """The file that an interpreter is to read; None where that is not plain."""
    program, arguments = Path(words[0]).name, words[1:]
    if program in _STARTERS:
        found = next((word for word in arguments if word.endswith(".py")), None)
    elif _SHELL.fullmatch(program):
        while arguments and _SWITCH.fullmatch(arguments[0]):
            del arguments[0]
        found = arguments[0] if arguments and not arguments[0].startswith("-") else None
    else:
        return None
    return found if found is not None and _PATH.fullmatch(found) else None


def _is_missing(program: str) -> bool:
    """A plain name of which bash knows nothing."""
    if not _PLAIN.fullmatch(program):
        return False
    known = ["bash", "-c", 'type -t -- "$1"', "bash", program]
    env = {name: value for name, value in pod_environment(os.environ).items() if name != "BASH_ENV"}
    try:
        found = subprocess.run(known, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 1


def _here() -> Path | None:
    try:
        return Path.cwd()
    except OSError:
        return None
