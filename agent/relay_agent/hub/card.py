"""The model card: what Relay says in it, and only between its own two markers; the words of people stay. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

BEGIN = "<!-- relay: from here to the end marker is written by Relay, and written anew with each checkpoint -->"
END = "<!-- relay: end -->"
OWNED = ("base_model", "library_name", "tags")
"""Keys of the head that Relay may add. What is there already stays as it is."""
TAG = "relay"
MAX_CARD = 1 << 20
_HEAD = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?\r?\n)??---[ \t]*(?:\r?\n|\Z)", re.S)


def updated(old: str | None, section: str, fields: Mapping[str, str | list[str]]) -> str:
    """The card with `section` between the markers, and with those of `fields` that Relay owns and nobody has set.

    Where there are no markers yet the section comes at the end. A head that is no YAML is left alone.
    """
    body = BEGIN + "\n" + section.strip().replace(BEGIN, "").replace(END, "") + "\n" + END
    if old is None or not old.strip():
        return _head({}, fields) + "\n" + body + "\n"
    text = _with_head(old, fields)
    begin, end = text.find(BEGIN), text.find(END)
    if 0 <= begin < end:
        return text[:begin] + body + text[end + len(END) :]
    return text + ("" if text.endswith("\n") else "\n") + "\n" + body + "\n"


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
