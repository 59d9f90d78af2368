"""Why an act on a run makes no sense now, in words: one table for the dashboard's keys, its palette and the shell."""

from __future__ import annotations

from collections.abc import Callable

from relaytui.client.transfers import on_hub
from relaytui.wire.rows import RunRow
from relaytui.wire.status import RunStatus


def _nobody_to_ask(row: RunRow) -> str:
    if row.status.ended:
        return f"{row.run_id} is {row.status.value}: there is nothing to take from anyone"
    return ""


def _nothing_to_drain(row: RunRow) -> str:
    if row.status is RunStatus.DRAINING:
        return f"{row.run_id} is draining already"
    if row.status.ended:
        return f"{row.run_id} is {row.status.value}: there is nothing to drain"
    return "" if row.status.active else f"nobody holds {row.run_id}: there is nothing to drain"


def _nothing_to_cancel(row: RunRow) -> str:
    return f"{row.run_id} is {row.status.value}: there is nothing to cancel" if row.status.ended else ""


def _nothing_to_save(row: RunRow) -> str:
    return "" if row.status is RunStatus.RUNNING else f"{row.run_id} is {row.status.value}: only one that runs can save"


def _nothing_to_sync(row: RunRow) -> str:
    if row.status is not RunStatus.RUNNING:
        return f"{row.run_id} is {row.status.value}: only one that runs can sync"
    return "" if on_hub(row) else f"nothing of {row.run_id} went to the Hub yet: HF_REPO names a run's repository"


def _nothing_to_requeue(row: RunRow) -> str:
    return "" if row.status.ended else f"{row.run_id} is {row.status.value}: only an ended run is queued again"


REFUSALS: dict[str, Callable[[RunRow], str]] = {
    "drain": _nothing_to_drain,
    "force-acquire": _nobody_to_ask,
    "cancel": _nothing_to_cancel,
    "save": _nothing_to_save,
    "sync": _nothing_to_sync,
    "requeue": _nothing_to_requeue,
}
"""By the act's id, which is the shell's command, too; empty where it can be done."""
