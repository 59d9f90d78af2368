"""What is said to be typed reaches the commander that was meant, wherever it is said."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from relaytui.cli import dashboard, demo
from relaytui.cli.group import COMMANDS, cli
from relaytui.cli.options import HERE, NO_TARGET, Target
from relaytui.dashboard.app import DashboardResult
from relaytui.shell.program import run

STATE = Path("/srv/my relay")


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_COMMANDER_STATE", "/srv/relay")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_in_a_hint_is_of_the_commander_that_was_asked(name: str) -> None:
    words = f"see `relay-tui {name} my-run`, or leave it"
    assert Target(Path("/srv/relay"), None).typed(words) == words
    there = Target(STATE, None).typed(words)
    state = "" if name in NO_TARGET else "--state '/srv/my relay' "
    assert there == f"see `relay-tui {state}{name} my-run`, or leave it"
    assert Target(STATE, None).typed(there) == there
    away = Target(Path("/srv/relay"), "https://relay.example.org").typed(words)
    connect = "" if name in (*NO_TARGET, *HERE) else "--connect https://relay.example.org "
    assert away == f"see `relay-tui {connect}{name} my-run`, or leave it"


def test_what_names_no_commander_stays_as_it_is() -> None:
    for words in ("compare `relay-tui --version` on both sides", "relay-tui is a program", "`relay-tuition`", ""):
        assert Target(STATE, None).typed(words) == words
    assert Target(STATE, None).typed("`relay-tui` attaches") == "`relay-tui --state '/srv/my relay'` attaches"


def test_the_demo_is_shown_in_the_theme_that_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr(demo, "check_terminal", lambda: None)
    monkeypatch.setattr(demo, "stage", lambda *_: contextlib.nullcontext((Path(), None, None)))
    monkeypatch.setattr(demo, "director_of", lambda *_: SimpleNamespace(run=lambda seconds: asyncio.sleep(0)))
    monkeypatch.setattr(demo, "show", lambda source, **how: shown.append(how) or DashboardResult("signal"))
    assert run("relay-tui", cli, ["demo", "--theme", "relay-light"]) == 0
    assert shown == [{"theme": "relay-light"}]


def test_a_commander_that_is_left_running_says_how_to_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Left:
        pid = 7

        def __init__(self, *args: object, **kwargs: object) -> None: ...

        def poll(self) -> int | None:
            return None

    monkeypatch.setattr(dashboard.subprocess, "Popen", Left)
    monkeypatch.setattr(dashboard, "_serves", lambda state, pid: True)
    dashboard.leave_running(Target(tmp_path, None), "http://127.0.0.1:9")
    assert f"`relay-tui --state {tmp_path}` attaches to it" in capsys.readouterr().err
