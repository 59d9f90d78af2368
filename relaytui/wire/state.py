"""The state folder as clients see it: where a running commander says its address, and the key both sides know."""

from __future__ import annotations

from msgspec import Struct

KEY_FILE = "key"  # 32 random bytes, 0600, made at the first start
ADDRESS_FILE = "commander.json"  # an Address, 0600, while a commander runs


class Address(Struct, frozen=True):
    url: str
    pid: int
    version: str
    started_at: float
