"""The address that a commander serves at: where it is, the socket there, and who has it where that is somebody else."""

from __future__ import annotations

import errno
import secrets
import socket
import time
from ipaddress import ip_address
from typing import Any

from relaytui.wire.codec import parse
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.proof import CHALLENGE_HEADER, derived_token, proof_key, proven

BACKLOG = 128
ASK_WITHIN = 1.0
"""Seconds for who has the port to say who it is; a commander takes milliseconds."""
MOST_BYTES = 65_536


def located(
    host: str, port: int, named: str = "RELAY_HOST"
) -> tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]:
    """What the system takes `host` for; RelayError (exit UNAVAILABLE) where it knows no such address. `named`: what
    named it."""
    name = "127.0.0.1" if host == "localhost" else host
    try:
        return socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise _unavailable(f"{host} is no address of this machine: {error.strerror}", f"see {named}") from None


def listen(host: str, port: int, named: str = "RELAY_HOST", key: bytes | None = None) -> socket.socket:
    """A listening socket; RelayError (exit UNAVAILABLE) names the address and what to do. `named`: what named it.
    `key`: the state folder's, if there is one. Where the port is taken this waits up to ASK_WITHIN."""
    family, kind, proto, _, address = located(host, port, named)
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            whose, hint = _who_has(str(address[0]), port, key)
            raise _unavailable(f"port {port} on {host} is taken{whose}", hint) from None
        hint = "name another with --port" if error.errno == errno.EACCES else f"see {named} and the port"
        raise _unavailable(f"cannot listen on {host} port {port}: {error.strerror}", hint) from None
    listener.setblocking(False)
    return listener


def address_of(host: str, port: int) -> str:
    """Where clients on this machine find a commander bound to `host`."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{name}:{port}"


def _unavailable(message: str, hint: str) -> RelayError:
    return RelayError("address_unavailable", message, hint, exit_code=Exit.UNAVAILABLE)


# -- who has it ----------------------------------------------------------------------------------------------------


def _who_has(address: str, port: int, key: bytes | None) -> tuple[str, str]:
    """In words behind `is taken`, and what to do."""
    another = "name another with --port (0 takes a free one)"
    at = ip_address(address)
    if not (at.is_loopback or at.is_unspecified):  # nothing is asked that is not on this machine
        return "", another
    host = address_of(address, port).removeprefix("http://")
    nonce = secrets.token_hex(32)
    try:
        health = parse(_health(host, nonce))
    except (OSError, RelayError):
        return "", another
    if not isinstance(health, dict) or health.get("name") != "relay":
        return "", another
    proofs = health.get("proof")
    said = [one for one in proofs.values() if isinstance(one, str)] if isinstance(proofs, dict) else []
    if key is not None and any(proven(proof_key(derived_token(key, "operator")), nonce, host, one) for one in said):
        return " by the commander of this state folder", "`relay-tui` attaches to it, `relay-tui stop` stops it"
    return " by a Relay commander of another state folder", f"{another}, or that commander's folder with --state"


def _health(host: str, nonce: str) -> bytes:
    """The body of what it answers within ASK_WITHIN, as far as it came. OSError where it does not."""
    until = time.monotonic() + ASK_WITHIN
    name, _, port = host.rpartition(":")
    asked = f"GET /api/health HTTP/1.1\r\nHost: {host}\r\n{CHALLENGE_HEADER}: {nonce}\r\nConnection: close\r\n\r\n"
    answer = b""
    with socket.create_connection((name.strip("[]"), int(port)), ASK_WITHIN) as connection:
        connection.sendall(asked.encode())
        while len(answer) < MOST_BYTES and (left := until - time.monotonic()) > 0:
            connection.settimeout(left)
            if not (piece := connection.recv(MOST_BYTES)):
                break
            answer += piece
    return answer.partition(b"\r\n\r\n")[2]
