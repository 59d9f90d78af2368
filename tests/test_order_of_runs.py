"""Runs and workers stand in one order, in the shell as in the dashboard, before and after a commander's restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from backup_kit import relay
from commander_kit import FakeClock, Kit, ended, running, started

from relaytui.client.order import runs_in_order, workers_in_order
from relaytui.dashboard.screens.lists import run_item
from relaytui.wire.rows import RunRow, WorkerRow
from relaytui.wire.status import RunStatus


def row(run_id: str, status: RunStatus, **more: Any) -> RunRow:
    return RunRow(run_id, "sft", status, 1, 0.0, 0.0, step=7, **more)


ROWS = [
    row("c-done", RunStatus.COMPLETED),
    row("z-stalled", RunStatus.RUNNING, stalled_at=0.0, stalled_in="saving"),
    row("a-queued", RunStatus.QUEUED),
    row("b-running", RunStatus.RUNNING),
    row("a-failed", RunStatus.FAILED),
    row("a-running", RunStatus.RUNNING),
]


def test_what_should_be_looked_at_comes_first_as_in_the_dashboard() -> None:
    said = [each.run_id for each in runs_in_order(ROWS)]
    assert said == ["z-stalled", "a-running", "b-running", "a-queued", "a-failed", "c-done"]
    assert said == [each.run_id for each in sorted(ROWS, key=lambda each: run_item(each, 1.0).order["status"])]


async def test_the_shell_prints_them_so(tmp_path: Path) -> None:
    async with running(tmp_path / "state", FakeClock()) as kit:
        for name in ("a-done", "b-running"):
            agent = await kit.agent(f"pod-{name}")
            await agent.acquire(name)
            await agent.state(started(), *([ended("completed", 5, exit_code=0)] if name == "a-done" else []))
        done = await asyncio.to_thread(relay, "runs", "--state", tmp_path / "state")
        assert [line.split()[0] for line in done.stdout.splitlines()] == ["RUN", "b-running", "a-done"]


async def test_a_restart_of_the_commander_changes_no_order(tmp_path: Path) -> None:
    clock = FakeClock()

    async def said(kit: Kit) -> tuple[list[str], list[str]]:
        runs, workers = (await kit.get("/api/runs"))[1]["runs"], (await kit.get("/api/workers"))[1]["workers"]
        rows = workers_in_order([msgspec.convert(each, WorkerRow) for each in workers])
        return [each["run_id"] for each in runs], [row.worker for row in rows]

    async with running(tmp_path / "state", clock) as kit:
        for name in ("m", "z", "a"):
            agent = await kit.agent(f"pod-{name}", {"m": "3", "z": "1", "a": "2"}[name])
            await agent.acquire(f"run-{name}")
            await agent.state(started(), ended("completed", 5, exit_code=0))
            clock.advance(1)
        assert await said(kit) == (["run-m", "run-z", "run-a"], ["pod-a", "pod-m", "pod-z"])
    async with running(tmp_path / "state", clock) as kit:
        assert await said(kit) == (["run-m", "run-z", "run-a"], ["pod-a", "pod-m", "pod-z"])
