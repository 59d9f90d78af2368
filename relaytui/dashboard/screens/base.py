"""What the app asks of every screen: where one is, which run is meant, and to look at the picture again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from textual.screen import Screen

from relaytui.client.link import LinkState
from relaytui.client.mirror import Mirror
from relaytui.dashboard.actions import Place, bar_actions
from relaytui.dashboard.widgets.status import KeyBar, Reason, StatusLine

if TYPE_CHECKING:
    from textual.widgets import Input

    from relaytui.dashboard.app import DashboardApp
    from relaytui.dashboard.widgets.filter import FilterInput


class RelayScreen(Screen[None]):
    # A priority of fixed sizes: what does not fit gives way in `dashboard.tcss`.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-normal"), (110, "-wide")]  # noqa: RUF012 - Textual's own form
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (10, "-short"), (18, "-normal-high"), (36, "-tall")]  # noqa: RUF012

    @property
    def relay(self) -> DashboardApp:
        return cast("DashboardApp", self.app)

    @property
    def mirror(self) -> Mirror:
        return self.relay.mirror

    def places(self) -> frozenset[Place]:
        return frozenset()

    def target_run(self) -> str | None:
        """The run that an action would be about."""
        return None

    @property
    def paintable(self) -> bool:
        """Whether the widgets are there: not yet before composing, no more while leaving."""
        return self.is_attached and bool(self.query("#keys"))

    def paint(self) -> None:
        """Look at the picture again, and paint what changed."""
        status = self.query_one(StatusLine)
        status.url = self.relay.session.url
        status.refresh_content()
        reason = self.query_one(Reason)
        reason.display = bool(reason.words)
        if reason.display:
            reason.refresh_content()
        # What cannot be done is not shown; under a dialog none of these keys does what it says, and all are dim.
        on_top = self.app.screen is self
        can = [action for action in bar_actions(self.places()) if self.relay.can(action.id)]
        self.query_one(KeyBar).show_actions([(action, on_top) for action in can])

    def words_below(self, row: int) -> None:
        """What is said in the corner begins there, and leaves what is above to be read."""
        for rack in self.query("ToastRack"):
            if rack.styles.margin.top != row:
                rack.styles.margin = (row, 0, 0, 0)

    @property
    def can_go_back(self) -> bool:
        """Whether escape does anything here."""
        return bool(self.filter_text()) or self.app.screen_stack[0] is not self

    @property
    def list_shown(self) -> str:
        """Which of the lists one sees; empty where none."""
        return ""

    @property
    def can_filter(self) -> bool:
        return True

    @property
    def stale(self) -> bool:
        """Whether there is a picture, and it is not current."""
        return self.mirror.loaded and self.mirror.link.state is not LinkState.LIVE

    # -- filtering ------------------------------------------------------------------------------------------------

    def filter_text(self) -> str:
        return ""

    def set_filter(self, text: str) -> None:
        pass

    @property
    def filter_box(self) -> FilterInput | None:
        """The line being typed in; it is there only while it is needed."""
        found = self.query("#filter")
        return cast("FilterInput", found.first()) if found else None

    def open_filter(self) -> None:
        from relaytui.dashboard.widgets.filter import FilterInput

        if self.filter_box is None:
            box = FilterInput()
            box.value = self.filter_text()
            self.mount(box, before="#keys")
            box.focus()

    def close_filter(self) -> None:
        if (box := self.filter_box) is not None:
            box.remove()
        self.focus_content()

    def focus_content(self) -> None:
        pass

    def go_back(self) -> bool:
        """What escape does here first: close and clear the filter. False where there is none."""
        if self.filter_box is not None or self.filter_text():
            self.set_filter("")
            self.close_filter()
            return True
        return False

    def on_input_changed(self, event: Input.Changed) -> None:
        self.set_filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.close_filter()

    def on_screen_suspend(self, event: Any) -> None:
        if self.app.screen.is_modal:
            self.paint()

    def on_screen_resume(self, event: Any) -> None:
        self.paint()
        self.relay.say_now()
