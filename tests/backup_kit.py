"""A state folder with two runs, backups of it, and what is asked of them from the shell."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import programs
from commander_kit import FakeClock, ended, published, running, started

from relaytui.commander.folder import StateFolder
from relaytui.commander.store.restore import restore

AT = 1_800_000_000.0
RELAY = programs.TUI


async def a_state(state: Path) -> None:
    async with running(state, FakeClock()) as kit:
        agent = await kit.agent("pod", "one")
        await agent.acquire("run-1", request_id="q")
        await agent.state(started(), published(5))
        other = await kit.agent("other")
        await other.acquire("run-2")
        await other.state(started(), ended("completed", 9, exit_code=0))


def rows(path: Path, query: str = "SELECT run_id, status, epoch FROM runs ORDER BY run_id") -> list[tuple[Any, ...]]:
    db = sqlite3.connect(path)
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


def put_back(state: Path, source: Path, at: float = AT) -> Any:
    folder = StateFolder(state, keyless=True)
    try:
        return restore(state, source, at)
    finally:
        folder.close()


def relay(*arguments: str | Path, said: str | None = None) -> subprocess.CompletedProcess[str]:
    """`said`: what is typed into it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    return programs.run(
        [RELAY, *arguments], capture_output=True, text=True, timeout=60, check=False, env=kept, input=said
    )


def asked(state: Path, command: str) -> tuple[int, str]:
    done = relay(command, "--state", state)
    return done.returncode, done.stdout + done.stderr
