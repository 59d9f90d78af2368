"""The state folder: private, owned by one commander at a time, with the key and the address for clients."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import tempfile
from pathlib import Path

from relaytui.commander.owner import LOCK_FILE, Owner
from relaytui.commander.store.content import FOLDER as ARTIFACTS
from relaytui.commander.store.database import RELAY, TELEMETRY, may_be_ours
from relaytui.commander.store.durable import set_aside, sync_folder
from relaytui.commander.store.filesystem import Probe, file_system, is_unsafe
from relaytui.commander.store.restore import finish
from relaytui.wire.codec import encode
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.files import must_be_plain, private_folder, state_error
from relaytui.wire.state import ADDRESS_FILE, KEY_BYTES, KEY_FILE, Address, read_address, read_key

log = logging.getLogger(__name__)

PRIVATE_FILES = (KEY_FILE, ADDRESS_FILE, *(name for schema in (RELAY, TELEMETRY) for name in schema.files))

OWN_NAMES = frozenset({LOCK_FILE, *PRIVATE_FILES, ARTIFACTS, "backups", "log", "serve.log"})
_OWN_STARTS = tuple(f"{name}." for name in PRIVATE_FILES)  # set aside, half written, being restored


class StateFolder:
    """Opened and locked until `close`."""

    def __init__(
        self,
        path: Path,
        *,
        new_key: bool = False,
        keyless: bool = False,
        allow_network: bool = False,
        probe: Probe | None = None,
    ) -> None:
        """RelayError (exit STATE) where the folder cannot be used, or another commander owns it.

        `new_key`, `allow_network`: the operator's word that a key that is lost or damaged is to be replaced, and that
        nobody else ever opens this folder over the network. `keyless`: the key is not looked at. `probe` tells a
        folder's file system.
        """
        self.path = path
        self._announced: Address | None = None
        self._written: tuple[int, ...] = ()
        self.key_made = False
        """Whether the key was made just now: nothing that was granted before can be proven by it."""
        _refuse_network(path, (probe or file_system)(path), allow_network)
        _make(path)
        self._lock = self._take()
        try:
            for name in PRIVATE_FILES:
                must_be_plain(path / name)
            finish(path)  # a restore that was cut short
            self.key = b"" if keyless else self._new_key() if new_key else self._key()
        except OSError as error:
            self.close()
            raise state_error(f"{path} cannot be used: {error.strerror}", "see its permissions and its disk") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._lock.close()

    def _take(self) -> Owner:
        try:
            return Owner(self.path)
        except BlockingIOError:
            raise RelayError(
                "held",
                f"{self.path} belongs to a commander that runs{self._owner()}",
                "stop it with `relay-tui stop`, attach to it with `relay-tui`, or name another folder (--state)",
                exit_code=Exit.STATE,
                status=503,
            ) from None
        except OSError as error:
            path = self.path / LOCK_FILE
            raise state_error(f"{path} cannot be written: {error.strerror}", "see its permissions") from None

    def _owner(self) -> str:
        try:
            address = read_address(self.path)
        except RelayError:
            return ""
        return f" (pid {address.pid}, {address.url})" if address is not None else ""

    def _key(self) -> bytes:
        """The folder's key; a new one where the folder itself is new."""
        path = self.path / KEY_FILE
        key = read_key(self.path)
        if key is None:
            left = [schema.file for schema in (RELAY, TELEMETRY) if may_be_ours(self.path / schema.file)]
            if left:
                # Another one would shut out every worker and dashboard that knows the tokens made of this one.
                raise state_error(
                    f"{path} is lost, and {self.path / left[0]} is there: all tokens are made of that key",
                    "give the file back from a backup of the folder, or make a new one with "
                    "`relay-tui serve --new-key` and give pods the new worker token",
                )
            return self._make_key()
        path.chmod(0o600)
        return key

    def _new_key(self) -> bytes:
        path = self.path / KEY_FILE
        try:
            whole = read_key(self.path) is not None
        except RelayError:
            set_aside(path, "damaged")
            whole = False
        if whole:
            raise state_error(
                f"{path} is there and whole", "leave out --new-key; to replace it on purpose, move it away first"
            )
        return self._make_key()

    def _make_key(self) -> bytes:
        key = secrets.token_bytes(KEY_BYTES)
        _write_private(self.path / KEY_FILE, key, durable=True)
        self.key_made = True
        return key

    def announce(self, address: Address) -> None:
        self._announced = address
        _write_private(self.path / ADDRESS_FILE, encode(address))
        self._written = self._stamp()

    def look(self) -> RelayError | None:
        """Whether it is still this commander's: what is wrong where it is not. Where it is and its address is gone or
        another's, it says it again."""
        trouble = self._lock.trouble()
        if trouble is None and self._announced is not None and self._stamp() != self._written:
            with contextlib.suppress(RelayError):  # a disk that is full; it looks again
                self.announce(self._announced)
                log.warning("%s was changed or deleted: it is written again", self.path / ADDRESS_FILE)
        return trouble

    def _stamp(self) -> tuple[int, ...]:
        """Of the file with the address, to see whether it was touched."""
        with contextlib.suppress(OSError):
            found = (self.path / ADDRESS_FILE).lstat()
            return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
        return ()

    def retract(self) -> None:
        # Where the folder was replaced, that of its new owner stays.
        with contextlib.suppress(OSError, RelayError):
            if read_address(self.path) == self._announced:
                (self.path / ADDRESS_FILE).unlink()


def _refuse_network(path: Path, kind: str, allowed: bool) -> None:
    if not is_unsafe(kind):
        return
    if not allowed:
        raise state_error(
            f"{path} lies on a network file system ({kind}): its locks may not hold, and databases break there",
            "name a folder on a local disk (--state), or set RELAY_ALLOW_NETWORK_STATE=1 where nothing else opens it",
        )
    log.warning("%s lies on a network file system (%s), on the operator's word", path, kind)


def _make(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise state_error(
            f"{path} is a file",
            "Relay keeps a folder: name one (RELAY_COMMANDER_STATE, --state), the file stays as it is",
        )
    try:
        private_folder(path)
        found = path.stat()
        if stat.S_IMODE(found.st_mode) & 0o077:
            if not (_is_ours(path) and found.st_uid == os.geteuid()):
                # Closing somebody's home folder to others because it was named by mistake would be rude.
                raise state_error(f"{path} is open to others and holds other files", "name a folder of its own")
            path.chmod(0o700)
    except OSError as error:
        raise state_error(f"{path} cannot be used: {error.strerror}", "see its permissions and its disk") from None


def _is_ours(path: Path) -> bool:
    """Whether it is a state folder, or one that holds nothing but what Relay puts there."""
    if (path / RELAY.file).exists() or (path / KEY_FILE).exists():
        return True
    return all(entry.name in OWN_NAMES or entry.name.lstrip(".").startswith(_OWN_STARTS) for entry in path.iterdir())


def _write_private(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Whole or not at all, readable by the owner alone. `durable`: a power cut does not undo it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise state_error(f"{path} cannot be written: {error.strerror}", "see the disk") from None
