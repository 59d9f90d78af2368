"""The one shape in which errors are answered, whoever found them: a service, a route, or aiohttp itself."""

from __future__ import annotations

from aiohttp import hdrs, web

from relaytui.wire.codec import encode
from relaytui.wire.errors import RelayError
from relaytui.wire.text import clean, sayable

ORIGINAL = frozenset({"/api/lease/acquire", "/api/lease/renew", "/api/job/report"})


def fault_of(error: RelayError) -> dict[str, object]:
    return {"error": {"code": error.code, "message": sayable(error.message), "hint": sayable(error.hint)}}


def error_response(error: RelayError, path: str = "") -> web.Response:
    body = fault_of(error)
    if path in ORIGINAL:
        body["detail"] = sayable(str(error))  # where the original's workers look
    return web.Response(body=encode(body), status=error.status, content_type="application/json")


def of_http(error: web.HTTPException, path: str = "") -> web.Response:
    """An answer that aiohttp gives by raising it."""
    hint = "see docs/api.md" if error.status in (404, 405) else ""
    response = error_response(RelayError(f"http_{error.status}", error.reason.lower(), hint, status=error.status), path)
    if hdrs.ALLOW in error.headers:
        response.headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
    return response


def bad_request(said: object, status: int = 400) -> web.Response:
    """To what is no HTTP, or a body that breaks off or is no body."""
    message = clean(str(said).partition("\n")[0].strip().rstrip(":"), 200) or "not a request"
    return error_response(RelayError("bad_request", message, "send HTTP/1.1", status=status))
