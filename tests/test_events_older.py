"""Events that happened before a dashboard was opened: counted, had by going on, and found by a search."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from commander_kit import FakeClock, running, started
from dashboard_rig import dashboard
from scripted_commander import NOW, ScriptedCommander, snapshot

from relaytui.client.answers import Events
from relaytui.client.endpoint import Endpoint
from relaytui.client.link import LinkState
from relaytui.client.mirror import MAX_EVENTS, Mirror
from relaytui.commander.http.ws_feed import snapshot as snapshot_of
from relaytui.commander.keeper import Keeper
from relaytui.dashboard import session
from relaytui.dashboard.screens.home import HomeScreen
from relaytui.wire.feed import EventAdded, Snapshot
from relaytui.wire.rows import EventRow

OLDER = "/api/events"
BESIDE = (120, 24)
"""So wide that words in the corner lie beside those of the list: nobody has to wait until they have gone."""


def event(id: int) -> EventRow:
    return EventRow(id, NOW - 1_000 + id, "run.odd" if id == 7 else "run.even", "pod-a", f"number {id}", "r", 1)


def greeting(first: int, last: int, before: int) -> Snapshot:
    made = snapshot([], events=[event(id) for id in range(first, last + 1)])
    return Snapshot(**{name: getattr(made, name) for name in made.__struct_fields__} | {"events_before": before})


# -- the picture ---------------------------------------------------------------------------------------------------


def ids(mirror: Mirror) -> list[int]:
    return [row.id for row in mirror.events]


def test_the_picture_knows_how_many_it_has_not() -> None:
    mirror = Mirror()
    mirror.apply(greeting(101, 300, 100))
    assert mirror.events_before == 100
    mirror.apply(EventAdded(event(301)))
    assert mirror.events_before == 100
    assert mirror.add_older([event(id) for id in range(51, 101)], before=101, all_of_them=False)
    assert (ids(mirror)[0], mirror.events_before) == (51, 50)
    assert mirror.add_older([event(id) for id in range(1, 52)], before=51, all_of_them=True)
    assert (ids(mirror), mirror.events_before) == (list(range(1, 302)), 0)


def test_after_a_connection_was_lost_there_is_no_hole_in_it() -> None:
    mirror = Mirror()
    mirror.apply(greeting(101, 300, 100))
    mirror.apply(greeting(201, 400, 200))
    assert (ids(mirror), mirror.events_before) == (list(range(101, 401)), 100)
    mirror.apply(greeting(501, 600, 500))  # 401 to 500 were missed
    assert (ids(mirror), mirror.events_before) == (list(range(501, 601)), 500)


def test_what_gives_way_is_counted() -> None:
    mirror = Mirror()
    mirror.apply(greeting(1, 10, 0))
    for id in range(11, MAX_EVENTS + 21):
        mirror.apply(EventAdded(event(id)))
    assert (len(mirror.events), mirror.events_before) == (MAX_EVENTS, 20)


def test_older_ones_that_no_longer_meet_what_is_here_are_not_taken() -> None:
    """While they were on their way the connection was lost: between them and what is here now others are missing."""
    mirror = Mirror()
    mirror.apply(greeting(101, 300, 100))
    mirror.apply(greeting(501, 600, 500))
    assert not mirror.add_older([event(id) for id in range(1, 101)], before=101, all_of_them=True)
    assert (ids(mirror), mirror.events_before) == (list(range(501, 601)), 500)


def test_what_comes_while_older_ones_are_read_makes_no_hole() -> None:
    mirror = Mirror()
    mirror.apply(greeting(1_001, 1_000 + MAX_EVENTS, 1_000))
    mirror.make_room(500)
    mirror.apply(EventAdded(event(1_001 + MAX_EVENTS)))
    assert mirror.add_older([event(id) for id in range(501, 1_001)], before=1_001, all_of_them=False)
    assert (ids(mirror), mirror.events_before) == (list(range(501, 1_002 + MAX_EVENTS)), 500)
    mirror.apply(EventAdded(event(1_002 + MAX_EVENTS)))
    assert (ids(mirror)[0], mirror.events_before) == (502, 501), "one comes, one goes"


def test_while_there_are_older_ones_their_number_is_not_none() -> None:
    mirror = Mirror()
    mirror.apply(greeting(101, 300, 40))  # what it was when the picture began: it need not be so any more
    assert mirror.add_older([event(id) for id in range(51, 101)], before=101, all_of_them=False)
    assert mirror.events_before == 1


async def test_a_commander_counts_those_that_its_picture_has_no_room_for(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        many = [{"type": "event", "kind": "trainer.note", "message": "m", "data": {}}] * 250
        await agent.state(started(), *many)
        first = snapshot_of(kit.commander.core)
        assert len(first.events) == 200
        there = len((await kit.get("/api/events?limit=1000"))[1]["events"])
        assert first.events_before == there - 200 > 50
        await Keeper(kit.commander.core, tmp_path / "state", kept=210).trim()
        left = len((await kit.get("/api/events?limit=1000"))[1]["events"])
        assert left < there
        assert snapshot_of(kit.commander.core).events_before == left - 200, "those that are forgotten are no more"
    async with running(tmp_path / "state", clock) as kit:
        again = snapshot_of(kit.commander.core)
        there = len((await kit.get("/api/events?limit=1000"))[1]["events"])
        assert again.events_before == there - 200


# -- the list ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def commander() -> AsyncIterator[ScriptedCommander]:
    made = await ScriptedCommander().start()
    made.greeting = [greeting(101, 300, 100)]
    made.answers["GET", OLDER] = (200, {"now": NOW, "events": [event(id) for id in range(1, 101)]})
    yield made
    await made.stop()


def asked(commander: ScriptedCommander) -> list[str]:
    return [path for _, path, *_ in commander.requests if path.startswith(OLDER)]


async def test_at_the_end_of_the_list_older_ones_come(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await rig.press("3")
        await rig.shows("events 200 of 300", "number 300")
        assert asked(commander) == []
        await rig.press("end")
        await rig.shows("events 300", "number 101", without="200 of")
        await rig.press("end")
        await rig.shows("number 1 ")
        assert asked(commander) == [f"{OLDER}?before=101&limit=1000"]


async def test_a_search_looks_through_older_ones(commander: ScriptedCommander) -> None:
    """`/typo` said that none of 200 had it; it was in six of those before."""
    async with dashboard(commander) as rig:
        await rig.press("3")
        await rig.shows("events 200 of 300")
        await rig.press("slash", *"run.odd", "enter")
        await rig.shows("number 7", "1 of 300 with run.odd")
        assert asked(commander) == [f"{OLDER}?before=101&limit=1000"], "when all are here nobody is asked"
        await rig.press("escape", "slash", *"zz", "enter")
        await rig.shows("none of 300 events contains zz")


async def test_older_ones_that_cannot_be_had_are_not_denied(commander: ScriptedCommander) -> None:
    del commander.answers["GET", OLDER]
    async with dashboard(commander, size=BESIDE) as rig:
        await rig.press("3")
        await rig.shows("events 200 of 300")
        await rig.press("slash", *"run.odd", "enter")
        await rig.shows("none of the newest 200 events contains run.odd", "relay-tui events has 100 older ones")
        assert rig.app._notifications, "and why"


async def test_where_they_are_to_be_had_is_said_as_this_commander_is_called(commander: ScriptedCommander) -> None:
    del commander.answers["GET", OLDER]
    async with dashboard(commander, size=BESIDE, program="relay-tui --state /srv/x") as rig:
        await rig.press("3")
        await rig.shows("events 200 of 300")
        await rig.press("slash", *"run.odd", "enter")
        await rig.shows("relay-tui --state /srv/x events has 100 older ones")
    # A demo, whose commander no other program is to look for.
    async with dashboard(commander, size=BESIDE, program=None) as rig:
        await rig.press("3")
        await rig.shows("events 200 of 300")
        await rig.press("slash", *"run.odd", "enter")
        await rig.shows("none of the newest 200 events contains run.odd", "100 older ones are not here")


async def test_who_searches_no_more_asks_for_no_older_ones(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await rig.press("3")
        await rig.shows("events 200 of 300")
        await rig.press("slash", "escape")
        await rig.shows("events 200 of 300", "number 300")
        assert isinstance(rig.app.screen, HomeScreen)
        rig.app.screen.set_filter("")
        await rig.pilot.pause()
        assert asked(commander) == []


async def test_a_search_without_a_connection_says_so_once(commander: ScriptedCommander) -> None:
    """Each letter asked a commander that was gone, and each said that it is."""
    async with dashboard(commander) as rig:
        await rig.press("3")
        await rig.shows("events 200 of 300")
        await commander.stop()
        await rig.becomes(lambda: rig.app.mirror.link.state is not LinkState.LIVE)
        await rig.press("slash", *"zz", "enter")
        await rig.shows("none of the newest 200 events contains zz", "has 100 older ones")
        assert not rig.app._notifications


async def test_a_page_that_is_full_is_not_the_last_and_no_more_come_than_there_is_room_for(
    commander: ScriptedCommander, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "OLDER", 50)
    monkeypatch.setattr(session, "MOST_EVENTS", 280)
    commander.answers["GET", OLDER] = (200, {"now": NOW, "events": [event(id) for id in range(51, 101)]})
    async with dashboard(commander) as rig:
        await rig.press("3")
        await rig.shows("events 200 of 300")
        await rig.press("end")
        await rig.shows("events 250 of 300")
        await rig.press("end")
        await rig.shows("number 51 ")
        await rig.press("end")
        await rig.pilot.pause()
        assert asked(commander) == [f"{OLDER}?before=101&limit=50"]


async def test_a_search_goes_on_page_by_page(commander: ScriptedCommander, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "OLDER", 50)
    commander.answers["GET", OLDER] = (200, {"now": NOW, "events": [event(id) for id in range(51, 101)]})
    async with dashboard(commander) as rig:
        await rig.press("3")
        await rig.shows("events 200 of 300")
        await rig.press("slash", "z", "enter")
        await rig.shows("none of the newest 250 events contains z")
        assert asked(commander) == [f"{OLDER}?before={before}&limit=50" for before in (101, 51)]


async def test_while_older_ones_are_read_that_is_said_and_nobody_asks_again(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await rig.press("3")
        await rig.shows("events 200 of 300")
        assert isinstance(rig.app.screen, HomeScreen)
        rig.app.screen._looking = True
        await rig.press("end", "slash", "z", "enter")
        await rig.shows("none of the newest 200 events contains z", "looking through older ones")
        assert asked(commander) == []


async def test_room_is_made_before_they_are_asked_for() -> None:
    mirror = Mirror()
    mirror.apply(greeting(1_001, 1_000 + MAX_EVENTS, 1_000))

    class Slow:
        async def events(self, **_: int) -> Events:
            mirror.apply(EventAdded(event(1_001 + MAX_EVENTS)))
            return Events(NOW, [event(id) for id in range(1, 1_001)])

    made = session.Session(Endpoint("http://127.0.0.1:9", "t"), mirror, lambda: None)
    made._client = Slow()  # type: ignore[assignment]
    assert await made.load_older_events()
    assert ids(mirror) == list(range(1, 1_002 + MAX_EVENTS))
