"""A state is a glyph, a word and an ink, so that it is read without any one of them."""

from __future__ import annotations

from relaytui.client.link import LinkState
from relaytui.client.words import alarm, how_it_ended, silent, state, without_a_step
from relaytui.dashboard.ink import Piece
from relaytui.wire.rows import RunRow
from relaytui.wire.status import Outcome, RunStatus, WorkerStatus

_RUN = {
    RunStatus.QUEUED: "○",
    RunStatus.LEASED: "◔",
    RunStatus.RUNNING: "●",
    RunStatus.DRAINING: "◑",
    RunStatus.COMPLETED: "✓",
    RunStatus.FAILED: "✗",
    RunStatus.CANCELLED: "⊘",
    RunStatus.PREEMPTED: "↯",
    RunStatus.LOST: "?",
}
_WORKER = {
    WorkerStatus.CONNECTING: ("◔", "state-leased"),
    WorkerStatus.IDLE: ("○", "state-queued"),
    WorkerStatus.BUSY: ("●", "state-running"),
    WorkerStatus.DRAINING: ("◑", "state-draining"),
    # Pods come and go. Where one took a run with it, the lost run is the alarm.
    WorkerStatus.OFFLINE: ("·", "muted"),
}
_OUTCOME = {
    Outcome.COMPLETED: ("✓", "state-completed"),
    Outcome.FAILED: ("✗", "state-failed"),
    Outcome.PREEMPTED: ("↯", "state-preempted"),
    Outcome.DRAINED: ("◑", "muted"),
    Outcome.CANCELLED: ("⊘", "state-cancelled"),
    Outcome.SUPERSEDED: ("»", "muted"),
    Outcome.CRASHED: ("↻", "state-failed"),
    Outcome.LOST: ("?", "state-lost"),
}
_LINK = {
    LinkState.CONNECTING: ("◌", "warn"),
    LinkState.LIVE: ("●", "good"),
    LinkState.STALE: ("◌", "warn"),
    LinkState.REFUSED: ("✗", "bad"),
}


def run_status(status: RunStatus) -> Piece:
    return Piece(f"{_RUN[status]} {status.value}", f"state-{status.value}")


def run_state(run: RunRow) -> Piece:
    """The same of one run: of a success that may be none, that it may be none."""
    if without_a_step(run):
        return Piece(f"{_RUN[run.status]} {state(run)}", "warn")
    word, ink = run_status(run.status)
    return Piece(word, ink if run.silent_since is None else "muted")


def short_state(run: RunRow, now: float) -> Piece:
    """What is wrong with it instead of its status; in fourteen cells, all but the silent in eleven."""
    if said := silent(run, now):
        return Piece(f"▲ {said}", "warn")
    if run.volume_lost_at is not None:
        return Piece("▲ no volume", "warn")
    if run.stalled_at is not None:
        return Piece("▲ stalled", "warn")
    if alarm(run):
        return Piece("▲ no resume", "warn")
    if without_a_step(run):
        return Piece(f"{_RUN[run.status]} no steps", "warn")
    return run_status(run.status)


def worker_status(status: WorkerStatus, word: str = "") -> Piece:
    """`word`: what is said for it, where that is another."""
    glyph, ink = _WORKER[status]
    return Piece(f"{glyph} {word or status.value}", ink)


def outcome(value: Outcome | None, ending: str = "") -> Piece:
    glyph, ink = ("●", "state-running") if value is None else _OUTCOME[value]
    return Piece(f"{glyph} {how_it_ended(value, ending)}", ink)


def link_state(state: LinkState) -> Piece:
    glyph, ink = _LINK[state]
    return Piece(f"{glyph} {state.value}", ink)


def event_ink(kind: str) -> str:
    """The ink of an event: what a person must see is told from what merely happened."""
    word = kind.rpartition(".")[2]
    if word in {"failed", "lost", "torn", "refused", "alarm", "missing", "bad", "corrupt", "ignored"}:
        return "bad"
    if word in {"stalled", "diverging", "nonfinite", "rollback", "rolled_back", "stopped"}:
        return "warn"
    if word in {"forced", "superseded", "preempted", "revoked", "drain", "draining", "denied", "expired", "crashed"}:
        return "warn"
    if word in {"completed", "published", "revived", "moving", "synced", "stored", "back"}:
        return "good"
    return "muted"
