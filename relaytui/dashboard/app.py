"""The dashboard: one picture, a home screen with lists, a screen per opened run, and the acts of the action table."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from textual.app import SystemCommand
from textual.binding import BindingType
from textual.driver import Driver
from textual.events import Event, Key, Paste
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.timer import Timer

from relaytui.client.mirror import Mirror
from relaytui.dashboard.actions import app_bindings, app_handlers
from relaytui.dashboard.acts import acting
from relaytui.dashboard.keys import KeyDone, KeyQueue
from relaytui.dashboard.looks import ThemedApp
from relaytui.dashboard.refusals import OF_RUN, OF_SCREEN
from relaytui.dashboard.screens.base import RelayScreen
from relaytui.dashboard.screens.home import HomeScreen
from relaytui.dashboard.session import Opened, Session, Source
from relaytui.wire.errors import RelayError
from relaytui.wire.rows import EventRow, RunRow
from relaytui.wire.text import clean

PAINT_EVERY = 0.1
"""Seconds between two paints at least: a flood of reports costs no more than ten a second."""
BEGIN_AFTER = 0.03
"""Seconds between the first frame and what comes after it."""
TICK = 1.0
"""Seconds between looks at ages; they are shown in whole ones."""

SAID_FOR: dict[SeverityLevel, float] = {"information": 3.0, "warning": 5.0, "error": 5.0}
"""Seconds that a word stays."""
MAX_UNSAID = 5
"""Words that wait under a dialog."""

Reason = Literal["quit", "leave", "stop", "signal", "crash", "failed"]


@dataclass(frozen=True)
class DashboardResult:
    """How it ended. `leave`: the embedded commander is to go on without a screen; `failed`: none could be opened."""

    reason: Reason
    message: str = ""
    error: RelayError | None = None
    signal: int | None = None


class DashboardApp(ThemedApp[DashboardResult]):
    TITLE = "relay"
    CSS_PATH = Path(__file__).with_name("dashboard.tcss")
    BINDINGS: ClassVar[list[BindingType]] = [*app_bindings()]
    ENABLE_COMMAND_PALETTE = True

    def __init__(
        self,
        source: Source,
        *,
        theme: str | None = None,
        program: str | None = "relay-tui",
        title: str = "relay",
        actor: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_crash: Callable[[BaseException], str] | None = None,
        plain: bool = False,
    ) -> None:
        """`program`: how hints call `relay-tui` so that it means this commander; None in a demo, where nothing is left
        to start."""
        super().__init__(theme=theme, plain=plain)
        self.title = title
        self.mirror = Mirror(clock)
        self.program = program
        self.session = Session(source, self.mirror, self.changed, actor=actor)
        self.session.on_opened = self._opened
        self.session.on_alarm = self._alarmed
        self._on_crash = on_crash
        self._tasks: set[asyncio.Task[Any]] = set()
        self._paint_timer: Timer | None = None
        self._painted_at = 0.0
        self._quitting = False
        self._keys = KeyQueue(self, super().on_event)
        self._unsaid = deque[tuple[str, SeverityLevel]](maxlen=MAX_UNSAID)
        self._stands: dict[str, float] = {}  # words in the corner, and until when

    # -- life -----------------------------------------------------------------------------------------------------

    def get_driver_class(self) -> type[Driver]:
        driver = super().get_driver_class()
        if driver.__module__ == "textual.drivers.linux_driver":
            from relaytui.dashboard.driver import TerminalDriver

            return TerminalDriver
        return driver

    def get_default_screen(self) -> Screen[Any]:
        return HomeScreen()

    def on_mount(self) -> None:
        self.set_interval(TICK, self.paint_now)

    def on_ready(self) -> None:
        # Only after the first frame is out: what follows reads, imports and connects, and would hold its writer up.
        self.call_after_refresh(self.set_timer, BEGIN_AFTER, self._begin)

    def _begin(self) -> None:
        for problem in self.load_themes():
            self.say(problem, severity="warning")
        self.spawn(self._run_session())

    async def _run_session(self) -> None:
        try:
            await self.session.run()
        except RelayError as error:
            self.exit(DashboardResult("failed", str(error), error))

    def _opened(self, opened: Opened) -> None:
        if opened.warning:
            self.say(opened.warning, severity="warning")

    def _alarmed(self, event: EventRow) -> None:
        self.say(f"{event.run_id}: {event.message}", severity="error")

    async def on_unmount(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        await self.session.close()

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Do this beside the screen. What goes wrong in it goes wrong for the app."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, Exception):
                self._handle_exception(error)
            else:
                raise error

    def leave(self, reason: Reason, *, message: str = "", signal: int | None = None) -> None:
        if not self._quitting:
            self._quitting = True
            self.exit(DashboardResult(reason, message, signal=signal))

    async def on_event(self, event: Event) -> None:
        if isinstance(event, (Key, Paste)) and not event.is_forwarded:
            await self._keys.take(event)
        else:
            await super().on_event(event)

    def on_key_done(self, event: KeyDone) -> None:
        self._keys.done(event.number)

    def terminal_lost(self) -> None:
        """The terminal takes nothing any more: what a hangup means, told or not."""
        self.leave("signal", signal=int(signal.SIGHUP))

    def paint_anew(self) -> None:
        """The terminal shows nothing of what was painted before."""
        self.refresh(layout=True)
        self.screen.refresh(layout=True)

    def _fatal_error(self) -> None:
        """In place of a traceback with local variables, in which tokens would show."""
        error = self._exception
        message = self._on_crash(error) if self._on_crash is not None and error is not None else repr(error)
        self._return_value = DashboardResult("crash", message)
        self._close_messages_no_wait()

    # -- painting -------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """The picture may look different: paint soon, at most every PAINT_EVERY seconds."""
        if self._paint_timer is None and self.is_running:
            wait = PAINT_EVERY - (time.monotonic() - self._painted_at)
            self._paint_timer = self.set_timer(max(0.001, wait), self.paint_now)

    def paint_now(self) -> None:
        if self._paint_timer is not None:
            self._paint_timer.stop()
            self._paint_timer = None
        self._painted_at = time.monotonic()
        # A dialog lies over a screen that is still seen.
        for screen in self.screen_stack[-2:]:
            paint = getattr(screen, "paint", None)
            if paint is not None and (screen is self.screen or self.screen.is_modal):
                paint()

    def say(self, message: str, *, severity: SeverityLevel = "information") -> None:
        """A word in the corner; never markup. Under a dialog it waits until that is closed: it would cover it."""
        self._unsaid.append((clean(message, 500), severity))
        self.say_now()

    def say_now(self) -> None:
        """What waited."""
        while self._unsaid and not self.screen.is_modal:
            message, severity = self._unsaid.popleft()
            now = time.monotonic()
            if now < self._stands.get(message, now):
                continue
            self._stands = {words: until for words, until in self._stands.items() if now < until}
            self._stands[message] = now + SAID_FOR[severity]
            self.notify(message, severity=severity, timeout=SAID_FOR[severity], markup=False)

    # -- acting ---------------------------------------------------------------------------------------------------

    def _relay_screen(self) -> RelayScreen | None:
        return self.screen if isinstance(self.screen, RelayScreen) else None

    def _below(self) -> RelayScreen | None:
        """The screen one is on, also under a dialog."""
        return next((s for s in reversed(self.screen_stack) if isinstance(s, RelayScreen)), None)

    def target(self) -> RunRow | None:
        screen = self._below()
        run_id = screen.target_run() if screen is not None else None
        return self.mirror.runs.get(run_id) if run_id is not None else None

    def why_not(self, action_id: str) -> str:
        """Why this cannot be done now, in words; empty where it can."""
        screen = self._below()
        if action_id in OF_SCREEN and screen is not None:
            return OF_SCREEN[action_id](screen)
        refuses = OF_RUN.get(action_id)
        if refuses is None:
            return ""
        row = self.target()
        if row is None:
            return "no run is selected" if self.mirror.loaded else "nothing is here yet: still connecting"
        return refuses(row)

    def can(self, action_id: str) -> bool:
        return not self.why_not(action_id)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        known = _HANDLERS.get(action)
        if known is None:
            return True
        screen = self._relay_screen()
        return screen is not None and bool(known.where & screen.places())

    def refused(self, action_id: str) -> bool:
        if self.target() is None:
            self.paint_now()  # the first picture may be here and not yet on the screen
        why = self.why_not(action_id)
        if why:
            self.say(why, severity="warning")
        return bool(why)

    action_open_run = acting("open")
    action_drain = acting("drain")
    action_save_now = acting("save")
    action_sync_now = acting("sync")
    action_cancel_run = acting("cancel")
    action_force_acquire = acting("force-acquire")
    action_requeue = acting("requeue")
    action_copy_id = acting("copy")

    def action_go_back(self) -> None:
        screen = self._relay_screen()
        if screen is not None and not screen.go_back() and len(self.screen_stack) > 1:
            self.pop_screen()

    def action_show(self, name: str) -> None:
        while len(self.screen_stack) > 1:
            self.pop_screen()
        if isinstance(self.screen, HomeScreen):
            self.screen.show_list(name)

    def action_filter(self) -> None:
        if (screen := self._relay_screen()) is not None and not self.refused("filter"):
            screen.open_filter()

    def action_sort(self) -> None:
        if isinstance(self.screen, HomeScreen):
            self.screen.sort_next()

    def action_reverse(self) -> None:
        if isinstance(self.screen, HomeScreen):
            self.screen.sort_reverse()

    def action_next_view(self) -> None:
        from relaytui.dashboard.screens.run import RunScreen

        if isinstance(self.screen, RunScreen):
            self.screen.next_view()

    def action_help(self) -> None:
        from relaytui.dashboard.screens.help import HelpScreen

        if (screen := self._relay_screen()) is not None:
            self.push_screen(HelpScreen(screen.places(), screen.focused, self.why_not))

    def action_suspend_process(self) -> None:
        from relaytui.dashboard.driver import TerminalDriver
        from relaytui.dashboard.job import can_come_back

        if isinstance(self._driver, TerminalDriver) and can_come_back():
            self._driver.leave_for_the_shell()
        else:
            self.say("no shell is here to come back to")

    async def action_quit(self) -> None:
        from relaytui.dashboard.screens.quitting import QuitDialog

        if any(isinstance(screen, QuitDialog) for screen in self.screen_stack):
            return
        opened = self.session.opened
        held = any(row.status.active for row in self.mirror.runs.values())
        if opened is not None and opened.embedded and held:
            self.push_screen(QuitDialog())
        else:
            self.leave("quit")

    # -- the palette ----------------------------------------------------------------------------------------------

    def action_command_palette(self) -> None:
        from relaytui.dashboard.palette import Palette

        if not isinstance(self.screen, Palette):
            self.push_screen(Palette())

    def search_themes(self) -> None:
        from relaytui.dashboard.palette import theme_palette

        self.push_screen(theme_palette())
        while self.broken_themes:
            self.say(self.broken_themes.pop(0), severity="warning")

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        from relaytui.dashboard.palette import commands

        return commands(self, screen)


_HANDLERS = app_handlers()
