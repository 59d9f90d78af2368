"""What comes with a request and goes out as its answer: JSON bodies, numbers of a query, who acts."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from aiohttp import hdrs, web

from relaytui.wire.codec import convert, encode, parse, refuse_twins
from relaytui.wire.errors import RelayError
from relaytui.wire.text import clean

T = TypeVar("T")
ACTOR_HEADER = "X-Relay-Actor"
BODY_WITHIN = 30.0
"""Seconds for a JSON body to come in, whole."""


def answer(body: Any) -> web.Response:
    return web.Response(body=encode(body), content_type="application/json")


async def body_of(request: web.Request, kind: type[T], *, bad_json: int = 400) -> T:
    """The request's JSON body as `kind`; RelayError 4xx says what is wrong with it."""
    if any(value.strip().lower() != "identity" for value in request.headers.getall(hdrs.CONTENT_ENCODING, [])):
        raise RelayError("bad_encoding", "a compressed body", "send it as it is", status=415)
    try:
        async with asyncio.timeout(BODY_WITHIN):
            data = await request.read()
    except TimeoutError:
        message = f"the body did not come within {BODY_WITHIN:g} s"
        raise RelayError("stalled", message, "send as much as Content-Length says", status=408) from None
    try:
        plain = parse(data)
        refuse_twins(data)
    except RelayError as error:
        error.status = bad_json
        raise
    if not isinstance(plain, dict):
        raise RelayError("bad_field", "the body is not an object", "send one JSON object", status=422)
    return convert(plain, kind)


def query_int(request: web.Request, name: str, default: int | None, low: int, high: int) -> int | None:
    raw = request.query.get(name)
    if raw is None:
        return default
    if not raw.isascii() or not raw.isdigit() or len(raw) > 16:
        raise RelayError("bad_field", f"{name} is not a whole number", f"give {low} to {high}", status=422)
    return min(max(int(raw), low), high)


def actor_of(request: web.Request) -> str:
    return clean(request.headers.get(ACTOR_HEADER, ""), 128).strip() or "operator"
