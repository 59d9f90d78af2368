"""JSON in and out: orjson decodes, msgspec validates. The only place that does either for the wire."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec
import orjson

from relaytui.wire.errors import RelayError
from relaytui.wire.text import clean

T = TypeVar("T")


def encode(message: Any) -> bytes:
    """A message, or anything built of them and plain values, as UTF-8 JSON."""
    return orjson.dumps(message, default=msgspec.to_builtins)


def parse(data: bytes | str) -> Any:
    """Plain values from JSON; RelayError `bad_json` where it is none (too deep and NaN included)."""
    try:
        return orjson.loads(data)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise RelayError("bad_json", f"body is not JSON: {clean(str(error), 200)}", "send one JSON object") from None


def refuse_twins(data: bytes) -> None:
    """RelayError `bad_json` where an object of this JSON says one key twice: which one was meant is not guessed."""

    def pairs(found: list[tuple[str, Any]]) -> None:
        names = set[str]()
        for name, _ in found:
            if name in names:
                raise RelayError("bad_json", f"the key {clean(name, 80)!a} is there twice", "say each once")
            names.add(name)

    try:
        json.loads(data.decode(), object_pairs_hook=pairs, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise RelayError("bad_json", f"body is not JSON: {clean(str(error), 200)}", "send one JSON object") from None


def convert(value: Any, kind: type[T]) -> T:
    """Plain values as the type they should be; RelayError `bad_field` names the field that is not."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RelayError(
            "bad_field", clean(str(error), 300), "see the API page for fields and types", status=422
        ) from None


def decode(data: bytes | str, kind: type[T]) -> T:
    return convert(parse(data), kind)
