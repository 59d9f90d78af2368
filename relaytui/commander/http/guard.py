"""Who may ask at all: Host, Origin, token."""

from __future__ import annotations

import logging

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from relaytui.commander.http.door import Connection
from relaytui.commander.http.faults import ORIGINAL, bad_request, error_response, of_http
from relaytui.commander.settings import CommanderSettings
from relaytui.wire.errors import RelayError
from relaytui.wire.original import SECRET_HEADER
from relaytui.wire.proof import Role, derived_token, proof_key, prove, same_token, token_hash

log = logging.getLogger(__name__)

WORKER_PATHS = ORIGINAL | {"/ws/agent", "/api/whoami"}
WORKER_BELOW = "/api/artifacts"
"""There and below each route looks at who asks."""
OPEN_PATHS = frozenset({"/api/health"})
ROLE: web.RequestKey[Role] = web.RequestKey("role", str)  # type: ignore[arg-type]


class Credentials:
    """Hashes of the tokens that open the door, and the keys this commander proves itself with."""

    def __init__(self, state_key: bytes, shared_secret: str | None) -> None:
        self._operator = derived_token(state_key, "operator")
        self._worker = shared_secret or derived_token(state_key, "worker")
        self._hashes: tuple[tuple[Role, bytes], ...] = (
            ("operator", token_hash(self._operator)),
            ("worker", token_hash(self._worker)),
        )
        self._keys: dict[Role, bytes] = {}

    def stretch(self) -> None:
        """Slow on purpose (100,000 rounds each): called once at the start, in a thread."""
        self._keys = {"operator": proof_key(self._operator), "worker": proof_key(self._worker)}

    def role(self, presented: str) -> Role | None:
        found: Role | None = None
        for role, hashed in self._hashes:  # both, always: the time says nothing
            if same_token(presented, hashed) and found is None:
                found = role
        return found

    def proof(self, nonce: str, host: str) -> dict[str, str]:
        return {role: prove(key, nonce, host) for role, key in self._keys.items()}


def served_hosts(settings: CommanderSettings, port: int) -> frozenset[str]:
    """Every Host header that is ours, in lower case."""
    bound = f"[{settings.host}]" if ":" in settings.host else settings.host.lower()
    names = {f"{name}:{port}" for name in (bound, "localhost", "127.0.0.1", "[::1]")}
    if port == 80:
        names |= {name.rpartition(":")[0] for name in set(names)}
    return frozenset(names | set(settings.public_hosts))


def _presented(request: web.Request) -> str | None:
    """The one token in the headers; None where there is none, or more than one to choose from."""
    found = [value.strip() for value in request.headers.getall(SECRET_HEADER, [])]
    for value in request.headers.getall(hdrs.AUTHORIZATION, []):
        scheme, _, token = value.partition(" ")
        found.append(token.strip() if scheme.lower() == "bearer" else "")
    if len(found) != 1 or not found[0]:
        return None
    return found[0]


def _for_workers(path: str) -> bool:
    return path in WORKER_PATHS or path == WORKER_BELOW or path.startswith(f"{WORKER_BELOW}/")


def guard(credentials: Credentials, hosts: frozenset[str]) -> Middleware:
    origins = frozenset(f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts)

    def admit(request: web.Request) -> None:
        named = request.headers.getall(hdrs.HOST, [])
        if len(named) != 1 or named[0].lower() not in hosts:
            raise RelayError(
                "wrong_host", "this commander does not serve that host name",
                "add it to RELAY_PUBLIC_HOSTS where it is yours", status=421,
            )  # fmt: skip
        origin = request.headers.getall(hdrs.ORIGIN, [])
        if origin and (len(origin) != 1 or origin[0].lower() not in origins):
            raise RelayError("wrong_origin", "a page of another origin may not ask here", status=403)
        if request.path in OPEN_PATHS:
            return
        token = _presented(request)
        role = credentials.role(token) if token is not None else None
        if role is None:
            hint = "send `Authorization: Bearer TOKEN` or X-Relay-Secret"
            raise RelayError("unauthorized", "no valid token" if token else "a token is needed", hint, status=401)
        if role == "worker" and not _for_workers(request.path):
            raise RelayError("forbidden", "a worker's token may not do this", "use the operator's token", status=403)
        request[ROLE] = role
        if isinstance(request.protocol, Connection):
            request.protocol.known(role)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if isinstance(request.protocol, Connection):
                request.protocol.asked()
            admit(request)
            return await handler(request)
        except RelayError as error:
            return error_response(error, request.path)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return of_http(error, request.path)
        except web.RequestPayloadError as error:
            return bad_request(error.__cause__ or error)
        except (ConnectionError, TimeoutError):
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            broken = RelayError("internal", "the commander failed at this", "see its log", status=500)
            return error_response(broken, request.path)

    return middleware
