"""The acts on a run that are asked about: what each says, and what it does once it was agreed to."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Checkbox, Input

from relaytui.client.acts import cancels, drains, forced, forces, lease_left, requeues
from relaytui.dashboard.acts import follow
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.screens.dialogs import RunDialog, Tick, paragraphs
from relaytui.wire.ids import is_id
from relaytui.wire.rows import RunRow
from relaytui.wire.status import OrderKind
from relaytui.wire.text import clean

LONGEST_TYPED = 24
"""A longer name than this is not asked to be typed; the word `force` is."""


class DrainDialog(RunDialog):
    act = "drain"
    title_text = "Drain"
    verb = "Drain"

    def consequence(self, row: RunRow, left: float | None) -> list[list[Piece]]:
        return paragraphs(drains(row))

    async def perform(self, why: str) -> str:
        client = await self.relay.session.client()
        given = await client.order(OrderKind.DRAIN, self.row.run_id, expected_epoch=self.row.epoch, why=why)
        self.relay.spawn(follow(self.relay, OrderKind.DRAIN, given))
        return f"{self.row.run_id}: drain ordered"


class CancelDialog(RunDialog):
    act = "cancel"
    title_text = "Cancel"
    keep = "Keep it"
    verb = "Cancel the run"
    variant = "error"

    def consequence(self, row: RunRow, left: float | None) -> list[list[Piece]]:
        return paragraphs(cancels(row))

    async def perform(self, why: str) -> str:
        client = await self.relay.session.client()
        given = await client.order(OrderKind.CANCEL, self.row.run_id, expected_epoch=self.row.epoch, why=why)
        self.relay.spawn(follow(self.relay, OrderKind.CANCEL, given))
        done = "cancelled" if given.order_id is None else "cancel ordered; it saves, if it can, and stops"
        return f"{self.row.run_id}: {done}"


class RequeueDialog(RunDialog):
    act = "requeue"
    title_text = "Requeue"
    verb = "Requeue"
    variant = "primary"

    def consequence(self, row: RunRow, left: float | None) -> list[list[Piece]]:
        return paragraphs(requeues(row, self.held))

    async def perform(self, why: str) -> str:
        client = await self.relay.session.client()
        await client.requeue(self.row.run_id, expected_epoch=self.row.epoch, why=why)
        but = f". {self.held}" if self.held else ""
        return f"{self.row.run_id}: queued again; the next agent that asks goes on with it{but}"


class ForceDialog(RunDialog):
    act = "force-acquire"
    title_text = "Force-acquire"
    verb = "Force-acquire"
    variant = "error"
    PARTS = (*RunDialog.PARTS, "#typed", "#gone")
    _not_it = ""
    """What was entered in place of the name; empty where nothing was."""

    def compose_choices(self) -> ComposeResult:
        gone = Tick("the old pod is gone for certain: take over at once", id="gone", compact=True)
        gone.display = self.row.status.active
        yield gone

    def compose_typed(self) -> ComposeResult:
        typed = Input(placeholder=f"type {self.word} to confirm", id="typed", compact=True, max_length=128)
        typed.display = self.live
        yield typed

    @property
    def word(self) -> str:
        return self.row.run_id if is_id(self.row.run_id) and len(self.row.run_id) <= LONGEST_TYPED else "force"

    @property
    def live(self) -> bool:
        return bool(lease_left(self.row, self.relay.mirror.now))

    @property
    def pod_gone(self) -> bool:
        return any(box.value for box in self.query("#gone").results(Checkbox))

    def paint(self) -> None:
        super().paint()
        if self.there:
            self.query_one("#typed").display = self.live
            self.query_one("#gone").display = self.row.status.active

    def ready(self) -> bool:
        return not self.live or self.query_one("#typed", Input).value.strip() == self.word

    def on_checkbox_changed(self) -> None:
        self.paint()

    # Textual calls what a dialog does at these for itself, too.

    def on_input_changed(self) -> None:
        self._not_it = ""

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "typed" and not self.ready():
            self._not_it = f"That is not {self.word}." if event.value.strip() else f"Type {self.word} to go on."
        self.paint()

    def on_descendant_focus(self) -> None:
        self.paint()

    def foot(self) -> list[Piece]:
        if self._not_it:
            return [Piece(self._not_it, "warn")]
        if not (self.live and self.can_go() and self.query_one("#go").has_focus):
            return []
        return [Piece(f"Enter takes the run from {clean(self.row.holder or 'its holder', 128)}.", "warn")]

    def on_mount(self) -> None:
        super().on_mount()
        self._focus_typed()

    def _focus_typed(self) -> None:
        """Where a name is wanted, a hand that types at once finds its place; Enter does nothing before it is whole."""
        if self.live:
            self.query_one("#typed", Input).focus()

    def decide_again(self) -> None:
        super().decide_again()
        if self.there:
            with self.prevent(Input.Changed):  # nobody typed that: what is said of a wrong name stays
                self.query_one("#typed", Input).value = ""
            self.query_one("#gone", Checkbox).value = False
            self._focus_typed()

    def consequence(self, row: RunRow, left: float | None) -> list[list[Piece]]:
        pod_gone = self.pod_gone and row.status.active
        said = paragraphs(forces(row, left, pod_gone=pod_gone, held=self.held))
        return [*said[:-1], [Piece(text, "warn") for text, _ in said[-1]]] if pod_gone else said

    async def perform(self, why: str) -> str:
        client = await self.relay.session.client()
        answer = await client.force_acquire(
            self.row.run_id, expected_epoch=self.row.epoch, why=why, pod_gone=self.pod_gone and self.row.status.active
        )
        return forced(answer.run, answer.epoch, self.held)


DIALOGS: dict[str, type[RunDialog]] = {
    dialog.act: dialog for dialog in (DrainDialog, CancelDialog, ForceDialog, RequeueDialog)
}
"""By the id of the act."""
