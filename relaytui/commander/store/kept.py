"""The backups that a state folder keeps: where they lie and what they are called."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = "backups"
_NAME = re.compile(r"relay-([0-9]{8}T[0-9]{6}Z)(?:-([0-9]+))?\.db\Z")


def backups(state: Path) -> list[Path]:
    """Those of the state folder, newest first."""
    try:
        named = [(match, path) for path in (state / FOLDER).iterdir() if (match := _NAME.match(path.name))]
    except OSError:
        return []
    named.sort(key=lambda pair: (pair[0][1], int(pair[0][2] or 1)), reverse=True)
    return [path for _, path in named]


def made_at(backup: Path) -> str:
    """When, as `durable.stamp` writes it: such times sort by age."""
    match = _NAME.match(backup.name)
    return match[1] if match else ""
