"""What YAML's errors mean in a run.yaml, in words that say what to do. None of them repeats what stands in the file."""

from __future__ import annotations

from typing import NamedTuple

_QUOTE = "put the value in quotes"


class _Rule(NamedTuple):
    """The first that fits counts. `context`, `problem`: how PyYAML's words of the error begin, "": any. `begins`: the
    line is the one in which it began, not the one in which it was noticed."""

    context: str
    problem: str
    words: str
    begins: bool = False


_RULES = (
    _Rule("while scanning a simple key", "", "no colon with a space after it follows the key", begins=True),
    _Rule("while parsing a flow", "", f"a [ or {{ begins a list that does not end; {_QUOTE}", begins=True),
    _Rule("while scanning a quoted scalar", "", "a quote is opened and never closed", begins=True),
    _Rule(
        "while scanning a double-quoted scalar",
        "",
        "a \\ in double quotes begins a character's name that there is none of; use single quotes",
    ),
    _Rule("while scanning a block scalar", "", f"a | or > begins a text of several lines; {_QUOTE}"),
    _Rule("", "mapping values", f"a second colon, or a key that is not at the start of its line; {_QUOTE}"),
    _Rule("", "found character '\\t'", "a tab where YAML has spaces"),
    _Rule("", "found character", f"no value may begin with that character; {_QUOTE}"),
    _Rule("while parsing a block node", "", f"no value may begin with that character; {_QUOTE}"),
    _Rule("", "sequence entries", f"a value that begins with a dash and a space; {_QUOTE}"),
    _Rule("", "expected '<document start>'", "a key that is not at the start of its line, as the ones before are"),
    _Rule(
        "while parsing a block",
        "",
        "no `KEY: value` line; a value with quotes in it belongs in quotes as a whole",
    ),
    _Rule("expected a single document", "", "a line --- begins a second list of keys"),
)
_ELSE = "it cannot be read as `KEY: value`; " + _QUOTE


def in_words(context: str, problem: str, begun: int | None, noticed: int | None) -> tuple[int | None, str]:
    """The number of the line to look at (from 1) and what is wrong there, of what PyYAML's `MarkedYAMLError` says:
    `begun` and `noticed` are its marks' line numbers, from 0."""
    for rule in _RULES:
        if context.startswith(rule.context) and problem.startswith(rule.problem):
            line = begun if rule.begins and begun is not None else noticed
            return None if line is None else line + 1, rule.words
    return None if noticed is None else noticed + 1, _ELSE
