"""What was acknowledged is there: after kill -9 at any moment, and where the disk fails."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from cli_kit import Served
from commander_kit import DEADLINE, Agent, log, published, running, started, step, until

from relaytui.commander.model.lease import Lease, LeaseState
from relaytui.commander.model.run import Run
from relaytui.commander.store import runs
from relaytui.commander.store.changes import LeaseExtended
from relaytui.commander.store.database import RELAY, open_database, statements
from relaytui.commander.store.writer import UNIT, Tx, Writer
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.proof import derived_token
from relaytui.wire.status import RunStatus


class Process:
    """A commander in a process of its own, to be killed."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.url = ""
        self._port = "0"
        """Any at first, and that one from then on."""
        self._served: Served | None = None

    async def start(self) -> None:
        again = asyncio.to_thread(Served, self.state, "--port", self._port)
        self._served = await asyncio.wait_for(again, DEADLINE)
        self.url = self._served.url
        self._port = self.url.rpartition(":")[2]

    def kill(self) -> None:
        assert self._served is not None
        self._served.process.kill()
        self._served.process.communicate()

    def headers(self) -> dict[str, str]:
        return {"X-Relay-Secret": derived_token((self.state / "key").read_bytes(), "operator")}

    async def agent(self, session: aiohttp.ClientSession) -> Agent:
        ws = await session.ws_connect(self.url + "/ws/agent", headers=self.headers())
        agent = Agent(ws, "pod", "pod-1")
        await agent.say(type="hello", protocol=1, worker="pod", incarnation="pod-1")
        await agent.hear("welcome")
        return agent

    async def get(self, session: aiohttp.ClientSession, path: str) -> Any:
        async with session.get(self.url + path, headers=self.headers()) as answer:
            return await answer.json()


async def talk(agent: Agent, sent: int, checkpoints: int, going: asyncio.Event) -> tuple[int, int, int, int]:
    """Sends lines and checkpoints as fast as they are taken, until the commander dies.

    (lines sent, lines acknowledged, checkpoints sent, checkpoints acknowledged) - the spool of an agent, in short.
    `going` is set once three more checkpoints are acknowledged.
    """
    enough = checkpoints + 3
    acked = {"telemetry": 0, "state": 0}

    async def listen() -> None:
        while True:
            message = await agent.ws.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                return
            body = orjson.loads(message.data)
            assert body["type"] == "ack", body
            acked[body["stream"]] = max(acked[body["stream"]], body["seq"])
            if acked["state"] > enough:
                going.set()

    listening = asyncio.create_task(listen())
    try:
        while not listening.done():
            sent += 10
            await agent.send("telemetry", *(log(n, f"line {n}") for n in range(sent - 9, sent + 1)), first_seq=sent - 9)
            checkpoints += 1
            await agent.send("state", published(checkpoints), first_seq=checkpoints + 1)
            await asyncio.sleep(0)
    except (ConnectionError, aiohttp.ClientError):
        pass
    await listening
    return sent, acked["telemetry"], checkpoints, acked["state"] - 1


async def test_kill_9_at_any_moment_loses_nothing_acknowledged_and_doubles_nothing(tmp_path: Path) -> None:
    process = Process(tmp_path / "state")
    dice = random.Random(7)
    await process.start()
    try:
        async with aiohttp.ClientSession() as session:
            agent = await process.agent(session)
            granted = await agent.acquire("run-1", request_id="q")
            await agent.state(started())
            lines = checkpoints = 0
            for _ in range(4):
                going = asyncio.Event()
                talking = asyncio.create_task(talk(agent, lines, checkpoints, going))
                await asyncio.wait_for(going.wait(), DEADLINE)
                await asyncio.sleep(dice.uniform(0.02, 0.25))  # the moment is the test
                process.kill()
                _, lines, _, checkpoints = await talking
                await process.start()
                agent = await process.agent(session)
                # A retry after the crash gets the same grant: the lease is as valid as it was.
                again = await agent.acquire("run-1", request_id="q")
                assert (again["epoch"], again["token"]) == (1, granted["token"])
                assert (await agent.renew())["type"] == "renewed"
                # From the first one that was not acknowledged on, everything is sent again.
                last = max(lines, 10)
                await agent.send(
                    "telemetry", *(log(n, f"line {n}") for n in range(last - 9, last + 1)), first_seq=last - 9
                )
                lines = (await agent.hear("ack"))["seq"]
                await agent.send("state", started(), first_seq=1)
                checkpoints = (await agent.hear("ack"))["seq"] - 1
            page = await process.get(session, "/api/runs/run-1/log?limit=5000")
            assert [line["text"] for line in page["lines"]] == [
                f"line {n}" for n in range(lines - len(page["lines"]) + 1, lines + 1)
            ]
            body = await process.get(session, "/api/runs/run-1")
            assert body["run"]["published"] == checkpoints
            assert body["attempts"][0]["lines"] == lines
            events = (await process.get(session, "/api/events?run=run-1&limit=1000"))["events"]
            kinds = [event["kind"] for event in events]
            assert kinds.count("lease.granted") == kinds.count("run.started") == 1 or len(events) == 1_000
            assert lines > 100
            assert checkpoints > 10
    finally:
        process.kill()


@pytest.fixture
def database(tmp_path: Path) -> sqlite3.Connection:
    return open_database(tmp_path / "relay.db", RELAY)


def put(key: str, value: str = "x") -> Any:
    def unit(tx: Tx) -> str:
        tx.execute("INSERT INTO meta VALUES (?, ?)", (key, value))
        return key

    return unit


def keys(path: Path) -> list[str]:
    db = sqlite3.connect(path)
    try:
        return [row[0] for row in db.execute("SELECT key FROM meta ORDER BY key")]
    finally:
        db.close()


async def test_a_unit_that_fails_is_undone_alone(tmp_path: Path, database: sqlite3.Connection) -> None:
    writer = Writer(database, "relay")

    def fails(tx: Tx) -> None:
        tx.execute("INSERT INTO meta VALUES ('half', 'x')")
        raise ValueError("no")

    results = await asyncio.gather(
        writer.run(put("a")), writer.run(fails), writer.run(put("a")), writer.run(put("b")), return_exceptions=True
    )
    assert (results[0], results[3]) == ("a", "b")
    assert isinstance(results[1], ValueError)
    assert isinstance(results[2], sqlite3.IntegrityError)
    await writer.close()
    assert keys(tmp_path / "relay.db") == ["a", "b"]


async def test_a_unit_alone_is_a_transaction_and_takes_no_savepoint(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    """Each statement has to win the interpreter lock back from a busy loop: a lone renewal takes three, not five."""
    writer = Writer(database, "relay")
    statements: list[str] = []

    def fails(tx: Tx) -> None:
        tx.execute("INSERT INTO meta VALUES ('half', 'x')")
        raise ValueError("no")

    await writer.run(put("a"))
    database.set_trace_callback(statements.append)
    await writer.run(put("b"))
    assert [words.partition(" ")[0] for words in statements] == ["BEGIN", "INSERT", "COMMIT"]
    statements.clear()
    with pytest.raises(ValueError, match="no"):
        await writer.run(fails)
    assert [words.partition(" ")[0] for words in statements] == ["BEGIN", "INSERT", "ROLLBACK"]
    database.set_trace_callback(None)
    assert await writer.run(put("c")) == "c"
    await writer.close()
    assert keys(tmp_path / "relay.db") == ["a", "b", "c"]


@pytest.mark.parametrize("wrong", [(), ("run-1", 2, b"1" * 32), ("run-1", 1, b"2" * 32), ("run-9", 1, b"1" * 32)])
def test_a_batch_of_renewals_tells_the_renewed_from_the_others(
    database: sqlite3.Connection, wrong: tuple[Any, ...]
) -> None:
    """One asked twice is renewed once; one that has no such lease, or whose lease has run out, is not."""
    tx = Tx(database)
    tx.execute("BEGIN")
    claims = []
    for number in range(4):
        run_id, hashed = f"run-{number}", bytes([48 + number]) * 32
        runs.save(tx, Run(run_id, "sft", RunStatus.LEASED, 1, 0.0, 0.0))
        state = LeaseState.HELD if number < 3 else LeaseState.EXPIRED
        runs.save_lease(tx, Lease(run_id, 1, hashed, "w", "i", "q", state, 300.0, "boot", 10.0))
        claims.append((run_id, 1, hashed))
    tx.changes.clear()
    asked = [*claims[:3], claims[0], *([claims[3], wrong] if wrong else [])]
    assert runs.extend_many(tx, asked, "again", 20.0) == set(claims[:3])
    assert tx.changes == [LeaseExtended(f"run-{number}", 1, 20.0) for number in range(3)]
    rows = tx.execute("SELECT run_id, boot_id, expires FROM leases ORDER BY run_id").fetchall()
    assert rows == [*((f"run-{number}", "again", 20.0) for number in range(3)), ("run-3", "boot", 10.0)]


async def test_cancelling_a_wait_breaks_nothing(tmp_path: Path, database: sqlite3.Connection) -> None:
    writer = Writer(database, "relay")
    waits = [asyncio.create_task(writer.run(put(f"k{n:03d}"))) for n in range(200)]
    await asyncio.sleep(0)
    for wait in waits[::2]:
        wait.cancel()
    results = await asyncio.gather(*waits, return_exceptions=True)
    assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 100
    assert await writer.run(put("last")) == "last"
    await writer.close()
    assert len(keys(tmp_path / "relay.db")) == 201


async def test_a_full_disk_acknowledges_nothing_and_the_next_try_works(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    writer = Writer(database, "relay")
    await writer.run(put("before"))
    pages = await writer.run(lambda tx: tx.execute("PRAGMA page_count").fetchone()[0])
    await writer.run(lambda tx: tx.execute(f"PRAGMA max_page_count={pages + 2}").fetchone())
    big = "x" * 100_000
    results = await asyncio.gather(
        writer.run(put("small")), writer.run(put("big", big)), writer.run(put("other")), return_exceptions=True
    )
    assert isinstance(results[1], RelayError | sqlite3.Error)
    await writer.run(lambda tx: tx.execute("PRAGMA max_page_count=1000000").fetchone())
    stored = [key for key, result in zip(("small", "other"), (results[0], results[2]), strict=True) if result == key]
    assert await writer.run(put("big", big)) == "big"
    await writer.close()
    assert keys(tmp_path / "relay.db") == sorted(["before", "big", *stored])


async def test_agents_are_told_when_the_disk_fails_and_come_back(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as kit:
        agent = await kit.agent(incarnation="one")
        await agent.acquire("run-1", request_id="q")
        await agent.tell(log(1, "kept"))
        frames = kit.commander.core.frames
        frames._db.execute("PRAGMA query_only=ON")
        await agent.send("telemetry", log(2, "not stored"), step(1, loss=1.0))
        problem = await agent.hear()
        assert problem["type"] == "problem"
        assert (await agent.ws.receive(timeout=DEADLINE)).type is aiohttp.WSMsgType.CLOSE
        # Leases have a database of their own: they go on.
        other = await kit.agent(incarnation="one")
        other.run_id, other.epoch, other.token = agent.run_id, agent.epoch, agent.token
        assert (await other.renew())["type"] == "renewed"
        frames._db.execute("PRAGMA query_only=OFF")
        answer = await other.tell(log(2, "stored now"), step(1, loss=1.0), first_seq=2)
        assert answer["seq"] == 3
        assert await kit.lines("run-1") == ["kept", "stored now"]


def test_a_migration_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "relay.db"
    good = RELAY.migrations()
    monkeypatch.setattr(
        "relaytui.commander.store.database.Schema.migrations",
        lambda schema: [*good, "CREATE TABLE later (x);\nCREATE TABLE runs (again);\n"],
    )
    with pytest.raises(RelayError, match="already exists"):
        open_database(path, RELAY)
    monkeypatch.undo()
    db = open_database(path, RELAY)  # the old version still opens it: step one is in, step two left nothing
    assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'later'").fetchone() == (0,)
    assert db.execute("PRAGMA user_version").fetchone() == (len(good),)
    assert db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert db.execute("PRAGMA foreign_keys").fetchone() == (1,)
    db.close()


def test_statements_of_a_script_are_told_apart() -> None:
    script = "-- a comment; with a semicolon\nCREATE TABLE a (x);\n\nINSERT INTO a VALUES (';');\n"
    assert [part.strip() for part in statements(script)] == [
        "-- a comment; with a semicolon\nCREATE TABLE a (x);", "INSERT INTO a VALUES (';');"
    ]  # fmt: skip


async def test_the_write_ahead_log_is_bounded(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        for n in range(300):
            await agent.send("telemetry", log(n * 100 + 1, *(["x" * 400] * 100)))
        acked = 0
        while acked < 300:
            acked = (await agent.hear("ack"))["seq"]
        assert (tmp_path / "state" / "telemetry.db-wal").stat().st_size < 10 << 20
        assert (tmp_path / "state" / "telemetry.db").stat().st_size > 4 << 20


# -- more than the disk takes ------------------------------------------------------------------------------------


class Held:
    """A writer whose thread waits in a unit until it is let go: a disk that takes its time."""

    def __init__(self, writer: Writer) -> None:
        self._go = threading.Event()
        writer.submit(lambda tx: self._go.wait(DEADLINE), lambda result, error: None)

    def let_go(self) -> None:
        self._go.set()


async def test_what_waits_for_the_disk_is_bounded_and_nothing_of_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 1 << 20
    monkeypatch.setattr("relaytui.commander.store.writer.MAX_WAITING", limit)
    async with running(tmp_path / "state") as kit:
        honest = await kit.agent("honest")
        await honest.acquire("honest")
        flood = [await kit.agent(f"flood-{n}") for n in range(8)]
        for agent in flood:
            await agent.acquire(agent.worker)
            await agent.tell(log(1, "first"))
        frames = kit.commander.core.frames
        held = Held(frames)
        lines = ["x" * 1_000] * 50
        talk = [asyncio.create_task(_floods(agent, lines, 12)) for agent in flood]  # 8 * 12 * 50 KB
        await until(lambda: frames.full)
        for _ in range(20):  # all of them push on meanwhile
            assert (await honest.renew())["type"] == "renewed"
        assert limit <= frames.waiting < limit + 60_000
        held.let_go()
        await asyncio.gather(*talk)
        for agent in flood:
            acked = 0
            while acked < 13:
                acked = (await agent.hear("ack"))["seq"]
            assert len(await kit.lines(agent.worker, "?limit=5000")) == 601
        assert frames.waiting == 0


async def _floods(agent: Agent, lines: list[str], times: int) -> None:
    for n in range(times):
        await agent.send("telemetry", log(2 + n * len(lines), *lines))


async def test_who_floods_with_renewals_starves_nobody_elses(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as kit:
        honest, flood = await kit.agent("honest"), await kit.agent("flood")
        await honest.acquire("honest")
        await flood.acquire("flood")
        relay = kit.commander.core.relay
        held = Held(relay)

        async def pour() -> None:
            for n in range(5_000):
                await flood.say(type="renew", request=n, run_id="flood", epoch=flood.epoch, token=flood.token)

        pouring = asyncio.create_task(pour())
        session = kit.commander.core.workers._sessions["flood-1"]
        await until(lambda: not session._room.is_set())  # type: ignore[attr-defined]  # it is read no more
        before = relay.waiting
        renewing = asyncio.create_task(honest.renew())
        await until(lambda: relay.waiting > before)
        assert before < 400 * UNIT  # a few hundred are before the honest one, whatever was sent
        held.let_go()
        assert (await renewing)["type"] == "renewed"
        answers = 0
        while answers < 5_000:
            answers += (await flood.hear())["type"] == "renewed"
        await pouring


async def test_closing_takes_what_it_has_time_for_and_tells_the_rest(
    database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relaytui.commander.store.writer.CLOSE_WITHIN", 0.0)
    monkeypatch.setattr("relaytui.commander.store.writer.MAX_BATCH", 10)
    writer = Writer(database, "relay")
    said: dict[int, BaseException | None] = {}
    held = Held(writer)
    for n in range(200):
        writer.submit(
            lambda tx, n=n: tx.execute("INSERT INTO meta VALUES (?, 'x')", (str(n),)),  # type: ignore[misc]
            lambda _, error, n=n: said.setdefault(n, error),  # type: ignore[misc]
        )
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(0)
    held.let_go()
    await closing
    await until(lambda: len(said) == 200)
    given_up = [error for error in said.values() if error is not None]
    assert len(given_up) > 150
    assert {error.code for error in given_up if isinstance(error, RelayError)} == {"stopping"}
    assert writer.waiting == 0
    await asyncio.wait_for(writer.room(), DEADLINE)


@pytest.mark.parametrize("name", ["relay.db", "relay.db-wal", "telemetry.db"])
@pytest.mark.parametrize("replaced", [False, True])
async def test_a_database_that_goes_away_under_it_is_noticed(tmp_path: Path, name: str, replaced: bool) -> None:
    async with running(tmp_path / "state", lease_seconds=1.0) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        path = tmp_path / "state" / name
        assert path.exists()
        kit.commander.look()
        assert kit.commander.trouble is None
        path.rename(tmp_path / "elsewhere")
        if replaced:
            path.write_bytes((tmp_path / "elsewhere").read_bytes())
        await asyncio.wait_for(kit.commander.lost.wait(), 10)
        trouble = kit.commander.trouble
    assert trouble is not None
    assert trouble.exit_code == Exit.STATE
    assert f"{path} was {'replaced' if replaced else 'deleted'}" in trouble.message


async def test_a_commander_whose_folder_is_anothers_now_leaves_its_address_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with AsyncExitStack() as later:
        async with running(state):
            state.rename(tmp_path / "elsewhere")
            other = await later.enter_async_context(running(state))
        assert other.commander.url in (state / "commander.json").read_text()
