"""`?`: the keys that work where one is, from the action table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from relaytui.dashboard.actions import Action, Danger, Place, here, key_names
from relaytui.dashboard.glyphs import run_status
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.widgets.lines import Line, Lines
from relaytui.dashboard.widgets.pieces import fit, folded, width_of
from relaytui.wire.status import RunStatus

KEYS_WIDTH = 13
STATE_WIDTH = 14


class _Keys(Lines):
    """The table of keys, its words folded to the width there is."""

    DEFAULT_CSS = "_Keys { height: auto; }"

    def __init__(self, places: frozenset[Place]) -> None:
        super().__init__(id="help-keys")
        self._places = places

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return len(self.compose_lines(width))

    def compose_lines(self, width: int) -> list[Line]:
        inside = Place.LOG if Place.RUN in self._places else Place.LIST
        moving = [action for action in here({inside}) if inside in action.where]
        lines: list[Line] = [
            *_table(here(self._places), width),
            [],
            [Piece("In the log" if inside is Place.LOG else "In the list", "strong")],
            *_table(moving, width),
            [],
            [Piece("States", "strong")],
        ]
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

    def __init__(self, places: Iterable[Place]) -> None:
        super().__init__()
        self._places = frozenset(places)

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="dialog"):
            yield _Keys(self._places)

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


def _table(actions: list[Action], width: int) -> list[list[Piece]]:
    lines: list[list[Piece]] = []
    room = max(8, width - KEYS_WIDTH)
    for action in actions:
        words = folded([Piece(action.help)], room)
        if action.danger is not Danger.NONE:
            used = sum(width_of(text) for text, _ in words[-1])
            if used + 1 + width_of(ASKS) > room:
                words.append([])
            words[-1] += [*([Piece(" ")] if words[-1] else []), Piece(ASKS, "warn")]
        keys = [Piece(key_names(action), "key")] if action.keys else [Piece("ctrl+p", "key"), Piece(" " + action.label)]
        for line in words:
            lines.append([*fit(keys, KEYS_WIDTH), *line])
            keys = []
    return lines
