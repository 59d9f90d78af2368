"""`?`: the keys that work where one is, from the action table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from relaytui.dashboard.actions import Action, Danger, Place, here, key_names
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.widgets.lines import Line, Lines

_STATES = "○ queued  ◔ leased  ● running  ◑ draining  ✓ completed  ✗ failed  ⊘ cancelled  ↯ preempted  ? lost"


class _Keys(Lines):
    def __init__(self, lines: list[Line]) -> None:
        super().__init__(id="help-keys")
        self._lines = lines
        self.styles.height = len(lines)

    def compose_lines(self, width: int) -> list[Line]:
        return self._lines


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "close", "Close", show=False),
        Binding("down,j", "scroll_down", show=False),
        Binding("up,k", "scroll_up", show=False),
    ]

    def __init__(self, places: Iterable[Place]) -> None:
        super().__init__()
        self._places = frozenset(places)

    def compose(self) -> ComposeResult:
        inside = Place.LOG if Place.RUN in self._places else Place.LIST
        main = here(self._places)
        moving = [action for action in here({inside}) if inside in action.where]
        lines: list[Line] = [
            *_table(main),
            [],
            [Piece("In the log" if inside is Place.LOG else "In the list", "strong")],
        ]
        lines += [*_table(moving), [], [Piece("States", "strong")]]
        words = _STATES.split("  ")
        for start in range(0, len(words), 3):
            lines.append([Piece("".join(f"{word:<15}" for word in words[start : start + 3]), "muted")])
        with VerticalScroll(id="dialog"):
            yield _Keys(lines)

    def on_mount(self) -> None:
        box = self.query_one("#dialog", VerticalScroll)
        box.border_title = "Keys"
        box.border_subtitle = "esc closes"
        box.focus()

    def action_close(self) -> None:
        self.dismiss()

    def action_scroll_down(self) -> None:
        self.query_one("#dialog").scroll_down(animate=False)

    def action_scroll_up(self) -> None:
        self.query_one("#dialog").scroll_up(animate=False)


def _table(actions: list[Action]) -> list[Line]:
    lines: list[Line] = []
    for action in actions:
        asks = "" if action.danger is Danger.NONE else "  asks first"
        lines.append([Piece(f"{key_names(action) or 'palette':<13}", "key"), Piece(action.help), Piece(asks, "warn")])
    return lines
