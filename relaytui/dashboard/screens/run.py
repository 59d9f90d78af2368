"""One run: how far it is, its curve, its attempts and checkpoints, and what its trainer prints."""

from __future__ import annotations

from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from relaytui.client.link import LinkState
from relaytui.client.words import behind, silent
from relaytui.dashboard.actions import Place
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.screens.base import RelayScreen
from relaytui.dashboard.screens.facts import run_lines
from relaytui.dashboard.screens.histories import (
    ARTIFACT_COLUMNS,
    ATTEMPT_COLUMNS,
    CHECKPOINT_COLUMNS,
    artifact_item,
    attempt_item,
    checkpoint_item,
    checkpoints_shown,
    names_stored,
)
from relaytui.dashboard.session import METRIC
from relaytui.dashboard.widgets.chart import Chart
from relaytui.dashboard.widgets.lines import Line, Lines
from relaytui.dashboard.widgets.log import LogView
from relaytui.dashboard.widgets.status import KeyBar, Reason, StatusLine
from relaytui.dashboard.widgets.table import Table
from relaytui.wire.errors import RelayError
from relaytui.wire.rows import AttemptRow

VIEWS = ("all", "log", "curve", "history")


class RunHead(Lines):
    def __init__(self, screen: RunScreen) -> None:
        super().__init__(id="head")
        self._screen = screen

    def compose_lines(self, width: int) -> list[Line]:
        screen = self._screen
        row = screen.mirror.runs.get(screen.run_id)
        if row is None:
            said = "reading …" if not screen.mirror.loaded else "the commander does not know this run"
            return [[Piece(" "), Piece(screen.run_id, "strong"), Piece(f"  {said}", "muted")]]
        least = 3 if screen.has_class("-short") else 4
        most = max(1, screen.size.height // 4)
        low = screen.has_class("-short") or screen.has_class("-tiny")
        moving = 0 if low else 5 if screen.has_class("-tall") else 3
        lines = run_lines(row, screen.mirror, width, least=least, most=most, moving=moving)
        return [list(line) for line in lines]

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return len(self.compose_lines(width))

    def refresh_content(self) -> None:
        before = len(self._shown)
        super().refresh_content()
        if len(self._shown) != before:
            self.refresh(layout=True)


class RunScreen(RelayScreen):
    CSS_PATH = Path(__file__).with_name("run.tcss")

    def __init__(self, run_id: str) -> None:
        super().__init__(id="run", classes="view-all")
        self.run_id = run_id
        self._view = "all"
        self._loaded_for: tuple[object, ...] = ()
        self._painted: tuple[object, ...] = ()
        self._loading = False

    def compose(self) -> ComposeResult:
        yield StatusLine(self.mirror, title=self.relay.title)
        yield Reason(self.mirror, lambda: self.relay.session.remark, self._doubt)
        yield RunHead(self)
        with Horizontal(id="middle"):
            yield Chart(METRIC, id="curve")
            with Vertical(id="history"):
                yield Table(ATTEMPT_COLUMNS, id="attempts", selects=False)
                yield Table(CHECKPOINT_COLUMNS, id="checkpoints", selects=False)
                yield Table(ARTIFACT_COLUMNS, id="artifacts", selects=False)
        yield LogView(id="log")
        yield KeyBar()

    def on_mount(self) -> None:
        self.focus_content()
        self.relay.spawn(self.relay.session.watch([self.run_id]))
        self.paint()

    def on_unmount(self) -> None:
        self.relay.spawn(self.relay.session.watch([]))

    @property
    def paintable(self) -> bool:
        # What is inside a container comes after what is not.
        return super().paintable and bool(self.query("#artifacts"))

    def places(self) -> frozenset[Place]:
        return frozenset({Place.RUN})

    def target_run(self) -> str | None:
        return self.run_id

    def focus_content(self) -> None:
        self.query_one(LogView).focus()

    # -- painting -------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        if not self.paintable:
            return
        super().paint()
        mirror = self.mirror
        picture = mirror.picture(self.run_id)
        stale = self.stale
        head, chart, log = self.query_one(RunHead), self.query_one(Chart), self.query_one(LogView)
        attempts, checkpoints = self.query_one("#attempts", Table), self.query_one("#checkpoints", Table)
        artifacts = self.query_one("#artifacts", Table)
        for widget in (head, chart, log, attempts, checkpoints, artifacts):
            widget.set_stale(stale)
        head.refresh_content()
        self.words_below(head.region.bottom)
        chart.show(picture.curve(METRIC))
        log.notice = self._log_notice()
        log.follow_buffer(picture.log)
        log.refresh_log()
        seen = (picture.version, id(picture), int(mirror.now), picture.loaded)
        if seen != self._painted:
            self._painted = seen
            now = mirror.now
            current = mirror.runs.get(self.run_id)
            gone = silent(current, now) if current is not None else ""
            waiting: list[Line] = [] if picture.loaded else [[Piece("reading …", "muted")]]
            tried = sorted(picture.attempts.values(), key=lambda row: -row.epoch)
            stored = sorted(picture.artifacts.values(), key=lambda row: -row.id)
            names = names_stored(stored)
            attempts.show(
                [attempt_item(row, self._last_step(row), now, gone) for row in tried],
                notice=waiting or [[Piece("no attempt yet: it waits for an agent", "muted")]],
            )
            checkpoints.show(
                [checkpoint_item(row, names, now) for row in checkpoints_shown(picture.checkpoints.values(), names)],
                notice=waiting or [[Piece("none published yet", "muted")]],
            )
            self.set_class(bool(stored), "-stores")
            artifacts.show(
                [artifact_item(row, now) for row in stored],
                notice=waiting or [[Piece("the artifact store has nothing of it", "muted")]],
            )
        self._load_if_needed()

    def _doubt(self) -> str:
        """Of its attempts and checkpoints."""
        return behind(self.mirror.runs.get(self.run_id), self.mirror.now)

    def _last_step(self, attempt: AttemptRow) -> int:
        """The running attempt's step comes with the run's row."""
        row = self.mirror.runs.get(self.run_id)
        if row is not None and attempt.ended_at is None and row.epoch == attempt.epoch:
            return max(row.step, attempt.last_step)
        return attempt.last_step

    def _log_notice(self) -> tuple[Piece, ...]:
        row = self.mirror.runs.get(self.run_id)
        if self.mirror.link.state is not LinkState.LIVE:
            return (Piece("not connected: no lines to show", "muted"),)
        if row is None or not row.attempts:
            return (Piece("nothing printed yet: the run waits for an agent", "muted"),)
        return (Piece("no lines yet", "muted"),)

    def _load_if_needed(self) -> None:
        """Read attempts and checkpoints anew when the run's life changed, and after each reconnect."""
        row = self.mirror.runs.get(self.run_id)
        if self.mirror.link.state is not LinkState.LIVE or row is None or self._loading:
            return
        wanted = (row.epoch, row.status, row.attempts, self.mirror.link.since)
        if wanted != self._loaded_for:
            self._loading = True
            self.relay.spawn(self._load(wanted))

    async def _load(self, wanted: tuple[object, ...]) -> None:
        try:
            reconnected = not self._loaded_for or self._loaded_for[-1] != wanted[-1]
            await self.relay.session.load_run(self.run_id, curve=reconnected)
        except RelayError as error:
            self.relay.say(str(error), severity="warning")
        finally:
            self._loaded_for = wanted
            self._loading = False

    # -- acting ---------------------------------------------------------------------------------------------------

    def next_view(self) -> None:
        self.remove_class(f"view-{self._view}")
        self._view = VIEWS[(VIEWS.index(self._view) + 1) % len(VIEWS)]
        self.add_class(f"view-{self._view}")
        if self._view in ("all", "log"):
            self.focus_content()
        elif self._view == "history":
            self.query_one("#attempts", Table).focus()
        else:
            self.set_focus(None)  # of what is not seen
        self.paint()

    @property
    def can_filter(self) -> bool:
        return self._view in ("all", "log")

    def filter_text(self) -> str:
        return next((log.filter for log in self.query(LogView)), "")  # none before it is composed

    def set_filter(self, text: str) -> None:
        self.query_one(LogView).set_filter(text)

    def on_log_view_wants_older(self) -> None:
        self.relay.spawn(self._load_older())

    async def _load_older(self) -> None:
        try:
            came = await self.relay.session.load_older(self.run_id)
        except RelayError as error:
            self.relay.say(str(error), severity="warning")
            return
        if came is None:
            self.relay.say("this is the first line")
        elif not came:
            log = f"`{self.relay.program or 'relay-tui'} log`"
            self.relay.say(f"no older lines fit here; {log} has them all, and so has the volume")
