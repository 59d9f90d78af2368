"""The other rows of the store: attempts, checkpoints, workers, events, orders."""

from __future__ import annotations

from msgspec import Struct

from relaytui.wire.status import OrderKind, Outcome


class Attempt(Struct, frozen=True):
    """One try at a run. `salt` and the state key make its token again; the token itself is stored nowhere."""

    run_id: str
    epoch: int
    worker: str
    incarnation: str
    request_id: str
    token_hash: bytes
    salt: bytes
    granted_at: float
    config_hash: str = ""
    started_step: int = 0
    last_step: int = 0
    started_from: str | None = None
    ended_at: float | None = None
    outcome: Outcome | None = None
    exit_code: int | None = None
    message: str = ""


class Worker(Struct, frozen=True):
    """One incarnation of an agent, as it introduced itself."""

    incarnation: str
    worker: str
    host: str
    version: str
    gpu: str
    gpus: int
    connected_at: float
    seen_at: float


class PendingOrder(Struct, frozen=True):
    """An order and the incarnation it is for."""

    id: int
    run_id: str
    epoch: int
    incarnation: str
    kind: OrderKind
    by: str
    why: str
    created_at: float
