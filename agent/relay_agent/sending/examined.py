"""What `relay-agent doctor` says of one way off the pod."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Word(NamedTuple):
    level: Literal["ok", "warn", "fail"]
    why: str
    todo: str = ""
