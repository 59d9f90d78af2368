"""The one table of what the operator can do.

Key bindings, the key bar, `?`, the palette, what is greyed, and the table in the docs are all made from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct
from textual.binding import Binding


class Place(StrEnum):
    """Where an action applies. A screen is in several places at once."""

    ANYWHERE = "anywhere"
    RUNS = "runs"
    WORKERS = "workers"
    EVENTS = "events"
    RUN = "run"  # one run, opened
    LIST = "list"  # inside a table
    LOG = "log"  # inside a log


class Danger(StrEnum):
    NONE = "none"
    ASKS = "asks"  # a dialog that begins on Cancel
    TYPED = "typed"  # and wants the run's name typed while its lease is live


class Action(Struct, frozen=True):
    id: str
    keys: tuple[str, ...]
    label: str
    """For the key bar: one or two words."""
    help: str
    where: frozenset[Place]
    handler: str
    """Textual action: `action_<handler>` of the app, or of the widget for places inside one."""
    danger: Danger = Danger.NONE
    rank: int = 0
    """Place in the key bar, from the left; 0 keeps it out. What cannot be done now is not there; where it gets
    narrow, the highest gives way, and what `stays` last of all."""
    stays: bool = False


HOME = frozenset({Place.RUNS, Place.WORKERS, Place.EVENTS})
WITH_RUN = frozenset({Place.RUNS, Place.WORKERS, Place.RUN})
ANYWHERE = frozenset({Place.ANYWHERE})
LIST = frozenset({Place.LIST})
LOG = frozenset({Place.LOG})

ACTIONS: tuple[Action, ...] = (
    Action("open", ("enter",), "open", "Open the run of the selected row", HOME, "open_run", rank=1),
    Action("back", ("escape",), "back", "Back; clears a filter first", HOME | {Place.RUN}, "go_back", rank=2),
    Action(
        "drain",
        ("d",),
        "drain",
        "Have the holder save if its trainer can, and release the run",
        WITH_RUN,
        "drain",
        Danger.ASKS,
        rank=4,
    ),
    Action("save", ("s",), "save", "Ask for a checkpoint now; training goes on", WITH_RUN, "save_now", rank=5),
    Action(
        "sync",
        ("u",),
        "sync",
        "Bring the newest checkpoint to the Hub now; training goes on",
        WITH_RUN,
        "sync_now",
        rank=13,
    ),
    Action(
        "cancel",
        ("c",),
        "cancel",
        "End the run for good: it saves if its trainer can, and is not queued again",
        WITH_RUN,
        "cancel_run",
        Danger.ASKS,
        rank=7,
    ),
    Action(
        "force-acquire",
        ("f",),
        "force",
        "Take the run from its holder, so that another agent can train it",
        WITH_RUN,
        "force_acquire",
        Danger.TYPED,
        rank=6,
    ),
    Action(
        "requeue",
        ("r",),
        "requeue",
        "Queue an ended run again, from its newest checkpoint",
        WITH_RUN,
        "requeue",
        Danger.ASKS,
        rank=8,
    ),
    Action(
        "filter",
        ("slash",),
        "filter",
        "Show only rows or log lines that contain a text",
        HOME | {Place.RUN},
        "filter",
        rank=3,
    ),
    Action("sort", ("o",), "order", "Order by the next column", HOME, "sort", rank=11),
    Action("reverse", ("O",), "reverse", "Turn the order round", HOME, "reverse"),
    Action(
        "view",
        ("v",),
        "view",
        "Next layout: all, log only, curve only, history only",
        frozenset({Place.RUN}),
        "next_view",
        rank=10,
    ),
    Action("runs", ("1",), "runs", "Show runs", HOME | {Place.RUN}, "show('runs')"),
    Action("workers", ("2",), "workers", "Show workers", HOME | {Place.RUN}, "show('workers')"),
    Action("events", ("3",), "events", "Show events", HOME | {Place.RUN}, "show('events')"),
    Action(
        "copy",
        ("y",),
        "copy id",
        "Send the run's id to the terminal's clipboard (OSC 52)",
        HOME | {Place.RUN},
        "copy_id",
    ),
    Action(
        "help",
        ("question_mark",),
        "help",
        "What can be done here, what cannot, and what there is elsewhere",
        ANYWHERE,
        "help",
        rank=9,
        stays=True,
    ),
    Action(
        "palette",
        ("ctrl+p",),
        "palette",
        "Find an action, a theme or a run by name",
        ANYWHERE,
        "command_palette",
        rank=14,
    ),
    Action("theme", (), "theme", "Choose a theme", ANYWHERE, "change_theme"),
    Action(
        "suspend",
        ("ctrl+z",),
        "suspend",
        "Back to the shell until `fg`; training goes on",
        ANYWHERE,
        "suspend_process",
    ),
    Action("quit", ("q", "ctrl+q", "ctrl+c"), "quit", "Quit; training goes on", ANYWHERE, "quit", rank=12, stays=True),
    Action("up", ("up", "k"), "up", "Row up", LIST, "move(-1)"),
    Action("down", ("down", "j"), "down", "Row down", LIST, "move(1)"),
    Action("page-up", ("pageup", "ctrl+b"), "page up", "A screenful up", LIST, "page(-1)"),
    Action("page-down", ("pagedown", "ctrl+f"), "page down", "A screenful down", LIST, "page(1)"),
    Action("first", ("home", "g"), "first", "First row", LIST, "first"),
    Action("last", ("end", "G"), "last", "Last row", LIST, "last"),
    Action("log-up", ("up", "k"), "up", "Line up; the view stops following", LOG, "scroll(-1)"),
    Action("log-down", ("down", "j"), "down", "Line down", LOG, "scroll(1)"),
    Action("log-page-up", ("pageup", "ctrl+b"), "page up", "A screenful up", LOG, "page(-1)"),
    Action("log-page-down", ("pagedown", "ctrl+f"), "page down", "A screenful down", LOG, "page(1)"),
    Action("log-first", ("home", "g"), "oldest", "Oldest line; again reads older ones", LOG, "first"),
    Action("follow", ("end", "G"), "follow", "Newest line, and follow what comes", LOG, "follow"),
    Action("wrap", ("w",), "wrap", "Wrap long lines, or cut them", LOG, "wrap"),
)

BY_ID = {action.id: action for action in ACTIONS}

_KEY_NAMES = {
    "slash": "/",
    "question_mark": "?",
    "escape": "esc",
    "enter": "⏎",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "up": "↑",
    "down": "↓",
}
_INSIDE = LIST | LOG


def key_name(key: str) -> str:
    return _KEY_NAMES.get(key, key)


def key_names(action: Action) -> str:
    return " ".join(key_name(key) for key in action.keys)


def here(places: Iterable[Place]) -> list[Action]:
    """The actions that apply in these places."""
    at = {*places, Place.ANYWHERE}
    return [action for action in ACTIONS if action.where & at]


def bar_actions(places: Iterable[Place]) -> list[Action]:
    """Those for the key bar, best first."""
    return sorted((action for action in here(places) if action.rank and action.keys), key=lambda action: action.rank)


def app_bindings() -> list[Binding]:
    return [_binding(action) for action in ACTIONS if action.keys and not action.where & _INSIDE]


def widget_bindings(place: Place) -> list[Binding]:
    return [_binding(action) for action in ACTIONS if action.keys and place in action.where]


def _binding(action: Action) -> Binding:
    return Binding(",".join(action.keys), action.handler, action.label, show=False, id=f"relay.{action.id}")


def app_handlers() -> dict[str, Action]:
    """Textual action name (without arguments) to the action; for greying and refusing."""
    return {
        action.handler.partition("(")[0]: action
        for action in ACTIONS
        if not action.where & _INSIDE and Place.ANYWHERE not in action.where
    }


def docs_table() -> str:
    """The table in `docs/dashboard.md`, which a test compares."""
    lines = ["| keys | action | where | what it does |", "|---|---|---|---|"]
    for action in ACTIONS:
        keys = " ".join(f"`{key_name(key)}`" for key in action.keys) or f"`ctrl+p` {action.label}"
        where = ", ".join(sorted(place.value for place in action.where))
        danger = {
            Danger.NONE: "",
            Danger.ASKS: " Asks first.",
            Danger.TYPED: " Asks first; while the lease is live it wants the run's name typed.",
        }[action.danger]
        lines.append(f"| {keys} | {action.label} | {where} | {action.help}.{danger} |")
    return "\n".join(lines) + "\n"
