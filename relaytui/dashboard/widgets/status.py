"""The top line (whose picture this is and how fresh), the tabs below it, and the bar of keys at the bottom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from textual import events
from textual.message import Message

from relaytui.client.link import LinkState
from relaytui.client.mirror import Mirror
from relaytui.client.words import held_off
from relaytui.dashboard.actions import Action, key_name
from relaytui.dashboard.format import age
from relaytui.dashboard.glyphs import link_state, run_status
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.widgets.lines import Line, Lines
from relaytui.dashboard.widgets.pieces import spread, width_of
from relaytui.wire.status import RunStatus, WorkerStatus
from relaytui.wire.text import clean

_COUNTED = (
    RunStatus.RUNNING,
    RunStatus.LEASED,
    RunStatus.DRAINING,
    RunStatus.QUEUED,
    RunStatus.PREEMPTED,
    RunStatus.LOST,
    RunStatus.FAILED,
    RunStatus.COMPLETED,
    RunStatus.CANCELLED,
)
WORKERS = "workers"
_GIVE_WAY = (
    RunStatus.CANCELLED,
    RunStatus.COMPLETED,
    RunStatus.QUEUED,
    RunStatus.PREEMPTED,
    RunStatus.LEASED,
    RunStatus.DRAINING,
    WORKERS,
    RunStatus.RUNNING,
    RunStatus.LOST,
)
"""What is left out where it is narrow, in this order; never how many failed."""


def workers_here(mirror: Mirror) -> str:
    """How many workers are here, and of how many where some are missing: `3`, `3/4`. One that has gone is neither."""
    known = [row for row in mirror.workers.values() if row.gone is None]
    here = sum(row.status is not WorkerStatus.OFFLINE for row in known)
    return f"{here:,}" if here == len(known) else f"{here:,}/{len(known):,}"


class StatusLine(Lines):
    def __init__(self, mirror: Mirror, *, title: str = "relay") -> None:
        super().__init__(id="status")
        self._mirror = mirror
        self._title = title
        self.url = ""

    def compose_lines(self, width: int) -> Sequence[Line]:
        mirror, link = self._mirror, self._mirror.link
        where = self.url.partition("://")[2] or "no commander yet"
        left = [Piece(" "), Piece(self._title, "title"), Piece("  "), link_state(link.state)]
        if link.state is LinkState.LIVE:
            left += [Piece(f"  {where}", "muted")]
        elif link.state is LinkState.STALE:
            left += [Piece(f" since {age(mirror.heard_ago)}", "warn"), Piece(f"  {where}", "muted")]
        elif link.state is LinkState.CONNECTING:
            left += [Piece(f" {where}", "muted")]
        else:
            left += [Piece(f"  {where}", "muted")]
        # What gives way: first the words, then the address, then what there is the least to do about.
        attempts = [
            (left, self._counts(words=True)),
            (left, self._counts()),
            *((left[:-1], self._counts(without=_GIVE_WAY[:count])) for count in range(len(_GIVE_WAY) + 1)),
        ]
        for head, counts in attempts:
            if sum(width_of(text) for text, _ in [*head, *counts]) + 2 <= width:
                return [spread(head, counts, width)]
        return [left]

    def _counts(self, *, words: bool = False, without: Collection[str] = ()) -> list[Piece]:
        """How many runs are in which state, in words, or where that is too long by their glyphs."""
        if not self._mirror.loaded:
            return []
        runs = self._mirror.runs.values()
        counts = Counter(row.status for row in runs if row.silent_since is None)
        pieces: list[Piece] = []
        if silent := sum(row.silent_since is not None for row in runs):
            pieces += [Piece(f"{silent} silent" if words else f"▲ {silent}", "warn"), Piece("  ")]
        for status in _COUNTED:
            if counts[status] and status not in without:
                glyph, ink = run_status(status)
                said = f"{counts[status]} {status.value}" if words else f"{glyph[0]} {counts[status]}"
                pieces += [Piece(said, ink), Piece("  ")]
        if WORKERS in without:
            return pieces
        said = workers_here(self._mirror)
        return [*pieces, Piece(f"{said} worker{'s' * (said != '1')} ", "muted")]


class Reason(Lines):
    """Why the picture is not live, in a line of its own while it is not; else why agents wait, where all of them do, or
    why what is shown may not be all (`doubt`), or what there is to remark of the runs."""

    def __init__(
        self, mirror: Mirror, remark: Callable[[], str] = lambda: "", doubt: Callable[[], str] = lambda: ""
    ) -> None:
        super().__init__(id="reason")
        self._mirror = mirror
        self._remark = remark
        self._doubt = doubt

    @property
    def said(self) -> Piece:
        mirror = self._mirror
        if mirror.link.state is not LinkState.LIVE:
            return Piece(mirror.link.reason, "bad" if mirror.link.state is LinkState.REFUSED else "warn")
        if waits := held_off(mirror.no_grants_until, mirror.now):
            return Piece(waits, "warn")
        if doubt := self._doubt():
            return Piece(doubt, "warn")
        return Piece(self._remark(), "good")

    @property
    def words(self) -> str:
        return self.said.text

    def compose_lines(self, width: int) -> Sequence[Line]:
        words, ink = self.said
        return [[Piece(" "), Piece(clean(words, 400), ink)]]


class TabLine(Lines):
    """Which of the lists is shown, and what was left out of it."""

    class Chosen(Message):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self) -> None:
        super().__init__(id="tabs")
        self.tabs: list[tuple[str, str]] = []
        self.current = ""
        self.note: list[Piece] = []

    def compose_lines(self, width: int) -> Sequence[Line]:
        left = [Piece(" ")]
        for number, (name, label) in enumerate(self.tabs, 1):
            left += [
                Piece(str(number), "key"),
                Piece(" "),
                Piece(label, "tab" if name == self.current else "muted"),
                Piece("   "),
            ]
        return [spread(left, self.note, width)]

    def on_click(self, event: events.Click) -> None:
        x = 1
        for number, (name, label) in enumerate(self.tabs, 1):
            wide = len(str(number)) + 1 + width_of(label)
            if x <= event.x < x + wide:
                self.post_message(self.Chosen(name))
                return
            x += wide + 3


class KeyBar(Lines):
    """The keys that work here, from the action table; each can be clicked."""

    def __init__(self) -> None:
        super().__init__(id="keys")
        self._actions: list[tuple[Action, bool]] = []
        self._spans: list[tuple[int, int, Action]] = []
        self._before: set[str] = set()  # what was shown

    def show_actions(self, actions: list[tuple[Action, bool]]) -> None:
        """Actions, best first, each with whether it can be done now."""
        if actions != self._actions:
            self._actions = actions
            self.refresh_content()

    def compose_lines(self, width: int) -> Sequence[Line]:
        pieces: list[Piece] = [Piece(" ")]
        self._spans = []
        x = 1
        for action, enabled in self._fitting(width):
            key = key_name(action.keys[0])
            wide = _wide(action)
            pieces += [
                Piece(key, "key" if enabled else "faint"),
                Piece(" "),
                Piece(action.label, "text" if enabled else "faint"),
                Piece("  "),
            ]
            self._spans.append((x, x + wide - 2, action))
            x += wide
        if self._spans:
            pieces.pop()  # no gap after the last
        return [pieces]

    def _fitting(self, width: int) -> list[tuple[Action, bool]]:
        """What gives way: first what cannot be done now, then what counts least; help and the way out last. Under a
        dialog nothing can, and the bar stays as it was."""
        shown = [each for each in self._actions if not self._quiet or each[0].id in self._before] or list(self._actions)
        while shown and sum(_wide(action) for action, _ in shown) > width:
            shown.remove(max(shown, key=lambda each: (not each[1], not each[0].stays, each[0].rank)))
        self._before = {action.id for action, _ in shown}
        return shown

    @property
    def _quiet(self) -> bool:
        return not any(enabled for _, enabled in self._actions)

    async def on_click(self, event: events.Click) -> None:
        for start, end, action in self._spans:
            if start <= event.x < end:
                await self.app.run_action(action.handler)
                return


def _wide(action: Action) -> int:
    """Cells of an action in the key bar, with the gap after it."""
    return width_of(key_name(action.keys[0])) + 1 + width_of(action.label) + 2
