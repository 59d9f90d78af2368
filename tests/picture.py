"""Makes docs/*.svg: the dashboard over the demo, drawn by the dashboard itself. Run by `make picture`."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from relaytui.cli.demo import SFT, SPARE, director_of, stage
from relaytui.dashboard.app import DashboardApp, DashboardResult
from relaytui.dashboard.session import METRIC

SIZE = (100, 28)
DOCS = Path(__file__).parent.parent / "docs"


async def draw(theme: str) -> None:
    with stage(None, steps=300) as (root, endpoint, fleet):
        director = director_of(root, endpoint, fleet)
        acting = asyncio.create_task(director.run(None))
        app = DashboardApp(endpoint, theme=theme)
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: SFT in director.runs and director.runs[SFT].holder == SPARE)
            await until(pilot, lambda: director.runs[SFT].step >= 150)
            await pilot.press("up", "down")
            await save(app, pilot, "runs")
            await pilot.press("enter")
            await until(pilot, lambda: director.runs[SFT].step >= 165)
            picture = app.mirror.picture(SFT)
            await until(pilot, lambda: 1 in picture.curve(METRIC).lines)  # the attempt before, too
            await save(app, pilot, "dashboard")
            app.exit(DashboardResult("quit"))
        acting.cancel()
        await asyncio.gather(acting, return_exceptions=True)


async def until(pilot: Pilot[DashboardResult], condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not condition():
            await pilot.pause(0.1)


async def save(app: DashboardApp, pilot: Pilot[DashboardResult], name: str) -> None:
    app.paint_now()
    await pilot.pause()
    svg = app.export_screenshot(title="relay-tui")
    # The fonts it names lie on somebody's server; every viewer has a monospace font of its own.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    # Some viewers drop the blanks that a text begins with, and with them what keeps two words apart.
    svg = svg.replace("<svg ", '<svg xml:space="preserve" ', 1)
    (DOCS / f"{name}.svg").write_text(svg, encoding="utf-8")
    print(f"docs/{name}.svg", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(draw(sys.argv[1] if len(sys.argv) > 1 else "relay-dark"))
