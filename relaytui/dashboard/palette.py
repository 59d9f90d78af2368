"""The command palette: what can be done here and now, and the runs by name; `ctrl+c` quits from it, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.screen import Screen
from textual.theme import ThemeProvider

from relaytui.dashboard.actions import ACTIONS, Place
from relaytui.dashboard.screens.base import RelayScreen
from relaytui.wire.ids import is_id

if TYPE_CHECKING:
    from relaytui.dashboard.app import DashboardApp


class Palette(CommandPalette):
    # A modal screen hears no key of the app's but those that it names.
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c,ctrl+q", "app.quit", show=False)]


def theme_palette() -> Palette:
    return Palette(providers=[ThemeProvider], placeholder="Search for themes…")


def commands(app: DashboardApp, screen: Screen[Any]) -> Iterable[SystemCommand]:
    places: frozenset[Place] = screen.places() if isinstance(screen, RelayScreen) else frozenset()
    at = {*places, Place.ANYWHERE}
    for action in ACTIONS:
        if action.where & at and action.id not in ("palette", "open", "back") and app.can(action.id):
            yield SystemCommand(action.label, f"{action.help}.", _runner(app, action.handler))
    opened = screen.target_run() if isinstance(screen, RelayScreen) and Place.RUN in places else None
    for run_id in sorted(app.mirror.runs):
        if is_id(run_id) and run_id != opened:  # the palette reads titles as markup; an id has none of its characters
            yield SystemCommand(f"open {run_id}", "Open this run.", _opener(app, run_id))


def _runner(app: DashboardApp, handler: str) -> Callable[[], Any]:
    async def run() -> None:
        await app.run_action(handler)

    return run


def _opener(app: DashboardApp, run_id: str) -> Callable[[], Any]:
    def open_run() -> None:
        from relaytui.dashboard.screens.run import RunScreen

        while len(app.screen_stack) > 1:
            app.pop_screen()
        app.push_screen(RunScreen(run_id))

    return open_run
