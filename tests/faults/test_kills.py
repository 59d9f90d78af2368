"""A few rounds of what `make faults` does two hundred times: kills in the middle of uploads, and of restores."""

from __future__ import annotations

import os
from pathlib import Path

from tests.faults import pull_kills, store_kills

LONG = os.environ.get("RELAY_FAULTS") == "long"


def test_uploads_that_are_killed_leave_only_what_is_whole(tmp_path: Path) -> None:
    store_kills.play(tmp_path, rounds=200 if LONG else 2, seed=3)


def test_restores_that_are_killed_offer_only_what_is_whole(tmp_path: Path) -> None:
    pull_kills.play(tmp_path, rounds=200 if LONG else 2, seed=5)
