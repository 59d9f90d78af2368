"""What YAML's errors mean in a run.yaml, in words that say what to do. None of them repeats what stands in the file."""

from __future__ import annotations

import re
from typing import NamedTuple

_QUOTE = "put the value in quotes"


class _Rule(NamedTuple):
    """The first that fits counts. `context`, `problem`: how PyYAML's words of the error begin, "": any. `begins`: the
    line is the one in which it began, not the one in which it was noticed."""

    context: str
    problem: str
    words: str
    begins: bool = False


NO_COLON = "a colon and a space are missing after the key"
_RULES = (
    _Rule("while scanning a simple key", "", NO_COLON, begins=True),
    _Rule(
        "while parsing a flow", "", f"a [ or {{ is opened and never closed; if it belongs to the value, {_QUOTE}", True
    ),
    _Rule("while scanning a quoted scalar", "", "a quote is opened and never closed", begins=True),
    _Rule(
        "while scanning a double-quoted scalar",
        "",
        "in double quotes a \\ and what follows mean one special character, and there is none such; "
        "put the value in single quotes",
    ),
    _Rule(
        "while scanning a block scalar",
        "",
        f"after a | or > the text begins on the next line; if it belongs to the value, {_QUOTE}",
    ),
    _Rule("", "mapping values", f"a second colon in the value ({_QUOTE}), or spaces before the key (remove them)"),
    _Rule("", "found character '\\t'", "a tab where YAML needs spaces"),
    _Rule("", "found character", f"a value cannot begin with this character unless it is in quotes; {_QUOTE}"),
    _Rule(
        "while parsing a block node", "", f"a value cannot begin with this character unless it is in quotes; {_QUOTE}"
    ),
    _Rule("", "sequence entries", f"a value cannot begin with a dash and a space unless it is in quotes; {_QUOTE}"),
    _Rule(
        "",
        "expected '<document start>'",
        "the key has other spaces before it than the keys above; begin all lines alike",
    ),
    _Rule(
        "while parsing a block",
        "",
        "this is no `KEY: value` line; if there are quotes within the value, put quotes around all of it",
    ),
    _Rule(
        "expected a single document", "", "a line --- begins a second document, and a run.yaml is one; remove that line"
    ),
)
_ELSE = "this cannot be read as `KEY: value`; " + _QUOTE
_COLON = re.compile(r":(?:\s|\Z)")


def first_without_colon(data: bytes) -> int | None:
    """The number of the first line that says something, from 1, where no colon is in it: to YAML it and what follows
    are one text, up to the next colon, which is where an error is noticed."""
    for number, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1):
        said = line.partition(" #")[0].strip()
        if said and said != "---" and not said.startswith("#"):
            return None if _COLON.search(said) else number
    return None


def in_words(
    context: str, problem: str, begun: int | None, noticed: int | None, bare: int | None = None
) -> tuple[int | None, str]:
    """The number of the line to look at (from 1) and what is wrong there, of what PyYAML's `MarkedYAMLError` says:
    `begun` and `noticed` are its marks' line numbers, from 0. `bare`: what `first_without_colon` says of the file."""
    if bare is not None and problem.startswith(("mapping values", "expected '<document start>'")):
        return bare, NO_COLON
    for rule in _RULES:
        if context.startswith(rule.context) and problem.startswith(rule.problem):
            line = begun if rule.begins and begun is not None else noticed
            return None if line is None else line + 1, rule.words
    return None if noticed is None else noticed + 1, _ELSE
