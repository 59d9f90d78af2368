"""Columns of a table from the fields of its record, so that the two cannot drift apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import fields

R = TypeVar("R", bound=Struct)


def record(kind: type[R], row: Sequence[Any]) -> R:
    """The record in a row whose columns are in the order of its fields; a value of the wrong type is an error."""
    return msgspec.convert(dict(zip(kind.__struct_fields__, row, strict=True)), kind, strict=False)


def columns(record: type[Struct], renamed: dict[str, str] | None = None) -> list[str]:
    """Names of the record's fields, in order, as the table calls them."""
    names = renamed or {}
    return [names.get(field.name, field.name) for field in fields(record)]


def upsert(table: str, names: list[str], key: list[str]) -> str:
    """An INSERT that replaces every column but the key's when the row is there."""
    marks = ", ".join("?" * len(names))
    changed = ", ".join(f"{name}=excluded.{name}" for name in names if name not in key)
    return (
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks}) "  # noqa: S608 - names are ours
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changed}"
    )


def select(table: str, names: list[str], rest: str = "") -> str:
    return f"SELECT {', '.join(names)} FROM {table} {rest}"  # noqa: S608 - names are ours
