"""Why what has a key cannot be done now: with the run that is meant, or on the screen that one is on."""

from __future__ import annotations

from collections.abc import Callable

from relaytui.client.refusals import REFUSALS
from relaytui.dashboard.screens.base import RelayScreen
from relaytui.wire.rows import RunRow

OF_RUN: dict[str, Callable[[RunRow], str]] = {
    "open": lambda row: "",
    "copy": lambda row: "",
    **REFUSALS,
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
