"""What is asked before a commander that agents depend on is stopped by quitting."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Button

from relaytui.dashboard.ink import Piece
from relaytui.dashboard.screens.dialogs import Dialog, Prose
from relaytui.dashboard.screens.facts import joined
from relaytui.wire.status import RunStatus
from relaytui.wire.text import counted


class QuitDialog(Dialog):
    """Asked only where quitting would stop a commander that agents depend on."""

    def compose(self) -> ComposeResult:
        with self.box("Quit"):
            yield Prose(*self.facts(), id="facts")
            with Horizontal(id="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Leave it running", id="leave", variant="primary", compact=True)
                yield Button("Stop it", id="stop", variant="warning", compact=True)

    def paint(self) -> None:
        if self.there:
            self.query_one("#facts", Prose).say(*self.facts())

    def facts(self) -> list[list[Piece]]:
        held = [row for row in self.relay.mirror.runs.values() if row.status.active]
        draining = sum(row.status is RunStatus.DRAINING for row in held)
        runs = f"{counted(len(held), 'run is', 'runs are')} held by agents"
        return [
            joined([Piece(runs, "strong")], [Piece(f"{draining} draining")] if draining else []),
            [
                Piece(
                    "This dashboard is also their commander. Training goes on either way: agents keep their reports and"
                ),
                Piece("bring them when a commander is back on this state folder."),
            ],
            [
                Piece("Left running, it keeps taking reports without a screen; ", "muted"),
                Piece(f"{self.relay.program} attaches to it again.", "muted"),
            ],
            [Piece(" ")],
        ]

    def on_button_pressed(self, event: Button.Pressed) -> None:
        chosen = event.button.id
        self.dismiss()
        if chosen == "leave":
            self.relay.leave("leave")
        elif chosen == "stop":
            self.relay.leave("stop")
