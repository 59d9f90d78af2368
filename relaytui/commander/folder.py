"""The state folder: private, owned by one commander at a time, with the key and the address for clients."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import tempfile
from pathlib import Path

from relaytui.commander.store.database import RELAY, refuse_network
from relaytui.wire.codec import decode, encode
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.state import ADDRESS_FILE, KEY_FILE, Address

LOCK_FILE = "lock"


def state_error(message: str, hint: str) -> RelayError:
    return RelayError("state_unusable", message, hint, exit_code=Exit.STATE)


class StateFolder:
    """Opened and locked until `close`."""

    def __init__(self, path: Path) -> None:
        """RelayError (exit STATE) where the folder cannot be used, or another commander owns it."""
        self.path = path
        _make(path)
        self._lock = self._take_lock()
        try:
            self.key = self._read_key()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._lock)

    def _take_lock(self) -> int:
        try:
            lock = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise state_error(f"{self.path} cannot be written: {error.strerror}", "see its permissions") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise state_error(
                f"{self.path} belongs to a commander that runs{self._owner()}",
                "attach to it with relay-tui, stop it first, or name another folder (--state)",
            ) from None
        return lock

    def _owner(self) -> str:
        try:
            address = decode((self.path / ADDRESS_FILE).read_bytes(), Address)
        except (OSError, RelayError):
            return ""
        return f" (pid {address.pid}, {address.url})"

    def _read_key(self) -> bytes:
        path = self.path / KEY_FILE
        if not path.exists():
            _write_private(path, secrets.token_bytes(32))
        try:
            key = path.read_bytes()
        except OSError as error:
            raise state_error(f"{path} cannot be read: {error.strerror}", "see its permissions") from None
        if len(key) != 32:
            raise state_error(
                f"{path} is not a Relay key ({len(key)} bytes)", "restore it, or remove it: tokens change"
            )
        path.chmod(0o600)
        return key

    def announce(self, address: Address) -> None:
        _write_private(self.path / ADDRESS_FILE, encode(address))

    def retract(self) -> None:
        with contextlib.suppress(OSError):
            (self.path / ADDRESS_FILE).unlink()


def _make(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise state_error(
            f"{path} is a file",
            "Relay keeps a folder: name one (RELAY_COMMANDER_STATE, --state), the file stays as it is",
        )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_network(path)
        found = path.stat()
        if stat.S_IMODE(found.st_mode) & 0o077:
            ours = (path / RELAY.file).exists() or (path / KEY_FILE).exists() or not any(path.iterdir())
            if not ours:
                # Closing somebody's home folder to others because it was named by mistake would be rude.
                raise state_error(f"{path} is open to others and holds other files", "name a folder of its own")
            path.chmod(0o700)
    except OSError as error:
        raise state_error(f"{path} cannot be used: {error.strerror}", "see its permissions and its disk") from None


def _write_private(path: Path, data: bytes) -> None:
    """Whole or not at all, readable by the owner alone."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise state_error(f"{path} cannot be written: {error.strerror}", "see the disk") from None
