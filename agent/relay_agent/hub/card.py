"""The model card: what Relay says in it, and only between its own two markers; the words of people stay. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

BEGIN = "<!-- relay: from here to the end marker is written by Relay, and written anew with each checkpoint -->"
END = "<!-- relay: end -->"
HEADING = "## Training"
"""What the section begins with; a table follows."""
OWNED = ("base_model", "library_name", "tags")
"""Keys of the head that Relay may add. What is there already stays as it is."""
TAG = "relay"
MAX_CARD = 1 << 20
_FENCE = re.compile(r"\s*(`{3,}|~{3,})([^\r\n]*)")
"""Of a block of code."""
_HEAD = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?\r?\n)??---[ \t]*(?:\r?\n|\Z)", re.S)


def updated(old: str | None, section: str, fields: Mapping[str, str | list[str]]) -> str:
    """The card with `section` between the markers, and with those of `fields` that Relay owns and nobody has set.

    Where there are no markers yet the section comes at the end; where one was removed, or stands there twice, what
    people wrote stays. A head that is no YAML is left alone.
    """
    body = BEGIN + "\n" + section.strip().replace(BEGIN, "").replace(END, "") + "\n" + END
    if old is None or not old.strip():
        return _head({}, fields) + "\n" + body + "\n"
    lines = _with_head(old, fields).splitlines(keepends=True)
    if (ours := _place(lines)) is None:
        return "".join(lines) + ("" if lines[-1].endswith("\n") else "\n") + "\n" + body + "\n"
    first, last = ours
    after = lines[last][len(lines[last].rstrip("\r\n")) :]
    return "".join(lines[:first]) + body + (after or "\n") + "".join(lines[last + 1 :])


def _place(lines: Sequence[str]) -> tuple[int, int] | None:
    """The first and the last line of Relay's own. A marker alone takes nothing with it but what Relay wrote."""
    marks = _marks(lines)
    pairs = [(one, two) for (one, what), (two, then) in pairwise(marks) if (what, then) == (BEGIN, END)]
    if pairs:
        own = [pair for pair in pairs if _section_below(lines, pair[0]) + 1 == pair[1]]
        return (own or pairs)[-1]
    if begins := [at for at, what in marks if what == BEGIN]:
        return begins[-1], _section_below(lines, begins[-1])
    if marks:
        end = marks[-1][0]
        return _section_above(lines, end), end
    return None


def _marks(lines: Sequence[str]) -> list[tuple[int, str]]:
    """Markers that stand on a line of their own, in no block of code. A block that nobody closes hides nothing."""
    found: list[tuple[int, str]] = []
    at, open_at, fence, before = 0, -1, "", 0
    never: dict[str, int] = {}  # of each sign, how long a block has to be that nobody closes
    while at < len(lines) or fence:
        if at == len(lines):
            never[fence[0]] = len(fence) if len(never) < 2 and fence[0] not in never else 0
            del found[before:]
            at, fence = open_at + 1, ""
            continue
        line = lines[at]
        match = _FENCE.match(line)
        if fence:
            if match and match[1].startswith(fence) and not match[2].strip():
                fence = ""
        elif match and _opens(match) and len(match[1]) < never.get(match[1][0], MAX_CARD):
            open_at, fence, before = at, match[1], len(found)
        elif line.strip() in (BEGIN, END) and len(line) - len(line.lstrip(" ")) < 4 and not line.startswith("\t"):
            found.append((at, line.strip()))
        at += 1
    return found


def _opens(match: re.Match[str]) -> bool:
    return not (match[1][0] == "`" and "`" in match[2])


def _section_below(lines: Sequence[str], begin: int) -> int:
    """The last line of what Relay wrote below `begin`; `begin` where that is not all that stands there."""
    at = begin + 1
    if at + 1 >= len(lines) or lines[at].strip() != HEADING or lines[at + 1].strip():
        return begin
    at += 2
    while at < len(lines) and lines[at].startswith("|"):
        at += 1
    return at - 1


def _section_above(lines: Sequence[str], end: int) -> int:
    """The first line of what Relay wrote above `end`, or `end`."""
    at = end - 1
    while at >= 0 and lines[at].startswith("|"):
        at -= 1
    written = 1 <= at < end - 1 and not lines[at].strip() and lines[at - 1].strip() == HEADING
    return at - 1 if written else end


def _with_head(old: str, fields: Mapping[str, str | list[str]]) -> str:
    match = _HEAD.match(old)
    if match is None:
        head = _head({}, fields)
        return f"{head}\n{old}" if head else old
    import yaml  # in the child alone: the agent only fills the table

    inner = match[1] or ""
    try:
        known = yaml.safe_load(inner) or {}
    except (yaml.YAMLError, RecursionError, ValueError):
        return old
    if not isinstance(known, dict):
        return old
    added = {key: value for key, value in fields.items() if key in OWNED and key not in known and value}
    if not added:
        return old
    at = match.start(1) + len(inner) if match[1] is not None else old.index("\n") + 1
    return old[:at] + _yaml(added) + old[at:]


def _head(known: Mapping[str, object], fields: Mapping[str, str | list[str]]) -> str:
    given = {key: value for key, value in fields.items() if key in OWNED and key not in known and value}
    return f"---\n{_yaml(given)}---\n" if given else ""


def _yaml(values: Mapping[str, object]) -> str:
    import yaml

    return str(yaml.safe_dump(dict(values), default_flow_style=False, allow_unicode=True, sort_keys=True))


def cell(text: str) -> str:
    """For a table in Markdown, whatever it holds."""
    plain = " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|").replace("`", "'")
    return plain.replace("[", "\\[").replace("]", "\\]")[:200]


def table(rows: Mapping[str, str]) -> str:
    """Two columns, without those that hold nothing."""
    lines = [f"| {cell(name)} | {cell(value)} |" for name, value in rows.items() if value]
    return "\n".join(["| | |", "|---|---|", *lines])
