"""Fixtures that several files of tests share; a file that needs another of that name has its own."""

from __future__ import annotations

import os

import pytest
from agent_rig import commander, rig
from cli_kit import served
from guardian_kit import marked

__all__ = ["commander", "marked", "rig", "served"]

collect_ignore = [] if os.environ.get("TEST_REAL") else ["real"]
"""What needs the real trainers: `make test-real`."""

LONG = (
    "test_simulation", "test_processes", "test_checkpoints_crash", "test_linearizability", "test_crash_points",
    "test_lease_model", "test_volume_model", "test_dashboard_terminal", "test_agent_takeover", "test_trainers",
    "test_demo", "test_wheel", "test_cli_streams", "test_agent_run", "test_agent_trouble", "test_agent_orders",
)  # fmt: skip
"""Files that take longest, few tests as some have: they begin first, so that none is left alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(LONG)))
