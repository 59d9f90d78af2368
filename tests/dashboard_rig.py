"""A dashboard under Textual's pilot, fed by a scripted commander over real sockets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from scripted_commander import ScriptedCommander, until
from textual.pilot import Pilot

from relaytui.dashboard.app import DashboardApp, DashboardResult
from relaytui.dashboard.session import Source


def screen_text(app: DashboardApp) -> str:
    """What the terminal shows, line by line."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


@dataclass
class Rig:
    app: DashboardApp
    pilot: Pilot[DashboardResult]
    commander: ScriptedCommander

    @property
    def text(self) -> str:
        return screen_text(self.app)

    async def shows(self, *wanted: str, without: str | None = None) -> str:
        """Wait until the screen shows all of it; returns the screen."""

        def seen() -> bool:
            self.app.paint_now()
            text = self.text
            return all(part in text for part in wanted) and (without is None or without not in text)

        try:
            await until(seen, 8.0)
        except AssertionError:
            raise AssertionError(f"never showed {wanted!r} (without {without!r}):\n{self.text}") from None
        return self.text

    async def becomes(self, condition: Callable[[], bool]) -> None:
        def met() -> bool:
            self.app.paint_now()
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
    app = DashboardApp(source or commander.endpoint, theme=theme, plain=plain, actor="ada", program=program)
    async with app.run_test(size=size, notifications=True) as pilot:
        yield Rig(app, pilot, commander)
