"""Databases that are harmed under a commander at work, and the first backup of a new one."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest
from commander_kit import log, running, until

from relaytui.commander import keeper
from relaytui.commander.store.kept import backups


async def test_what_the_disk_does_not_give_is_said_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "state") as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        await agent.tell(log(1, "hello"))

        async def fail(*args: object) -> None:
            raise sqlite3.DatabaseError("database disk image is malformed")

        for db in (kit.commander.core.reader._telemetry, kit.commander.core.reader._relay):
            monkeypatch.setattr(db, "execute_fetchall", fail)
        for page in ("/api/runs/run-1/log", "/api/runs/run-1", "/api/runs/run-1/series", "/api/events?after=0"):
            status, answer = await kit.get(page)
            assert (status, answer["error"]["code"]) == (503, "storage"), page
            assert "\n" not in str(answer)


@pytest.mark.parametrize("name", ["relay.db-wal", "telemetry.db-wal"])
@pytest.mark.parametrize("left", [0, 100, 5_000])
async def test_a_log_that_is_cut_off_under_it_fails_nobody_strangely(tmp_path: Path, name: str, left: int) -> None:
    async with running(tmp_path / "state") as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        await agent.tell(log(1, *(f"line {n}" for n in range(100))))
        os.truncate(tmp_path / "state" / name, left)
        for page in ("/api/runs/run-1/log", "/api/runs/run-1", "/api/events"):
            status, answer = await kit.get(page)
            assert status in (200, 503), answer
            assert status == 200 or answer["error"]["code"] == "storage"


async def test_a_grant_while_the_keeper_is_at_other_work_is_backed_up_soon_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "FIRST_LOOK", 0.05)
    state, at_work, granted = tmp_path / "state", asyncio.Event(), asyncio.Event()

    async def trim(self: keeper.Keeper) -> None:
        at_work.set()
        await granted.wait()

    monkeypatch.setattr(keeper.Keeper, "trim", trim)
    async with running(state) as kit:
        await at_work.wait()
        await (await kit.agent()).acquire("run-1")
        granted.set()
        await until(lambda: bool(backups(state)))


async def test_the_first_backup_comes_with_the_first_grant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "FIRST_LOOK", 0.05)
    state = tmp_path / "state"
    async with running(state) as kit:
        assert not backups(state)
        await (await kit.agent()).acquire("run-1")
        await until(lambda: bool(backups(state)))
        rows = sqlite3.connect(backups(state)[0])
        assert rows.execute("SELECT run_id FROM runs").fetchall() == [("run-1",)]
        rows.close()
