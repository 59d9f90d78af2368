"""Finds the commander to speak to: on a state folder of this machine, or where the operator says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from relaytui.client.endpoint import Endpoint, clean_url
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.state import read_address, read_key

__all__ = [
    "local_endpoint", "read_address", "read_key", "remote_endpoint", "running_commander", "state_folder",
]  # fmt: skip

TOKEN_VARIABLE = "RELAY_TOKEN"  # noqa: S105 - the variable's name
SECRET_VARIABLE = "RELAY_SHARED_SECRET"  # noqa: S105 - the variable's name


def state_folder(given: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The state folder meant: as given, by RELAY_COMMANDER_STATE, or this user's own."""
    if given:
        return Path(given).expanduser()
    if named := environ.get("RELAY_COMMANDER_STATE"):
        return Path(named).expanduser()
    from platformdirs import user_state_path

    return user_state_path("relay-tui")


def local_endpoint(state: Path) -> Endpoint | None:
    """The endpoint that the state folder names, not yet asked whether it lives."""
    address, key = read_address(state), read_key(state)
    if address is None or key is None:
        return None
    return Endpoint(clean_url(address.url), _operator_token(key))


def remote_endpoint(url: str, state: Path, environ: Mapping[str, str] = os.environ) -> Endpoint:
    """The endpoint of `--connect URL`: its token from RELAY_TOKEN, the state folder's key or RELAY_SHARED_SECRET.

    The shared secret comes last as it lets one work, not operate.
    """
    where = clean_url(url)
    if token := environ.get(TOKEN_VARIABLE):
        return Endpoint(where, token)
    if key := read_key(state):
        return Endpoint(where, _operator_token(key))
    if secret := environ.get(SECRET_VARIABLE):
        return Endpoint(where, secret)
    raise RelayError(
        "no_token",
        f"no token for {where}",
        f"set {TOKEN_VARIABLE} (operator's token), or name the commander's state folder with --state",
        exit_code=Exit.AUTH,
    )


async def running_commander(state: Path) -> Endpoint | None:
    """The proven commander of this state folder, None where none runs.

    RelayError `unproven` where somebody else sits on the port that the folder names.
    """
    endpoint = local_endpoint(state)
    if endpoint is None:
        return None
    from relaytui.client.proving import open_session, prove_commander

    async with open_session(endpoint.url) as session:
        try:
            await prove_commander(session, endpoint)
        except RelayError as error:
            if error.code == "unreachable":
                return None
            raise
    return endpoint


def _operator_token(key: bytes) -> str:
    from relaytui.wire.proof import derived_token  # OpenSSL with it, for which no first frame and no --help waits

    return derived_token(key, "operator")
