"""The two databases of a state folder, opened in the order that leases need: telemetry never stands in their way."""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from relaytui.commander.store.database import RELAY, SIDE_FILES, TELEMETRY, open_database
from relaytui.commander.store.durable import set_aside
from relaytui.commander.store.errors import DAMAGED, damaged
from relaytui.wire.errors import RelayError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """`notes`: (kind, message) of what the history should say."""

    relay: sqlite3.Connection
    telemetry: sqlite3.Connection
    notes: tuple[tuple[str, str], ...] = ()


def open_databases(folder: Path) -> Opened:
    """RelayError (exit STATE) where relay.db cannot be used; a damaged telemetry.db is set aside and begun anew."""
    relay_path, telemetry_path = folder / RELAY.file, folder / TELEMETRY.file
    if not _holds_something(relay_path) and _holds_something(telemetry_path):
        # A new history would not know the leases that are held, and count epochs from 1 again.
        raise damaged(relay_path, f"it is empty or missing, and {telemetry_path} beside it is not")
    relay = open_database(relay_path, RELAY)
    try:
        try:
            return Opened(relay, open_database(telemetry_path, TELEMETRY))
        except RelayError as error:
            if error.code != DAMAGED:
                raise
            aside = set_aside(telemetry_path, "damaged", SIDE_FILES)
            message = f"{error.message}: set aside as {aside.name}, steps and log lines begin anew"
            log.warning("%s", message)
            return Opened(relay, open_database(telemetry_path, TELEMETRY), (("commander.telemetry_replaced", message),))
    except BaseException:
        relay.close()
        raise


def _holds_something(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
