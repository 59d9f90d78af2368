"""Runs the dashboard in this thread, and gives the terminal back whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType

from relaytui.dashboard.app import DashboardApp, DashboardResult
from relaytui.dashboard.last_resort import LastResort
from relaytui.dashboard.session import Source
from relaytui.wire.errors import RelayError
from relaytui.wire.files import append_plain, must_be_plain, private_folder

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGINT") if hasattr(signal, name))

MAX_LOG_BYTES = 1_000_000


def run_dashboard(
    source: Source,
    *,
    theme: str | None = None,
    program: str | None = "relay-tui",
    title: str = "relay",
    actor: str | None = None,
    log_path: Path | None = None,
    mouse: bool = True,
) -> DashboardResult:
    """Show the dashboard until it is left. Call it in the main thread, with a terminal.

    `source` is an Endpoint, or a function that finds or starts a commander and returns Opened; it is called in a thread
    after the first paint. What is logged meanwhile goes to `log_path`, never to the terminal.
    `program`: how hints call `relay-tui`, None where they have nothing to teach.
    """
    log_path = log_path or _default_log()

    def crashed(error: BaseException) -> str:
        # Frames, but no local variables: a token may be among them.
        import traceback

        text = "".join(traceback.format_exception(error))
        logging.getLogger("relaytui.dashboard").error("the dashboard crashed\n%s", text)
        details = f"no details, as {log.trouble}" if log.trouble else f"details are in {log_path}"
        return f"the dashboard crashed ({type(error).__name__}); {details}"

    with logging_to(log_path) as log:
        app = DashboardApp(
            source, theme=theme, program=program, title=title, actor=actor, on_crash=crashed,
            plain=bool(os.environ.get("NO_COLOR")),
        )  # fmt: skip
        result = asyncio.run(_run(app, mouse))
    return result if result is not None else DashboardResult("quit")


async def _run(app: DashboardApp, mouse: bool) -> DashboardResult | None:
    loop = asyncio.get_running_loop()
    with LastResort() as last_resort:

        def asked(number: int, frame: FrameType | None) -> None:
            last_resort.begin(number)
            # Refused where the loop is closed, which is to say that it is left already.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(partial(app.leave, "signal", signal=number))

        # Not the loop's own handlers: those run when the loop comes round, and it may be waiting for a terminal
        # that takes nothing. These run in the main thread even then.
        before = {number: signal.signal(number, asked) for number in _SIGNALS}
        try:
            return await app.run_async(mouse=mouse)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _default_log() -> Path:
    from platformdirs import user_log_path

    return user_log_path("relay-tui") / "dashboard.log"


class LogFile(logging.FileHandler):
    """A plain file, opened at the first line; where it cannot be, `trouble` says why and the lines are lost."""

    trouble = ""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", delay=True)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def _open(self) -> io.TextIOWrapper:
        path = Path(self.baseFilename)
        try:
            private_folder(path.parent)
            if must_be_plain(path) and path.stat().st_size > MAX_LOG_BYTES:
                path.replace(path.with_suffix(".log.1"))
            return io.TextIOWrapper(append_plain(path), "utf-8", "backslashreplace")
        except RelayError as error:
            self.trouble = error.message
        except OSError as error:
            self.trouble = f"{path} cannot be written: {error.strerror}"
        return Path(os.devnull).open("w", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """The terminal is not told: it shows something else."""
        self.trouble = self.trouble or f"{self.baseFilename} could not be written"


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[LogFile]:
    """While the screen is up, what is logged goes to a file: a line on the terminal would tear it."""
    root = logging.getLogger()
    before = list(root.handlers)
    handler = LogFile(path)
    for old in before:
        root.removeHandler(old)
    root.addHandler(handler)
    try:
        yield handler
    finally:
        root.removeHandler(handler)
        with contextlib.suppress(OSError):  # a full disk
            handler.close()
        for old in before:
            root.addHandler(old)
