"""The state folder as clients see it: where a running commander says its address, and the key both sides know."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from relaytui.wire.codec import decode
from relaytui.wire.errors import RelayError
from relaytui.wire.files import first_bytes, read_plain, state_error
from relaytui.wire.text import counted

KEY_FILE = "key"  # 32 random bytes, 0600, made at the first start
KEY_BYTES = 32
ADDRESS_FILE = "commander.json"  # an Address, 0600, while a commander runs
ADDRESS_LIMIT = 65_536


class Address(Struct, frozen=True):
    url: str
    pid: int
    version: str
    started_at: float


def read_key(state: Path) -> bytes | None:
    """The state folder's key, None where there is none; RelayError where it is no key."""
    path = state / KEY_FILE
    key = first_bytes(path, KEY_BYTES)
    if key is not None and len(key) != KEY_BYTES:
        hint = "give the key back from a backup of the folder, or make a new one: `relay-tui serve --new-key`"
        size = counted(len(key), "byte") if len(key) < KEY_BYTES else "too long"
        raise state_error(f"{path} is not a Relay key ({size})", hint)
    return key


def read_address(state: Path) -> Address | None:
    """Where the folder's commander says it is; None where none runs. It may have died without taking this back."""
    path = state / ADDRESS_FILE
    data = read_plain(path, ADDRESS_LIMIT)
    if data is None:
        return None
    try:
        return decode(data, Address)
    except RelayError as error:
        raise state_error(
            f"{path} does not say where a commander is: {error.message}",
            "stop the commander of this folder, remove the file and start again",
        ) from None
