"""A damaged state is found at the start: one line with the file, what is wrong and the way out, and its exit code."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from commander_kit import FakeClock, ended, log, published, running, started, step

from relaytui.commander.server import Commander
from relaytui.commander.settings import CommanderSettings
from relaytui.commander.store.backup import back_up
from relaytui.wire.errors import Exit, RelayError


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder that has seen everything: runs in every status, orders, checkpoints, telemetry."""
    state = tmp_path_factory.mktemp("template") / "state"

    async def live() -> None:
        async with running(state, FakeClock()) as kit:
            for n in range(12):
                agent = await kit.agent(f"pod-{n}")
                await agent.acquire(f"run-{n}")
                await agent.state(started(n), *(published(n * 10 + k) for k in range(n % 4)))
                await agent.tell(step(n + 1, 100, loss=1.5 + n, lr=0.1), log(1, *(f"line {k}" for k in range(50))))
                if n % 3 == 0:
                    await agent.state(ended(("completed", "failed", "preempted", "drained")[n // 3], n))
                elif n % 3 == 1:
                    await kit.drain(f"run-{n}", 1)
                elif n % 4 == 1:
                    await kit.force(f"run-{n}", 1)

    asyncio.run(live())
    assert not (state / "relay.db-wal").exists()
    back_up(state, FakeClock().wall())
    return state


@pytest.fixture
def state(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "state"))


def in_one_line(error: RelayError, state: Path) -> RelayError:
    assert "\n" not in str(error)
    assert str(state) in str(error)
    assert error.hint
    assert error.exit_code == Exit.STATE
    return error


async def start(state: Path) -> RelayError | None:
    """What a start says; where it succeeds, everything that is stored is read once."""
    commander = Commander(CommanderSettings(state=state, port=0), clock=FakeClock())  # no day later: no backup is due
    try:
        await commander.start()
    except RelayError as error:
        return in_one_line(error, state)
    try:
        core = commander.core
        for run_id in core.board.runs:
            await core.reader.attempts(run_id)
            await core.reader.checkpoints(run_id)
            await core.reader.streams(run_id)
        await core.reader.events(after=0, before=None, run_id=None, limit=10_000)
        await core.leases.sweep()
    finally:
        await commander.stop()
    return None


async def test_a_whole_state_starts(state: Path) -> None:
    assert await start(state) is None


PAGE = 4_096


def places(whole: bytes) -> list[int]:
    """Where something is said: most of a page that is new is nothing, and read by nobody."""
    return [place for place, byte in enumerate(whole) if byte]


def page_of(whole: bytes, place: int) -> bytes:
    return whole[place - place % PAGE :][:PAGE]


@pytest.mark.parametrize("seed", range(4))
async def test_flipped_bits_are_found_or_harmless(template: Path, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    whole = (template / "relay.db").read_bytes()
    said = places(whole)
    defined = [place for place in said if place < PAGE or b"CREATE " in page_of(whole, place)]
    state = tmp_path / "state"
    shutil.copytree(template, state)
    refused = 0
    for n in range(60):
        # A quarter of them where it hurts most: the header and the tables' definitions.
        place = dice.choice(defined if n % 4 == 0 else said)
        bad = bytearray(whole)
        bad[place] ^= 1 << dice.randrange(8)
        (state / "relay.db").write_bytes(bad)
        error = await start(state)
        if error is not None:
            refused += 1
            assert str(state / "relay.db") in str(error)
            assert (state / "relay.db").read_bytes()[100:] == bytes(bad)[100:], "what is damaged is left as it is"
        for left in state.glob("relay.db-*"):
            left.unlink()
    assert refused > 5, "nothing was found: the flips missed everything"


@pytest.mark.parametrize("seed", range(2))
async def test_flipped_bits_in_telemetry_hold_up_no_lease(template: Path, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    whole = (template / "telemetry.db").read_bytes()
    said = places(whole)
    state = tmp_path / "state"
    shutil.copytree(template, state)
    for _ in range(25):
        place = dice.choice(said)
        bad = bytearray(whole)
        bad[place] ^= 1 << dice.randrange(8)
        (state / "telemetry.db").write_bytes(bad)
        error = await start(state)
        if error is not None:
            # Only what may be another version's, or another program's, is not for us to move.
            assert "newer Relay" in str(error) or "another program" in str(error), place
        for left in state.glob("telemetry.db-*"):
            left.unlink()


@pytest.mark.parametrize("keep", [0, 1, 15, 16, 100, 512, 4_095, 4_096, 8_192, 0.5, 0.9, -4_096, -1])
async def test_a_truncated_database_is_damaged(state: Path, keep: float) -> None:
    whole = (state / "relay.db").read_bytes()
    size = int(len(whole) * keep) if isinstance(keep, float) else keep if keep >= 0 else len(whole) + keep
    (state / "relay.db").write_bytes(whole[:size])
    error = await start(state)
    assert error is not None
    assert str(state / "relay.db") in str(error)
    assert "restore" in error.hint
    assert (state / "relay.db").read_bytes() == whole[:size]


def spoil(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA foreign_keys=OFF")
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


RELAY_TABLES = ("meta", "runs", "leases", "attempts", "checkpoints", "workers", "events", "orders", "streams")


@pytest.mark.parametrize("table", RELAY_TABLES)
async def test_a_table_that_is_gone_is_named(state: Path, table: str) -> None:
    spoil(state / "relay.db", f"DROP TABLE {table}")
    assert f"table {table} is missing" in str(await start(state))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("ALTER TABLE runs DROP COLUMN published", "column published of table runs"),
        ("ALTER TABLE leases RENAME COLUMN grace TO favour", "column grace of table leases"),
        ("DROP INDEX attempts_by_token", "index attempts_by_token of table attempts"),
        ("ALTER TABLE orders RENAME TO commands", "table orders"),
    ],
)
async def test_a_column_or_an_index_that_is_gone_is_named(state: Path, change: str, named: str) -> None:
    spoil(state / "relay.db", change)
    assert named in str(await start(state))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("UPDATE runs SET status = 'flying'", "table runs"),
        ("UPDATE runs SET epoch = 'many'", "table runs"),
        ("UPDATE runs SET created_at = 9e999", "table runs"),
        ("UPDATE runs SET message = x'ff'", "table runs"),
        ("UPDATE leases SET state = 'lent'", "table leases"),
        ("UPDATE leases SET expires = 'soon'", "table leases"),
        ("UPDATE attempts SET outcome = 'eaten' WHERE epoch = 1", "table attempts"),
        ("UPDATE attempts SET salt = 5.5", "table attempts"),
        ("UPDATE attempts SET token_hash = token_hash || x'00'", "attempt"),
        ("UPDATE checkpoints SET step = 'last'", "table checkpoints"),
        ("UPDATE workers SET gpus = 'all'", "table workers"),
        ("UPDATE events SET data = '[1'", "table events"),
        ("UPDATE events SET data = '[1]'", "table events"),
        ("UPDATE events SET at = 'once'", "table events"),
        ("UPDATE orders SET kind = 'dance'", "table orders"),
        ("UPDATE orders SET accepted = 7", "table orders"),
        ("UPDATE streams SET last_seq = 'far'", "table streams"),
        ("REPLACE INTO meta VALUES ('epoch_floor', 'high')", "table meta"),
        ("REPLACE INTO meta VALUES ('restored_at', 'once')", "table meta"),
        ("DELETE FROM runs WHERE run_id = 'run-1'", "refers to one that is not there"),
        ("DELETE FROM attempts WHERE run_id = 'run-2'", "refers to one that is not there"),
        ("UPDATE leases SET epoch = 7 WHERE run_id = 'run-2'", "run-2"),
        ("UPDATE leases SET state = 'held' WHERE run_id = 'run-0'", "contradict"),
        ("UPDATE runs SET status = 'running' WHERE run_id = 'run-0'", "contradict"),
        ("UPDATE runs SET run_id = 'a/b' WHERE run_id = 'run-2'", "run"),
    ],
)
async def test_rows_that_cannot_be_are_named(state: Path, change: str, named: str) -> None:
    spoil(state / "relay.db", change)
    error = await start(state)
    assert error is not None
    assert named in str(error)
    assert "restore" in error.hint


@pytest.mark.parametrize("name", ["relay.db", "telemetry.db"])
async def test_a_database_of_the_future_is_refused_and_left_alone(state: Path, name: str) -> None:
    spoil(state / name, "PRAGMA user_version = 99")
    before = (state / name).read_bytes()
    error = await start(state)
    assert error is not None
    assert "newer Relay" in str(error)
    assert error.hint == "upgrade relay-tui"
    assert (state / name).read_bytes() == before


# -- telemetry -----------------------------------------------------------------------------------------------------


def garbage(path: Path) -> None:
    path.write_bytes(b"not a database at all " * 500)


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:6_000])


def no_table(path: Path) -> None:
    spoil(path, "DROP TABLE frames")


def no_sense(path: Path) -> None:
    spoil(path, "UPDATE streams SET metrics = '{'")


@pytest.mark.parametrize("harm", [garbage, torn, no_table, no_sense])
async def test_damaged_telemetry_is_set_aside_and_leases_go_on(state: Path, harm: Callable[[Path], None]) -> None:
    harm(state / "telemetry.db")
    bad = (state / "telemetry.db").read_bytes()
    async with running(state) as kit:
        assert (await kit.run("run-2"))["holder"] == "pod-2"
        (aside,) = (path for path in state.glob("telemetry.db.damaged-*"))
        assert aside.read_bytes() == bad
        events = (await kit.get("/api/events?limit=1000"))[1]["events"]
        (event,) = (event for event in events if event["kind"] == "commander.telemetry_replaced")
        assert aside.name in event["message"]
        # A new run's telemetry is taken and shown.
        agent = await kit.agent("new")
        await agent.acquire("run-new")
        await agent.state(started())
        await agent.tell(log(1, "hello"))
        assert await kit.lines("run-new") == ["hello"]
    assert await start(state) is None
    assert len(list(state.glob("telemetry.db.damaged-*"))) == 1


async def test_telemetry_beside_no_history_is_a_lost_history(state: Path) -> None:
    """Leases that were granted are unknown to a new database: that is not begun unasked."""
    for content in (None, b""):
        (state / "relay.db").unlink()
        if content is not None:
            (state / "relay.db").write_bytes(content)
        error = await start(state)
        assert error is not None
        assert "relay.db" in str(error)
        assert "restore" in error.hint
        (state / "relay.db").write_bytes(b"")


@pytest.mark.parametrize("copies", [0, 2])
@pytest.mark.parametrize("harm", [garbage, torn, Path.unlink])
async def test_the_way_out_that_is_named_is_one(state: Path, harm: Callable[[Path], None], copies: int) -> None:
    shutil.rmtree(state / "backups")
    kept = [back_up(state, 1_800_000_000.0 + n) for n in range(copies)]
    harm(state / "relay.db")
    error = await start(state)
    assert error is not None
    assert [str(path) in error.hint for path in kept] == [False, True][:copies], "the newest one"
    assert ("restore" in error.hint) == bool(copies)
    named = [path for path in (state / "relay.db", state / "telemetry.db") if path.name in error.hint.split("move ")[1]]
    assert named == [path for path in (state / "relay.db", state / "telemetry.db") if path.exists()]
    for path in named:
        path.rename(path.with_name(f"{path.name}.aside"))
    assert await start(state) is None
