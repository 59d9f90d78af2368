"""The lists: runs, workers, events. One is shown at a time; each keeps its own order, filter and selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from textual.app import ComposeResult

from relaytui.client.link import LinkState
from relaytui.dashboard.actions import Place
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.screens.base import RelayScreen
from relaytui.dashboard.screens.facts import event_lines, peek_lines
from relaytui.dashboard.screens.lists import Item, ListSpec, Setting, list_specs
from relaytui.dashboard.widgets.lines import Line, Lines
from relaytui.dashboard.widgets.pieces import cut
from relaytui.dashboard.widgets.status import KeyBar, Reason, StatusLine, TabLine, workers_here
from relaytui.dashboard.widgets.table import Table
from relaytui.wire.errors import RelayError
from relaytui.wire.rows import EventRow
from relaytui.wire.text import counted

LOOKING = ([Piece("looking through older ones …", "muted")],)


@dataclass
class ListState:
    """One list as the operator set it, and what of the picture it was last painted from."""

    spec: ListSpec
    order: str
    reverse: bool
    filter: str = ""
    items: dict[str, Item] | None = None
    painted: tuple[object, ...] = ()


class Peek(Lines):
    """The selected run in words, so that a column that gave way is not lost: as high as these need, up to a third of
    the screen."""

    def __init__(self, home: HomeScreen) -> None:
        super().__init__(id="peek")
        self._home = home

    def compose_lines(self, width: int) -> list[Line]:
        home = self._home
        rule: Line = [Piece("─" * width, "faint")]
        rows = max(self._least, home.size.height // 3) - 1
        event = home.selected_event()
        if event is not None:
            return [rule, *event_lines(event, home.mirror.now, width, rows)]
        run_id = home.target_run()
        row = home.mirror.runs.get(run_id) if run_id is not None else None
        return [rule, *peek_lines(row, home.mirror, width, rows)] if row is not None else []

    @property
    def _least(self) -> int:
        return 5 if self._home.has_class("-tall") else 4

    def _look(self, width: int) -> list[list[Piece]]:
        shown = super()._look(width)
        height = max(self._least, len(shown))
        if self.styles.height is None or self.styles.height.value != height:
            self.styles.height = height
        return shown


class HomeScreen(RelayScreen):
    def __init__(self) -> None:
        super().__init__(id="home")
        self._lists = {
            spec.name: ListState(spec, spec.default_order[0], spec.default_order[1]) for spec in list_specs()
        }
        self.current = "runs"
        self._looking = False
        """Whether older events are being read."""

    def compose(self) -> ComposeResult:
        yield StatusLine(self.mirror, title=self.relay.title)
        yield Reason(self.mirror, lambda: self.relay.session.remark)
        yield TabLine()
        yield Table(self.state.spec.columns, id=self.current)
        yield Peek(self)
        yield KeyBar()

    def on_mount(self) -> None:
        self.focus_content()
        self.paint()

    # -- where one is ---------------------------------------------------------------------------------------------

    def places(self) -> frozenset[Place]:
        return frozenset({Place(self.current)})

    @property
    def list_shown(self) -> str:
        return self.current

    @property
    def state(self) -> ListState:
        return self._lists[self.current]

    @property
    def table(self) -> Table:
        return self.query_one(f"#{self.current}", Table)

    def target_run(self) -> str | None:
        key = self.table.cursor_key
        item = (self.state.items or {}).get(key) if key is not None else None
        return item.run_id if item is not None else None

    def selected_event(self) -> EventRow | None:
        key = self.table.cursor_key
        if self.current != "events" or key is None:
            return None
        return next((event for event in reversed(self.mirror.events) if str(event.id) == key), None)

    def show_list(self, name: str) -> None:
        if (box := self.filter_box) is not None:
            box.remove()
        self.table.display = False
        self.current = name
        if not self.query(f"#{name}"):  # each list is made when it is first looked at
            self.mount(Table(self.state.spec.columns, id=name), before="#peek")
        self.table.display = True
        self.focus_content()
        self.paint()

    def focus_content(self) -> None:
        self.table.focus()

    # -- painting -------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        if not self.paintable:
            return
        super().paint()
        self._paint_list()
        self._paint_tabs()
        self.words_below(self.query_one(TabLine).region.bottom)
        self.query_one(Peek).refresh_content()

    def _paint_list(self) -> None:
        state, mirror, table = self.state, self.mirror, self.table
        table.set_stale(self.stale)
        now = mirror.now
        # Between two seconds nothing ages; between two changes nothing else does.
        seen = (
            state.spec.version(mirror),
            int(now) if state.spec.ages and mirror.loaded else 0,
            state.order,
            state.reverse,
            state.filter,
            mirror.loaded,
            mirror.link.state,
            self.relay.session.url,
        )
        if seen == state.painted:
            return
        state.painted = seen
        items = list(state.spec.items(mirror, now))
        wanted = state.filter.casefold()
        shown = [item for item in items if wanted in item.text] if wanted else items
        shown.sort(key=lambda item: item.order[state.order], reverse=state.reverse)
        state.items = {item.row.key: item for item in shown}
        table.set_sorted(state.order, state.reverse)
        table.follows = state.spec.name == "events" and (state.order, state.reverse) == state.spec.default_order
        table.show([item.row for item in shown], notice=self._notice(state, len(items)))

    def _notice(self, state: ListState, total: int) -> list[Line]:
        mirror = self.mirror
        if not mirror.loaded:
            if mirror.link.state is LinkState.REFUSED:
                return [[Piece("not connected", "bad")], [Piece("The line above says why; trying again.", "muted")]]
            return [[Piece("connecting …", "muted")]]
        if total:
            here = counted(total, state.spec.name[:-1])
            older = mirror.events_before if state.spec.name == "events" else 0
            if self._looking:
                return [[Piece(f"none of the newest {here} contains "), Piece(cut(state.filter, 40))], *LOOKING]
            said = f"none of {here} contains "
            if older:
                said = f"none of the newest {here} contains "
            return [
                [Piece(said, "muted"), Piece(cut(state.filter, 40))],
                [Piece("esc ", "key"), Piece("shows all", "muted")],
                *([[Piece(self._elsewhere(older), "muted")]] if older else []),
            ]
        return [list(line) for line in state.spec.empty(Setting(self.relay.session.url, self.relay.program))]

    def _elsewhere(self, older: int) -> str:
        program = self.relay.program
        return f"{older:,} older ones are not here" if program is None else f"{program} events has {older:,} older ones"

    def _paint_tabs(self) -> None:
        mirror = self.mirror
        sizes = {"runs": len(mirror.runs), "workers": len(mirror.workers), "events": len(mirror.events)}
        line = self.query_one(TabLine)
        line.current = self.current
        said = {name: f"{size:,}" for name, size in sizes.items()} | {"workers": workers_here(mirror)}
        if mirror.events_before:
            said["events"] += f" of {sizes['events'] + mirror.events_before:,}"
        line.tabs = [(name, f"{name} {said[name]}" if mirror.loaded else name) for name in self._lists]
        state = self.state
        note: list[Piece] = []
        if state.filter:
            note += [
                Piece(f"{len(self.table.rows):,} of {sizes[self.current]:,} with ", "muted"),
                Piece(cut(state.filter, 24), "key"),
                Piece("  "),
            ]
        if (state.order, state.reverse) != state.spec.default_order:
            title = next(c.title or c.key for c in state.spec.columns if c.key == state.order)
            note += [Piece("by ", "muted"), Piece(title), Piece(" ▾ " if state.reverse else " ▴ ")]
        line.note = note
        line.refresh_content()

    # -- acting ---------------------------------------------------------------------------------------------------

    def filter_text(self) -> str:
        return self.state.filter

    def set_filter(self, text: str) -> None:
        self.state.filter = text
        if text:
            self._look_further()
        self.paint()

    def on_table_at_end(self, event: Table.AtEnd) -> None:
        if event.table.id == "events":
            self._look_further()

    def _look_further(self) -> None:
        """Older events: a page of them, or all that there is room for where one searches."""
        if self.current == "events" and not (self._looking or self.stale) and self.mirror.events_before:
            self._looking = True
            self.relay.spawn(self._load_older())

    async def _load_older(self) -> None:
        try:
            while await self.relay.session.load_older_events() and self._lists["events"].filter:
                pass
        except RelayError as error:
            self.relay.say(str(error), severity="warning")
        finally:
            self._looking = False
            self._lists["events"].painted = ()
            self.paint()

    def sort_next(self) -> None:
        shown, order = self.table.shown, self.state.order  # what is not seen would order them without a reason
        self.state.order = shown[(shown.index(order) + 1) % len(shown)] if order in shown else shown[0]
        self.state.reverse = False
        self.paint()

    def sort_reverse(self) -> None:
        self.state.reverse = not self.state.reverse
        self.paint()

    def on_table_header_clicked(self, event: Table.HeaderClicked) -> None:
        state = self.state
        state.reverse = not state.reverse if state.order == event.column else False
        state.order = event.column
        self.paint()

    def on_table_moved(self, event: Table.Moved) -> None:
        if self.paintable and event.table is self.table:
            super().paint()
            self.query_one(Peek).refresh_content()

    def on_table_opened(self, event: Table.Opened) -> None:
        self.relay.action_open_run()

    def on_tab_line_chosen(self, event: TabLine.Chosen) -> None:
        self.show_list(event.name)

    def on_resize(self, event: Any) -> None:
        self.paint()
