"""The three lists as data: columns, how a row becomes cells, what is said when there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from relaytui.client.acts import lease_left
from relaytui.client.mirror import Mirror
from relaytui.client.order import attention
from relaytui.client.transfers import hub_sign, store_sign
from relaytui.client.waiting import not_asked
from relaytui.client.words import rate_now, sentence, standing, time_left
from relaytui.dashboard.format import DASH, ago, bar, clock_time, count, duration, number_piece, per_second, steps
from relaytui.dashboard.glyphs import event_ink, short_state, worker_status
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.widgets.pieces import Cell
from relaytui.dashboard.widgets.table import Column, Row
from relaytui.wire.numbers import unpack
from relaytui.wire.rows import ORIGINAL, EventRow, RunRow, WorkerRow
from relaytui.wire.status import WorkerStatus
from relaytui.wire.text import clean

BAR = 8

Order = tuple[object, ...]


class Item(Struct, frozen=True):
    """A row with what it is ordered and found by. Values of one column are comparable with each other."""

    row: Row
    text: str
    order: dict[str, Order]
    run_id: str | None


class Setting(NamedTuple):
    """Where the commander is and how hints call `relay-tui` to mean it; None where they have nothing to teach."""

    url: str
    program: str | None


class ListSpec(Struct, frozen=True):
    name: str
    columns: tuple[Column, ...]
    items: Callable[[Mirror, float], Iterable[Item]]
    version: Callable[[Mirror], int]
    default_order: tuple[str, bool]
    empty: Callable[[Setting], Sequence[Sequence[Piece]]]
    ages: bool
    """Whether rows change with time alone."""


def _text(value: str | None, ink: str = "text") -> Cell:
    return (Piece(clean(value, 200), ink),) if value else (Piece("–", "faint"),)


def _quiet(text: str) -> Cell:
    return (Piece(text, "faint" if text == "–" else "text"),)


def _read(cells: Sequence[Cell]) -> str:
    """What a row says, also in columns that gave way: by that it is found."""
    return "  ".join("".join(piece.text for piece in cell) for cell in cells).casefold()


def _missing_last(value: float | None) -> Order:
    return (1, 0.0) if value is None or value != value else (0, value)


# -- runs --------------------------------------------------------------------------------------------------------

RUN_COLUMNS = (
    Column("run", "run", 9, 0, grow=23, name=True),
    Column("status", "status", 11, 1, grow=3),
    Column("step", "step", 11, 2, grow=3, right=True, least=7),
    Column("bar", "", BAR, 10),
    Column("loss", "loss", 6, 3, right=True, least=5),
    Column("rate", "rate", 6, 11, right=True),
    Column("eta", "eta", 6, 8, right=True, least=4),
    Column("holder", "holder", 8, 8, grow=14, least=6, name=True),
    Column("epoch", "ep", 3, 12, grow=13, right=True),
    Column("lease", "lease", 6, 9, right=True),
    # How far it is in safety: on the volume, on the Hub, in the artifact store.
    Column("checkpoint", "saved", 7, 4, right=True, least=5),
    Column("hub", "hub", 8, 5, right=True, least=5, optional=True),
    Column("store", "store", 8, 5, right=True, least=5, optional=True),
)


def lease_piece(row: RunRow, now: float) -> Piece:
    left = lease_left(row, now)
    if left is None:
        return Piece("–", "faint")
    low = left < 0.2 * (row.lease_seconds or 300.0)
    return Piece(duration(left), "lease-low" if low else "text")


def run_item(row: RunRow, now: float) -> Item:
    left = lease_left(row, now)
    rate, remaining = rate_now(row), time_left(row)
    loss = None if row.loss is None else unpack(row.loss)
    newest = count(row.newest_step) if row.newest_step is not None else "–"
    cells: tuple[Cell, ...] = (
        _text(row.run_id, "strong"),
        (short_state(row, now),),
        (Piece(steps(row.step, row.total)),),
        bar(row.step, row.total, BAR),
        (number_piece(row.loss),),
        _quiet(per_second(rate)),
        _quiet(DASH if remaining is None else duration(remaining)),
        _text(row.holder),
        _quiet(str(row.epoch) if row.epoch else "–"),
        (lease_piece(row, now),),
        _quiet(newest),
        (Piece(*hub_sign(row)),),
        (Piece(*store_sign(row)),),
    )
    order: dict[str, Order] = {
        "run": (row.run_id,),
        "status": attention(row),
        "step": (row.step, row.run_id),
        "bar": (row.step / row.total if row.total else 0.0, row.run_id),
        "loss": (*_missing_last(loss), row.run_id),
        "rate": (*_missing_last(rate), row.run_id),
        "eta": (*_missing_last(remaining), row.run_id),
        "holder": (row.holder or "\uffff", row.run_id),
        "epoch": (row.epoch, row.run_id),
        "lease": (*_missing_last(left), row.run_id),
        "checkpoint": (row.newest_step or 0, row.run_id),
        "hub": (not row.sync_error, row.synced_step or 0, row.run_id),
        "store": (row.stored_step or 0, row.run_id),
    }
    return Item(Row(row.run_id, cells), _read(cells), order, row.run_id)


def run_items(mirror: Mirror, now: float) -> Iterable[Item]:
    return (run_item(row, now) for row in mirror.runs.values())


def _no_runs(setting: Setting) -> Sequence[Sequence[Piece]]:
    if setting.program is None:
        return ((Piece("no runs yet", "strong"),), (Piece("The demo's agents are on their way.", "muted"),))
    return (
        (Piece("no runs yet", "strong"),),
        (Piece("A run appears when an agent asks for it. On any machine that reaches this commander:", "muted"),),
        (),
        *_let_in(setting.url, setting.program),
        (Piece("# or where a volume is mounted", "muted"),),
        (Piece("export RELAY_L1_ROOT=$HOME/relay-volume"),),
        (Piece("mkdir -p $RELAY_L1_ROOT; RUN_ID=first relay-agent"),),
        (),
        (Piece("or watch a whole fleet work here:  ", "muted"), Piece("relay-tui demo")),
    )


def _let_in(url: str, program: str) -> Sequence[Sequence[Piece]]:
    """What an agent must be told, as one types it there."""
    here = "where the commander runs" if " --connect " in program else "here"
    token = "relay-tui" if " --connect " in program else program
    return (
        (Piece(f"# what {token} token worker prints {here}", "muted"),),
        (Piece("export RELAY_SHARED_SECRET=…"),),
        (Piece(f"export COMMANDER_URL={url or 'http://…'}"),),
    )


# -- workers -----------------------------------------------------------------------------------------------------

WORKER_COLUMNS = (
    Column("worker", "worker", 10, 0, grow=20, least=7, name=True),
    Column("status", "status", 12, 1),
    Column("run", "run", 9, 2, grow=23, name=True),
    Column("epoch", "ep", 3, 8, grow=13, right=True),
    Column("seen", "heard", 8, 3, right=True),
    Column("gpu", "gpu", 8, 4, grow=16, least=3),
    Column("host", "host", 8, 5, grow=20, least=4, name=True),
    Column("version", "version", 8, 9, least=7),
)


def worker_item(row: WorkerRow, now: float, silent: float = 0.0) -> Item:
    """`silent`: seconds since the picture was last known to be true, 0 while it is live."""
    # An open connection is watched by both ends: who waits in silence is there all the same.
    connected = row.status is not WorkerStatus.OFFLINE and row.version != ORIGINAL
    seen_at = max(row.seen_at, now - silent) if connected else row.seen_at
    gpu = clean(row.gpu, 100) if row.gpus <= 1 else f"{row.gpus}× {clean(row.gpu, 100)}"
    run: Cell = _text(row.run_id)
    if row.run_id is None and row.waiting_for:
        run = (Piece("waits for ", "muted"), Piece(clean(row.waiting_for, 128)))
    elif not_asked(row):
        run = (Piece("none asked for yet", "muted"),)
    name = clean(row.worker, 128)
    cells: tuple[Cell, ...] = (
        _text(name, "strong"),
        (worker_status(row.status, standing(row)),),
        run,
        _quiet(str(row.epoch) if row.epoch else "–"),
        (Piece(ago(now - seen_at), "text"),),
        _text(gpu),
        _text(row.host),
        _text(row.version, "muted"),
    )
    order: dict[str, Order] = {
        "worker": (name, row.incarnation),
        "status": (standing(row), name),
        "run": (row.run_id or "\uffff", name),
        "epoch": (row.epoch, name),
        "seen": (-seen_at, name),
        "gpu": (gpu, name),
        "host": (row.host, name),
        "version": (row.version, name),
    }
    return Item(Row(row.incarnation, cells), _read(cells), order, row.run_id or row.waiting_for)


def worker_items(mirror: Mirror, now: float) -> Iterable[Item]:
    silent = mirror.heard_ago
    return (worker_item(row, now, silent) for row in mirror.workers.values())


def _no_workers(setting: Setting) -> Sequence[Sequence[Piece]]:
    if setting.program is None:
        return ((Piece("no workers yet", "strong"),), (Piece("The demo's agents are on their way.", "muted"),))
    return (
        (Piece("no workers yet", "strong"),),
        (Piece("An agent shows up here as soon as it reached this commander. On its machine:", "muted"),),
        (),
        *_let_in(setting.url, setting.program),
        (Piece("relay-agent doctor   "), Piece("says what is in its way", "muted")),
    )


# -- events ------------------------------------------------------------------------------------------------------

EVENT_COLUMNS = (
    Column("time", "time", 8, 2),
    Column("kind", "event", 20, 1, grow=10, least=8),
    Column("run", "run", 12, 3, grow=20, least=3, name=True),
    Column("epoch", "ep", 3, 8, grow=13, right=True),
    Column("actor", "by", 9, 4, grow=9, least=4, name=True),
    Column("message", "what", 20, 0, grow=204),
)


class EventItems:
    """Events never change, so each becomes a row once."""

    def __init__(self) -> None:
        self._known: dict[int, Item] = {}

    def __call__(self, mirror: Mirror, now: float) -> Iterable[Item]:
        known = {}
        for row in mirror.events:
            item = self._known.get(row.id)
            known[row.id] = item if item is not None else event_item(row)
        self._known = known
        return known.values()


def event_item(row: EventRow) -> Item:
    kind, message, actor = clean(row.kind, 60), clean(sentence(row), 400), clean(row.actor, 128)
    cells: tuple[Cell, ...] = (
        (Piece(clock_time(row.at), "muted"),),
        (Piece(kind, event_ink(kind)),),
        _text(row.run_id),
        _quiet(str(row.epoch) if row.epoch else "–"),
        _text(actor),
        (Piece(message),),
    )
    order: dict[str, Order] = {
        "time": (row.id,),
        "kind": (kind, row.id),
        "run": (row.run_id or "\uffff", row.id),
        "epoch": (row.epoch, row.id),
        "actor": (actor, row.id),
        "message": (message, row.id),
    }
    return Item(Row(str(row.id), cells), _read(cells), order, row.run_id)


def _no_events(setting: Setting) -> Sequence[Sequence[Piece]]:
    return (
        (Piece("nothing has happened yet", "strong"),),
        (Piece("Every grant, loss, checkpoint, drain and override is told here, with who did it.", "muted"),),
    )


def list_specs() -> tuple[ListSpec, ...]:
    return (
        ListSpec("runs", RUN_COLUMNS, run_items, lambda m: m.versions.runs, ("status", False), _no_runs, True),
        ListSpec(
            "workers", WORKER_COLUMNS, worker_items, lambda m: m.versions.workers, ("worker", False), _no_workers, True
        ),
        ListSpec("events", EVENT_COLUMNS, EventItems(), lambda m: m.versions.events, ("time", True), _no_events, False),
    )
