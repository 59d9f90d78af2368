"""A few rounds of what `make faults` does two hundred times: holders killed and frozen in the middle of their syncs."""

from __future__ import annotations

import os
from pathlib import Path

from tests.faults.hub_kills import play


def test_holders_killed_and_frozen_leave_only_whole_tags(tmp_path: Path) -> None:
    play(tmp_path, rounds=200 if os.environ.get("RELAY_FAULTS") == "long" else 1, seed=5, share=0.0)
