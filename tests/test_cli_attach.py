"""The dashboard finds its commander, also one that is just being started in another shell."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from relaytui.cli import dashboard, session
from relaytui.cli.options import Target
from relaytui.client.endpoint import Endpoint
from relaytui.commander.embedded import EmbeddedCommander
from relaytui.wire.errors import Exit, RelayError

HERE = Endpoint("http://127.0.0.1:1", "t" * 64)


@pytest.mark.parametrize(("code", "comes"), [("held", True), ("held", False), ("state", True)])
def test_a_commander_that_is_just_being_started_is_attached_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, comes: bool
) -> None:
    """Whoever said `relay-tui serve` and `relay-tui` at once was told to do what they did."""
    asked = 0

    async def endpoint_of(target: Target) -> Endpoint:
        nonlocal asked
        asked += 1
        if asked < 3 or not comes:
            raise RelayError("no_commander", "no commander is running", exit_code=Exit.UNAVAILABLE)
        return HERE

    def start(self: EmbeddedCommander) -> str:
        raise RelayError(code, "it belongs to a commander that runs", exit_code=Exit.STATE)

    monkeypatch.setattr(session, "endpoint_of", endpoint_of)
    monkeypatch.setattr(EmbeddedCommander, "start", start)
    monkeypatch.setattr(dashboard, "LEAVE_SECONDS", 0.2)
    embedded: list[EmbeddedCommander] = []
    try:
        if code == "held" and comes:
            assert dashboard._find_or_start(Target(tmp_path, None), 0, embedded).endpoint == HERE
        else:
            with pytest.raises(RelayError, match="belongs to"):
                dashboard._find_or_start(Target(tmp_path, None), 0, embedded)
            assert (asked > 1) == (code == "held")
    finally:
        gc.unfreeze()
    assert embedded == []
