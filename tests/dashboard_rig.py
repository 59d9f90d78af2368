"""A dashboard under Textual's pilot, fed by a scripted commander over real sockets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from scripted_commander import ScriptedCommander, until
from textual.css import stylesheet
from textual.pilot import Pilot
from textual.screen import Screen

from relaytui.dashboard.app import DashboardApp, DashboardResult
from relaytui.dashboard.session import Source


def read_once() -> None:
    """Style sheets are read once for all apps of a process: that is a tenth of what a test of one takes."""
    parse, tokenize = stylesheet.parse, stylesheet.tokenize_values
    tokens = dict[Any, Any]()
    rules = dict[Any, Any]()

    def tokenized(values: dict[str, str]) -> Any:
        of = tuple(sorted(values.items()))
        if of not in tokens:
            tokens[of] = tokenize(values)
        return tokens[of]

    def parsed(scope: str, css: str, read_from: Any, *, variable_tokens: Any, **more: Any) -> Any:
        of = (scope, css, read_from, id(variable_tokens), *sorted(more.items()))  # the tokens stay where they are
        if of not in rules:
            rules[of] = list(parse(scope, css, read_from, variable_tokens=variable_tokens, **more))
        return rules[of]

    stylesheet.parse, stylesheet.tokenize_values = parsed, tokenized


read_once()


class Counted(DashboardApp):
    """Counts what it puts on the terminal: between two of that nobody has to look."""

    frames = 0

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        self.frames += 1
        super()._display(screen, renderable)


def screen_text(app: DashboardApp) -> str:
    """What the terminal shows, line by line."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


@dataclass
class Rig:
    app: Counted
    pilot: Pilot[DashboardResult]
    commander: ScriptedCommander

    @property
    def text(self) -> str:
        return screen_text(self.app)

    async def shows(self, *wanted: str, without: str | None = None) -> str:
        """Wait until the screen shows all of it; returns the screen."""

        def seen() -> bool:
            text = self.text
            return all(part in text for part in wanted) and (without is None or without not in text)

        looked_at = -1

        def seen_anew() -> bool:
            nonlocal looked_at
            if looked_at == self.app.frames:
                return False
            looked_at = self.app.frames
            return seen()

        try:
            await self.becomes(seen_anew)
        except AssertionError:
            raise AssertionError(f"never showed {wanted!r} (without {without!r}):\n{self.text}") from None
        return self.text

    async def becomes(self, condition: Callable[[], bool]) -> None:
        looks = 0

        def met() -> bool:
            nonlocal looks
            if (
                looks % 10 == 0 or self.app._paint_timer is not None
            ):  # what changed is painted at once, ages now and then
                self.app.paint_now()
            looks += 1
            return condition()

        await until(met, 8.0)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)


@contextlib.asynccontextmanager
async def dashboard(
    commander: ScriptedCommander,
    *,
    size: tuple[int, int] = (80, 24),
    source: Source | None = None,
    theme: str | None = None,
    plain: bool = False,
    program: str | None = "relay-tui",
) -> AsyncIterator[Rig]:
    app = Counted(source or commander.endpoint, theme=theme, plain=plain, actor="ada", program=program)
    async with app.run_test(size=size, notifications=True) as pilot:
        yield Rig(app, pilot, commander)
