"""Attempts, how far their state streams were applied, and the orders that are open for them."""

from __future__ import annotations

from msgspec.structs import astuple

from relaytui.commander.model.orders import LASTING
from relaytui.commander.model.records import Attempt, PendingOrder
from relaytui.commander.store.changes import AttemptSaved, OrderGiven
from relaytui.commander.store.columns import columns, record, select, upsert
from relaytui.commander.store.writer import Tx
from relaytui.wire.rows import OrderRow
from relaytui.wire.status import OrderKind

_ATTEMPT = columns(Attempt)
_GET = select("attempts", _ATTEMPT, "WHERE run_id = ? AND epoch = ?")
_BY_TOKEN = select("attempts", _ATTEMPT, "WHERE token_hash = ?")
BY_RUN = select("attempts", _ATTEMPT, "WHERE run_id = ? ORDER BY epoch DESC LIMIT 1000")
_NEWEST = select(
    "attempts",
    _ATTEMPT,
    "WHERE (run_id, epoch) IN (SELECT run_id, max(epoch) FROM attempts WHERE said_step IS NOT NULL GROUP BY run_id)",
)
_LAST_OF_WORKERS = select(
    "attempts",
    _ATTEMPT,
    "WHERE (incarnation, granted_at) IN (SELECT incarnation, max(granted_at) FROM attempts"
    " WHERE incarnation IN (SELECT incarnation FROM workers) GROUP BY incarnation)",
)
_LATEST = select("attempts", _ATTEMPT, "WHERE run_id = ? AND epoch > ? ORDER BY epoch DESC LIMIT ?")
_OLDEST_KEPT = "SELECT epoch FROM attempts WHERE run_id = ? ORDER BY epoch DESC LIMIT 1 OFFSET ?"
MOST = 1_000
"""Attempts of a run that are kept: as many as are shown."""
TRIM_EVERY = 100
"""Grants from one look at that to the next."""
_SAVE = upsert("attempts", _ATTEMPT, ["run_id", "epoch"])

_ORDER = columns(PendingOrder, {"by": "actor"})
_OPEN = select("orders", _ORDER, "WHERE closed_at IS NULL AND incarnation = ? ORDER BY id")
_GET_ORDER = select("orders", _ORDER, "WHERE id = ? AND incarnation = ? AND closed_at IS NULL AND accepted IS NULL")
_IN_FORCE = select("orders", _ORDER, "WHERE run_id = ? AND epoch = ? AND kind = ? AND closed_at IS NULL")
ORDER_NAMES = {"by": "actor", "given_at": "created_at"}
ORDER = select("orders", columns(OrderRow, ORDER_NAMES), "WHERE run_id = ? AND id = ?")
_KINDS = ", ".join(f"'{kind}'" for kind in LASTING)
_REOPEN = (
    "UPDATE orders SET closed_at = NULL WHERE run_id = ? AND epoch = ? AND closed_at IS NOT NULL "  # noqa: S608 - ours
    f"AND (accepted IS NULL OR (accepted = 1 AND kind IN ({_KINDS}))) RETURNING {', '.join(_ORDER)}"
)


def get(tx: Tx, run_id: str, epoch: int) -> Attempt | None:
    row = tx.execute(_GET, (run_id, epoch)).fetchone()
    return None if row is None else record(Attempt, row)


def by_token(tx: Tx, token_hash: bytes) -> Attempt | None:
    row = tx.execute(_BY_TOKEN, (token_hash,)).fetchone()
    return None if row is None else record(Attempt, row)


def latest(tx: Tx, run_id: str, count: int) -> list[Attempt]:
    """The newest `count` of a run since it was last queued again by hand, newest first."""
    since = tx.execute(
        "SELECT coalesce(max(epoch), 0) FROM events WHERE run_id = ? AND kind = 'run.requeued'", (run_id,)
    ).fetchone()[0]
    return [record(Attempt, row) for row in tx.execute(_LATEST, (run_id, since, count))]


def newest(tx: Tx) -> list[Attempt]:
    """Of every run the newest attempt that said a step."""
    return [record(Attempt, row) for row in tx.execute(_NEWEST)]


def last_of_workers(tx: Tx) -> list[Attempt]:
    """Of every worker that is known its newest one, if it had any."""
    return [record(Attempt, row) for row in tx.execute(_LAST_OF_WORKERS)]


def save(tx: Tx, attempt: Attempt) -> Attempt:
    tx.execute(_SAVE, astuple(attempt))
    tx.changes.append(AttemptSaved(attempt))
    return attempt


def trim(tx: Tx, run_id: str) -> None:
    """Forgets the oldest beyond `MOST` of those that are over; who held one finds its epoch superseded as before."""
    row = tx.execute(_OLDEST_KEPT, (run_id, MOST - 1)).fetchone()
    if row is not None:
        for table in ("orders", "streams", "attempts"):
            tx.execute(f"DELETE FROM {table} WHERE run_id = ? AND epoch < ?", (run_id, row[0]))  # noqa: S608 - ours


def last_seq(tx: Tx, run_id: str, epoch: int) -> int:
    """How far the attempt's state stream has been applied, 0 before the first report."""
    row = tx.execute("SELECT last_seq FROM streams WHERE run_id = ? AND epoch = ?", (run_id, epoch)).fetchone()
    return 0 if row is None else int(row[0])


def set_last_seq(tx: Tx, run_id: str, epoch: int, seq: int) -> None:
    tx.execute(
        "INSERT INTO streams (run_id, epoch, last_seq) VALUES (?, ?, ?) "
        "ON CONFLICT (run_id, epoch) DO UPDATE SET last_seq = excluded.last_seq",
        (run_id, epoch, seq),
    )


# -- orders ------------------------------------------------------------------------------------------------------


def give_order(tx: Tx, attempt: Attempt, kind: OrderKind, by: str, why: str, at: float) -> PendingOrder:
    """A new open order for the attempt's agent."""
    cursor = tx.execute(
        "INSERT INTO orders (run_id, epoch, incarnation, kind, actor, why, created_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (attempt.run_id, attempt.epoch, attempt.incarnation, kind, by, why, at),
    )
    number = cursor.lastrowid or 0
    order = PendingOrder(number, attempt.run_id, attempt.epoch, attempt.incarnation, kind, by, why, at)
    tx.changes.append(OrderGiven(order))
    return order


def open_orders(tx: Tx, incarnation: str) -> list[PendingOrder]:
    """What this agent is to hear (again) when it comes."""
    return [record(PendingOrder, row) for row in tx.execute(_OPEN, (incarnation,))]


def unanswered(tx: Tx, order_id: int, incarnation: str) -> PendingOrder | None:
    row = tx.execute(_GET_ORDER, (order_id, incarnation)).fetchone()
    return None if row is None else record(PendingOrder, row)


def in_force(tx: Tx, run_id: str, epoch: int, kind: OrderKind) -> PendingOrder | None:
    """The attempt's order of this kind: on its way, or one that lasts and was not refused. None once it has ended."""
    row = tx.execute(_IN_FORCE, (run_id, epoch, kind)).fetchone()
    return None if row is None else record(PendingOrder, row)


def answer_order(tx: Tx, order: PendingOrder, accepted: bool, message: str, at: float) -> None:
    closed_at = None if accepted and order.kind in LASTING else at
    tx.execute(
        "UPDATE orders SET closed_at = ?, accepted = ?, message = ? WHERE id = ?",
        (closed_at, accepted, message, order.id),
    )


def close_orders(tx: Tx, run_id: str, epoch: int, at: float) -> None:
    """The attempt is over: nothing is left to order."""
    tx.execute(
        "UPDATE orders SET closed_at = ? WHERE run_id = ? AND epoch = ? AND closed_at IS NULL", (at, run_id, epoch)
    )


def reopen_orders(tx: Tx, run_id: str, epoch: int) -> None:
    """The attempt goes on after all: its agent hears again what it was to do."""
    for row in tx.execute(_REOPEN, (run_id, epoch)).fetchall():
        tx.changes.append(OrderGiven(record(PendingOrder, row)))
