"""What is asked before an act: each names target, holder, age and consequence, and begins on Cancel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Checkbox, Input

from relaytui.client.acts import hold_off, lease_left
from relaytui.client.words import silent
from relaytui.dashboard.format import ago, duration
from relaytui.dashboard.glyphs import run_state
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.refusals import OF_RUN
from relaytui.dashboard.widgets.lines import Line, Lines
from relaytui.dashboard.widgets.pieces import folded
from relaytui.wire.errors import RelayError
from relaytui.wire.rows import RunRow
from relaytui.wire.text import clean

if TYPE_CHECKING:
    from relaytui.dashboard.app import DashboardApp

HINT = "tab next · ⏎ press · esc {keep}"


Paragraph = Sequence[Piece]


class Prose(Lines):
    """Lines that are as high as what they say; what they begin with is in the first frame."""

    DEFAULT_CSS = "Prose { height: auto; }"

    def __init__(self, *paragraphs: Paragraph, id: str | None = None, folds: bool = True) -> None:
        super().__init__(id=id)
        self._folds = folds
        self._paragraphs = [list(paragraph) for paragraph in paragraphs]

    def say(self, *paragraphs: Paragraph) -> None:
        said = [list(paragraph) for paragraph in paragraphs]
        if said != self._paragraphs:
            self._paragraphs = said
            self.refresh(layout=True)
            self.call_after_refresh(self.refresh_content)

    def _lines(self, width: int) -> list[Line]:
        if not self._folds:
            return list(self._paragraphs)
        return [line for paragraph in self._paragraphs for line in folded(paragraph, max(8, width))]

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return max(1, len(self._lines(width)))

    def compose_lines(self, width: int) -> list[Line]:
        return self._lines(width)


def paragraphs(sentences: Sequence[str]) -> list[list[Piece]]:
    return [[Piece(each)] for each in sentences]


class Tick(Checkbox):
    """A checkbox whose state is read without colours."""

    BUTTON_LEFT = "["
    BUTTON_RIGHT = "]"
    BUTTON_INNER = " "

    def watch_value(self) -> None:
        self.BUTTON_INNER = "x" if self.value else " "
        super().watch_value()


class Dialog(ModalScreen[None]):
    CSS_PATH = Path(__file__).with_name("dialogs.tcss")
    VERTICAL_BREAKPOINTS = [(0, "-short"), (22, "-roomy")]  # noqa: RUF012 - Textual's own form
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel", show=False),
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
        Binding("ctrl+c,ctrl+q", "app.quit", show=False),
    ]
    AUTO_FOCUS = "#cancel"
    keep = "Cancel"
    """What the button says that does nothing."""
    PARTS: ClassVar[tuple[str, ...]] = ("#facts", "#buttons Button")

    @property
    def relay(self) -> DashboardApp:
        return cast("DashboardApp", self.app)

    @property
    def there(self) -> bool:
        """Whether what it shows is, all of it: the app may be left while an act of it is under way."""
        return self.is_mounted and all(self.query(part) for part in self.PARTS)

    def box(self, title: str) -> VerticalScroll:
        """The frame around all of it."""
        made = VerticalScroll(id="dialog", can_focus=False)
        made.border_title, made.border_subtitle = title, HINT.format(keep=self.keep.lower())
        return made

    def action_cancel(self) -> None:
        self.dismiss()

    def paint(self) -> None:
        """Look at the picture again."""


class RunDialog(Dialog):
    """An act on one run, decided on the epoch that was shown; if that changes, it is shown anew and decided again."""

    act = ""
    """Its id in the table of actions."""
    title_text = ""
    verb = ""
    variant = "warning"
    PARTS = (*Dialog.PARTS, "#consequence", "#why", "#error")

    def __init__(self, row: RunRow) -> None:
        super().__init__()
        self.row = row
        self._busy = False
        self._error: list[Piece] = []
        self._refused = ""
        """Why it cannot be done any more; empty where it can."""

    def compose(self) -> ComposeResult:
        left = lease_left(self.row, self.relay.mirror.now)
        with self.box(self.title_text):
            yield Prose(*self.facts(self.row, left), id="facts", folds=False)
            yield Prose(*self.consequence(self.row, left), id="consequence")
            yield Input(placeholder="why (goes into the history)", id="why", compact=True, max_length=500)
            yield from self.compose_typed()
            yield from self.compose_choices()
            with Horizontal(id="buttons"):
                yield Button(self.keep, id="cancel", compact=True)
                yield Button(self.verb, id="go", variant=self.variant, compact=True)  # type: ignore[arg-type]
            yield Prose(id="error")

    def compose_choices(self) -> ComposeResult:
        yield from ()

    def compose_typed(self) -> ComposeResult:
        yield from ()

    def on_mount(self) -> None:
        self.paint()

    # -- what it says ---------------------------------------------------------------------------------------------

    def current(self) -> RunRow | None:
        return self.relay.mirror.runs.get(self.row.run_id)

    def paint(self) -> None:
        if not self.there:
            return
        self._keep_up()
        row, left = self.row, lease_left(self.row, self.relay.mirror.now)
        self.query_one("#facts", Prose).say(*self.facts(row, left))
        refused = [[Piece(self._sentence(self._refused), "warn")]] if self._refused else None
        self.query_one("#consequence", Prose).say(*(refused or self.consequence(row, left)))
        foot, below = [line for line in (self._error, self.foot()) if line], self.query_one("#error", Prose)
        below.say(*foot)
        if bool(foot) is not below.display:
            below.display = bool(foot)
            self.call_after_refresh(below.scroll_visible, animate=False)  # a low terminal shows a part of a dialog
        self.query_one("#go", Button).disabled = self._busy or not self.can_go()

    def _keep_up(self) -> None:
        """All that is shown is of one state. While it is being done, what changes is its own doing."""
        if self._busy:
            return
        current, before = self.current(), self.row
        if current is None:
            self._error = self._error or [Piece("This run is gone meanwhile.", "warn")]
            return
        refused, self.row = self._refused, current
        self._refused = OF_RUN[self.act](current)
        if current.epoch != before.epoch:
            where = f"epoch {current.epoch}, held by {clean(current.holder or 'nobody', 128)}"
            self._error = [Piece(f"This run changed meanwhile: now {where}. Decide anew.", "warn")]
        if current.epoch != before.epoch or (self._refused and not refused):
            self.decide_again()

    @staticmethod
    def _sentence(words: str) -> str:
        return clean(f"{words}.", 300)

    def facts(self, row: RunRow, left: float | None) -> list[list[Piece]]:
        holder = clean(row.holder or "", 128)
        held = Piece(holder, "strong") if holder else Piece("nobody")
        if holder and not row.status.active:
            held = Piece(f"nobody; {holder} was told to stop")
        now = self.relay.mirror.now
        gone, told = silent(row, now), row.reported_at
        said = f"last report {ago(now - told)}" if told is not None else "" if row.step else "nothing reported yet"
        report = Piece(f"▲ {gone}", "warn") if gone else Piece(said, "muted")
        return [
            [
                Piece("run     ", "muted"),
                Piece(clean(row.run_id, 128), "strong"),
                Piece("  "),
                run_state(row),
                Piece("  "),
                Piece(f"epoch {row.epoch}", "muted"),
            ],
            [Piece("holder  ", "muted"), held, Piece("  "), report],
            [Piece("lease   ", "muted"), Piece("none" if left is None else f"{duration(left)} left", "strong")],
            [],
        ]

    @property
    def held(self) -> str:
        """Why no agent is granted a run for now; empty where they are."""
        mirror = self.relay.mirror
        return hold_off(mirror.no_grants_until, mirror.now)

    def consequence(self, row: RunRow, left: float | None) -> list[list[Piece]]:
        raise NotImplementedError

    def foot(self) -> list[Piece]:
        """What there is to say of where one is in it; below what went wrong, where something did."""
        return []

    def ready(self) -> bool:
        """Whether all that is asked for was given."""
        return True

    def can_go(self) -> bool:
        return not self._refused and self.ready()

    # -- doing it -------------------------------------------------------------------------------------------------

    def on_input_changed(self) -> None:
        self.paint()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """On to what is asked for still; where nothing is, to the button that does it."""
        if self.can_go():
            self.query_one("#go", Button).focus()
        elif event.input.id == "why":
            self.focus_next()

    @on(Button.Pressed, "#cancel")
    def _cancel(self) -> None:
        self.dismiss()

    @on(Button.Pressed, "#go")
    def _go(self) -> None:
        if not self._busy and self.can_go():
            self._busy = True
            self._error = []
            self.paint()
            self.relay.spawn(self._act())

    async def _act(self) -> None:
        try:
            said = await self.perform(self.query_one("#why", Input).value.strip())
        except RelayError as error:
            self._failed(error)
            if error.code in ("epoch_changed", "not_held", "not_now", "not_ended"):
                await self._look_again()
        else:
            self.dismiss()
            self.relay.say(said)
        finally:
            self._busy = False
            if self.there:
                self.paint()

    def _failed(self, error: RelayError) -> None:
        self._error = [Piece(clean(str(error), 500), "bad")]

    async def _look_again(self) -> None:
        """The decision was made on another state: show the one that is, and have it decided again."""
        try:
            await self.relay.session.load_run(self.row.run_id, curve=False)
        except RelayError as error:
            self._failed(error)
        row = self.current()
        if row is not None:
            self.row = row
        self.decide_again()

    def decide_again(self) -> None:
        if self.there:
            self.query_one("#cancel", Button).focus()

    async def perform(self, why: str) -> str:
        """Do it; what to say when it is done."""
        raise NotImplementedError
