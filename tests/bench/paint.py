"""The dashboard's time to first paint, in a real terminal: exec → the table of runs, whole, on the screen."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from relaytui.wire.codec import encode
from relaytui.wire.messages import Ack, Reports
from relaytui.wire.reports import Started, Step
from relaytui.wire.status import Stream
from tests.bench.bare.app import MARK
from tests.bench.children import program
from tests.bench.commander_process import Commander, commander
from tests.bench.load.agents import acquire_all, understood
from tests.bench.load.websocket import ClosedError
from tests.bench.rounds import Bench, Figures, Setting, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured
from tests.bench.screen import Shown, Terminal, both, has, has_line, terminal_environment

RUNS = 3
HEADER = has_line("run", "status", "step", "loss", "holder")
"""The runs table's header; order and looks of its columns are nobody's business here."""
FULL = both(HEADER, has_line("help", "quit"))
"""The first full frame: from the header down to the footer with its keys."""


def run(setting: Setting) -> list[Row]:
    bare_app = [sys.executable, str(Path(__file__).parent / "bare" / "app.py")]
    dashboard = program("relay-tui")
    numbers = itertools.count(1)

    def embedded() -> Figures:
        state = setting.folder / f"embedded-{next(numbers)}"
        argv = [dashboard, "--state", str(state), "--port", "0"]
        return painted("dashboard, embedded", argv, setting.folder, {"first": FULL})

    with commander(setting.folder) as serving:
        run_ids = asyncio.run(populate(serving))
        attach = [dashboard, "--state", str(serving.state)]
        samples = interleave(
            {
                "minimal app": lambda: painted("minimal app", bare_app, setting.folder, {"first": has(MARK)}),
                "dashboard, attached": lambda: painted(
                    "dashboard, attached",
                    attach,
                    setting.folder,
                    {"first": FULL, "runs": has(*run_ids)},
                ),
                "dashboard, embedded": embedded,
            },
            setting,
        )
    bare = Yardstick("minimal Textual app", samples.of("minimal app", "first_s"))
    goal = Goal(ratio_at_most=1.5)
    return [
        measured("paint.attached", "s", samples.of("dashboard, attached", "first_s"), bare, goal),
        measured("paint.embedded", "s", samples.of("dashboard, embedded", "first_s"), bare, goal),
        measured("paint.runs", "s", samples.of("dashboard, attached", "runs_s"), bare),
    ]


def painted(name: str, argv: Sequence[str], folder: Path, moments: dict[str, Shown]) -> Figures:
    """Seconds from exec to each moment."""
    terminal = Terminal(name, argv, folder, terminal_environment())
    try:
        terminal.watch(lambda screen: all(shown(screen) for shown in moments.values()))
    finally:
        terminal.stop()
    return {f"{moment}_s": terminal.when(shown) for moment, shown in moments.items()}


async def populate(serving: Commander) -> list[str]:
    """Runs to be shown, each held and at a step; their ids."""
    holders = await acquire_all(serving.port, serving.worker_token, "paint", RUNS)
    for holder in holders:
        for stream, report in (
            (Stream.STATE, Started(t=1.0)),
            (Stream.TELEMETRY, Step(t=1.0, step=120, total=400, metrics={"loss": 2.25, "lr": 0.01})),
        ):
            frame = Reports(holder.run_id, holder.epoch, holder.token, stream, 1, [report])
            holder.socket.send(encode(frame))
            answer = understood(await holder.socket.receive())
            if not isinstance(answer, Ack):
                raise ClosedError(f"a report was answered with {answer}")
        holder.socket.close()
    return [holder.run_id for holder in holders]


BENCH = Bench(
    "paint",
    "exec → the dashboard's runs table on the screen, attached and with its own commander",
    ("paint.attached", "paint.embedded", "paint.runs"),
    run,
)
