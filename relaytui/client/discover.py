"""Finds the commander to speak to: on a state folder of this machine, or where the operator says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from relaytui.client.endpoint import Endpoint, clean_url
from relaytui.wire.codec import decode
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.proof import derived_token
from relaytui.wire.state import ADDRESS_FILE, KEY_FILE, Address

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


def read_key(state: Path) -> bytes | None:
    """The state folder's key, None where there is none; RelayError `state` where it cannot be read."""
    try:
        return (state / KEY_FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(state / KEY_FILE, error) from None


def read_address(state: Path) -> Address | None:
    """Where the folder's commander says it is; None where none runs. It may have died without taking this back."""
    path = state / ADDRESS_FILE
    try:
        return decode(path.read_bytes(), Address)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(path, error) from None
    except RelayError as error:
        raise RelayError(
            "state",
            f"{path} does not say where a commander is: {error.message}",
            "stop the commander of this folder, remove the file and start again",
            exit_code=Exit.STATE,
        ) from None


def local_endpoint(state: Path) -> Endpoint | None:
    """The endpoint that the state folder names, not yet asked whether it lives."""
    address, key = read_address(state), read_key(state)
    if address is None or key is None:
        return None
    return Endpoint(clean_url(address.url), derived_token(key, "operator"))


def remote_endpoint(url: str, state: Path, environ: Mapping[str, str] = os.environ) -> Endpoint:
    """The endpoint of `--connect URL`: its token from RELAY_TOKEN, the state folder's key or RELAY_SHARED_SECRET.

    The shared secret comes last as it lets one work, not operate.
    """
    where = clean_url(url)
    if token := environ.get(TOKEN_VARIABLE):
        return Endpoint(where, token)
    if key := read_key(state):
        return Endpoint(where, derived_token(key, "operator"))
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

    async with open_session() as session:
        try:
            await prove_commander(session, endpoint)
        except RelayError as error:
            if error.code == "unreachable":
                return None
            raise
    return endpoint


def _unreadable(path: Path, error: OSError) -> RelayError:
    return RelayError(
        "state",
        f"{path} cannot be read: {error.strerror}",
        "check whose folder it is, or name another with --state",
        exit_code=Exit.STATE,
    )
