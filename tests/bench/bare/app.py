"""Yardstick of the dashboard's start: the least Textual app that puts a word on the screen."""

from __future__ import annotations

from textual.app import App, ComposeResult
from textual.widgets import Static

MARK = "READY-MARK"


class MinimalApp(App[None]):
    ENABLE_COMMAND_PALETTE = False

    def compose(self) -> ComposeResult:
        yield Static(MARK)


if __name__ == "__main__":
    MinimalApp().run()
