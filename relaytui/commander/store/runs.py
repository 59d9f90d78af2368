"""Runs and their newest leases."""

from __future__ import annotations

import orjson
from msgspec.structs import astuple

from relaytui.commander.model.lease import Lease
from relaytui.commander.model.run import Run
from relaytui.commander.store.changes import LeaseExtended, LeaseSaved, RunSaved
from relaytui.commander.store.columns import columns, record, select, upsert
from relaytui.commander.store.writer import Tx

_RUN = columns(Run)
_GET_RUN = select("runs", _RUN, "WHERE run_id = ?")
_ALL_RUNS = select("runs", _RUN)
_SAVE_RUN = upsert("runs", _RUN, ["run_id"])

_LEASE = columns(Lease)
_GET_LEASE = select("leases", _LEASE, "WHERE run_id = ?")
_ALL_LEASES = select("leases", _LEASE)
_DUE = select("leases", _LEASE, "WHERE state IN ('held', 'revoked') AND expires <= ?")
_LIVE = select("leases", _LEASE, "WHERE state IN ('held', 'revoked')")
_SAVE_LEASE = upsert("leases", _LEASE, ["run_id"])
_EXTEND = (
    "UPDATE leases SET expires = max(expires, ?), boot_id = ?, grace = 0 "
    "WHERE run_id = ? AND epoch = ? AND token_hash = ? AND state = 'held'"
)
# SQLite 3.40 has no unhex: the stored hashes are turned to hex instead, a few microseconds for a whole batch.
_ASKED = (
    "(WITH asked AS MATERIALIZED (SELECT value ->> 0 AS run_id, value ->> 1 AS epoch, value ->> 2 AS hash "
    "FROM json_each(?)) SELECT * FROM asked) AS asked "
    "WHERE leases.run_id = asked.run_id AND leases.epoch = asked.epoch AND hex(leases.token_hash) = asked.hash "
    "AND state = 'held'"
)
_EXTEND_MANY = f"UPDATE leases SET expires = max(expires, ?), boot_id = ?, grace = 0 FROM {_ASKED}"  # noqa: S608 - ours
_HELD = f"SELECT leases.run_id, leases.epoch, leases.token_hash FROM leases, {_ASKED}"  # noqa: S608 - ours

Claim = tuple[str, int, bytes]
"""(run id, epoch, hash of the token) of who asks for a renewal."""


def get(tx: Tx, run_id: str) -> Run | None:
    row = tx.execute(_GET_RUN, (run_id,)).fetchone()
    return None if row is None else record(Run, row)


def count(tx: Tx) -> int:
    return int(tx.execute("SELECT count(*) FROM runs").fetchone()[0])


def everything(tx: Tx) -> list[Run]:
    return [record(Run, row) for row in tx.execute(_ALL_RUNS)]


def save(tx: Tx, run: Run) -> Run:
    tx.execute(_SAVE_RUN, astuple(run))
    tx.changes.append(RunSaved(run))
    return run


def get_lease(tx: Tx, run_id: str) -> Lease | None:
    row = tx.execute(_GET_LEASE, (run_id,)).fetchone()
    return None if row is None else record(Lease, row)


def all_leases(tx: Tx) -> list[Lease]:
    return [record(Lease, row) for row in tx.execute(_ALL_LEASES)]


def live_leases(tx: Tx) -> list[Lease]:
    """Those somebody may still be training under."""
    return [record(Lease, row) for row in tx.execute(_LIVE)]


def any_held(tx: Tx) -> bool:
    return tx.execute("SELECT 1 FROM leases WHERE state = 'held' LIMIT 1").fetchone() is not None


def due_leases(tx: Tx, now: float) -> list[Lease]:
    return [record(Lease, row) for row in tx.execute(_DUE, (now,))]


def save_lease(tx: Tx, lease: Lease) -> Lease:
    tx.execute(_SAVE_LEASE, astuple(lease))
    tx.changes.append(LeaseSaved(lease))
    return lease


def extend_many(tx: Tx, claims: list[Claim], boot_id: str, expires: float) -> set[Claim]:
    """`extend` for a whole batch in one statement: those claims that were renewed."""
    claims = list(dict.fromkeys(claims))
    if len(claims) == 1:  # a tenth of the work of the statement that takes any number
        return set(claims) if extend(tx, *claims[0], boot_id, expires) else set()
    asked = orjson.dumps([(run_id, epoch, token_hash.hex().upper()) for run_id, epoch, token_hash in claims]).decode()
    renewed = set(claims)
    # Which they were is asked only where it is not all: each row that comes back is a turn at the interpreter lock.
    if tx.execute(_EXTEND_MANY, (expires, boot_id, asked)).rowcount != len(claims):
        renewed = set(tx.execute(_HELD, (asked,)).fetchall())
    tx.changes.extend(LeaseExtended(claim[0], claim[1], expires) for claim in claims if claim in renewed)
    return renewed


def extend(tx: Tx, run_id: str, epoch: int, token_hash: bytes, boot_id: str, expires: float) -> bool:
    """The whole of an ordinary renewal: one fenced compare-and-set. False: look closer."""
    if tx.execute(_EXTEND, (expires, boot_id, run_id, epoch, token_hash)).rowcount != 1:
        return False
    tx.changes.append(LeaseExtended(run_id, epoch, expires))
    return True
