"""`?`: what can be done where one is, what cannot be now and why, and what there is elsewhere; all of it from the
action table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget

from relaytui.dashboard.actions import ACTIONS, Action, Danger, Place, here, key_names
from relaytui.dashboard.glyphs import run_status
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.widgets.lines import Line, Lines
from relaytui.dashboard.widgets.log import LogView
from relaytui.dashboard.widgets.pieces import fit, folded, width_of
from relaytui.dashboard.widgets.table import Table
from relaytui.wire.status import RunStatus

KEYS_WIDTH = 16
STATE_WIDTH = 14


_INSIDE: dict[Place | None, str] = {Place.LIST: "In the list", Place.LOG: "In the log"}
_ELSEWHERE = {
    Place.LIST: "in a list",
    Place.LOG: "in a log",
    Place.RUN: "on a run's screen",
    Place.RUNS: "in the lists",
}


class Told(NamedTuple):
    """`words`: what it does, or why it does not; `where` it can be done, if not here."""

    action: Action
    words: str
    where: str = ""


class _Keys(Lines):
    """The table of keys, its words folded to the width there is."""

    DEFAULT_CSS = "_Keys { height: auto; }"

    def __init__(self, places: frozenset[Place], inside: Place | None, why_not: Callable[[str], str]) -> None:
        super().__init__(id="help-keys")
        can, cannot = list[Told](), list[Told]()
        for action in here(places):
            if why := why_not(action.id):
                cannot.append(Told(action, why))
            else:
                can.append(Told(action, action.help))
        within = [Told(action, action.help) for action in ACTIONS if inside in action.where]
        known = {told.action.id for told in (*can, *cannot, *within)}
        others = [Told(action, action.help, _where(action)) for action in ACTIONS if action.id not in known]
        self._parts = (("", can), (_INSIDE.get(inside, ""), within), ("Not now", cannot), ("Elsewhere", others))

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return len(self.compose_lines(width))

    def compose_lines(self, width: int) -> list[Line]:
        lines: list[Line] = []
        for title, told in self._parts:
            if told:
                if title:
                    lines += [[], [Piece(title, "strong")]]
                lines += _table(told, width)
        lines += [[], [Piece("States", "strong")]]
        across = max(1, width // STATE_WIDTH)
        states = [run_status(status) for status in RunStatus]
        padded = [Piece(f"{text:<{STATE_WIDTH}}", ink) for text, ink in states]
        lines.extend(padded[start : start + across] for start in range(0, len(padded), across))
        return lines


class HelpScreen(ModalScreen[None]):
    CSS_PATH = Path(__file__).with_name("dialogs.tcss")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "close", "Close", show=False),
        Binding("down,j", "scroll_down", show=False),
        Binding("up,k", "scroll_up", show=False),
        Binding("ctrl+c,ctrl+q", "app.quit", show=False),
    ]

    def __init__(self, places: frozenset[Place], focused: Widget | None, why_not: Callable[[str], str]) -> None:
        """`focused`: what the keys go to there; `why_not`: of an action's id, empty where it can be done."""
        super().__init__()
        inside = Place.LIST if isinstance(focused, Table) else Place.LOG if isinstance(focused, LogView) else None
        self._keys = _Keys(places, inside, why_not)

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="dialog"):
            yield self._keys

    def on_mount(self) -> None:
        box = self.query_one("#dialog", VerticalScroll)
        box.border_title = "Keys"
        box.focus()
        self.call_after_refresh(self._say_keys)

    def on_resize(self) -> None:
        self.call_after_refresh(self._say_keys)

    def _say_keys(self) -> None:
        box = self.query_one("#dialog", VerticalScroll)
        box.border_subtitle = "↑↓ scrolls · esc closes" if box.max_scroll_y else "esc closes"

    def action_close(self) -> None:
        self.dismiss()

    def action_scroll_down(self) -> None:
        self.query_one("#dialog").scroll_down(animate=False)

    def action_scroll_up(self) -> None:
        self.query_one("#dialog").scroll_up(animate=False)


ASKS = "· asks first"


def _table(told: list[Told], width: int) -> list[list[Piece]]:
    lines: list[list[Piece]] = []
    room = max(8, width - KEYS_WIDTH)
    for action, words, where in told:
        can = words == action.help
        said = folded([Piece(words if can else f"{action.label}: {words}", "text" if can else "muted")], room)
        more = Piece(f"· {where}", "muted") if where else Piece(ASKS, "warn")
        if where or (can and action.danger is not Danger.NONE):
            used = sum(width_of(text) for text, _ in said[-1])
            if used + 1 + width_of(more.text) > room:
                said.append([])
            said[-1] += [*([Piece(" ")] if said[-1] else []), more]
        keys = [Piece(key_names(action), "key" if can else "faint")]
        if not action.keys:
            keys = [Piece("ctrl+p", "key"), Piece(" " + action.label)]
        for line in said:
            lines.append([*fit(keys, KEYS_WIDTH), *line])
            keys = []
    return lines


def _where(action: Action) -> str:
    return next((words for place, words in _ELSEWHERE.items() if place in action.where), "")
