"""Why what has a key cannot be done now: with the run that is meant, or on the screen that one is on."""

from __future__ import annotations

from collections.abc import Callable

from relaytui.dashboard.screens.base import RelayScreen
from relaytui.wire.rows import RunRow
from relaytui.wire.status import RunStatus


def _nobody_to_ask(row: RunRow) -> str:
    if row.status.ended:
        return f"{row.run_id} is {row.status.value}: there is nothing to take from anyone"
    return ""


def _nothing_to_drain(row: RunRow) -> str:
    if row.status is RunStatus.DRAINING:
        return f"{row.run_id} is draining already"
    return _nobody_to_ask(row) or ("" if row.status.active else f"nobody holds {row.run_id}")


def _nothing_to_cancel(row: RunRow) -> str:
    return f"{row.run_id} is {row.status.value}: there is nothing to cancel" if row.status.ended else ""


def _nothing_to_save(row: RunRow) -> str:
    return "" if row.status is RunStatus.RUNNING else f"{row.run_id} is {row.status.value}: only one that runs can save"


def _nothing_to_sync(row: RunRow) -> str:
    return "" if row.status is RunStatus.RUNNING else f"{row.run_id} is {row.status.value}: only one that runs can sync"


def _nothing_to_requeue(row: RunRow) -> str:
    return "" if row.status.ended else f"{row.run_id} is {row.status.value}: only an ended run is queued again"


OF_RUN: dict[str, Callable[[RunRow], str]] = {
    "open": lambda row: "",
    "copy": lambda row: "",
    "drain": _nothing_to_drain,
    "force-acquire": _nobody_to_ask,
    "cancel": _nothing_to_cancel,
    "save": _nothing_to_save,
    "sync": _nothing_to_sync,
    "requeue": _nothing_to_requeue,
}
"""What is about a run, and why it cannot be done with that run now; empty where it can."""


def _shown(name: str) -> Callable[[RelayScreen], str]:
    return lambda screen: "it is shown already" if screen.list_shown == name else ""


OF_SCREEN: dict[str, Callable[[RelayScreen], str]] = {
    "back": lambda screen: "" if screen.can_go_back else "one is at the beginning, and nothing is filtered",
    "filter": lambda screen: "" if screen.can_filter else "the log is not shown",
    "runs": _shown("runs"),
    "workers": _shown("workers"),
    "events": _shown("events"),
}
"""The same of what is about the screen."""
