"""Themes as files: found, checked, and never what keeps the dashboard from coming up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from dashboard_fleet import scripted
from dashboard_rig import dashboard
from scripted_commander import ScriptedCommander
from textual.color import Color

from relaytui.cli import dashboard as cli_dashboard
from relaytui.cli import demo
from relaytui.cli.group import cli
from relaytui.dashboard.app import DashboardResult
from relaytui.dashboard.ink import TOKENS, Ink
from relaytui.dashboard.themes import choose_theme, first_theme, load_themes, shipped_folder
from relaytui.shell.program import run
from relaytui.wire.errors import Exit

GOOD = 'name = "mine"\n[colors]\nprimary = "#112233"\n'


def test_the_shipped_ones_are_whole() -> None:
    found = load_themes([shipped_folder()])
    assert found.problems == []
    assert {"relay-dark", "relay-light", "relay-contrast", "relay-ansi"} <= set(found.themes)
    assert {theme.dark for theme in found.themes.values()} == {True, False}


@pytest.mark.parametrize("name", ["relay-dark", "relay-light", "relay-contrast"])
def test_every_text_stands_out_from_its_background(name: str) -> None:
    theme = load_themes([shipped_folder()]).themes[name]
    variables = {**theme.to_color_system().generate(), **theme.variables}
    ink = Ink(variables)
    least = 7.0 if name == "relay-contrast" else 4.5
    for background in (theme.background, theme.panel, theme.variables["cursor-background"]):
        assert background is not None
        below = Color.parse(background)
        for token in ("text", "strong", "title", "key", "good", "warn", "bad", "muted", *TOKENS):
            if token in ("faint", "bar-rest", "chart-old", "cursor-background"):
                continue  # lines and what is greyed out: not text to be read
            colour = ink.style(token).color
            assert colour is not None
            assert _contrast(Color.parse(colour.name), below) >= least * 0.62, f"{name}: {token} on {background}"
            if background == theme.background:
                assert _contrast(Color.parse(colour.name), below) >= least, f"{name}: {token} on {background}"


def _contrast(one: Color, other: Color) -> float:
    def luminance(colour: Color) -> float:
        channels = (c / 255 for c in (colour.r, colour.g, colour.b))
        r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "is not TOML"),
        (GOOD + 'primry = "#fff"\n', "colors.primry: no such key"),
        (GOOD.replace("#112233", "bluish"), "colors.primary: 'bluish' is no colour"),
        (GOOD + "[tokens]\nstate-running = 3\n", "tokens.state-running"),
        ('name = "mine"\n[colors]\nerror = "#fff"\n', "colors.primary: is missing"),
        ('name = "Not A Name"\n', "name: wants"),
        ("dark = 'yes'\n[colors]\nprimary = '#fff'\n", "dark: wants true or false"),
        ("colors = 3\n", "colors: wants a table"),
    ],
)
def test_a_broken_one_is_told_with_file_and_key_and_the_others_go_on(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "broken.toml").write_text(text)
    (tmp_path / "good.toml").write_text(GOOD)
    found = load_themes([tmp_path])
    assert list(found.themes) == ["mine"]
    assert len(found.problems) == 1
    assert "broken.toml" in found.problems[0]
    assert said in found.problems[0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "is a FIFO, not a plain file"),
        (lambda path: path.mkdir(), "is a folder, not a plain file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device, not a plain file"),
        (lambda path: path.symlink_to(path.parent / "gone.toml"), "cannot be read (No such file"),
        (lambda path: path.write_text(GOOD + "#" * 100_000), "is too large (over 65,536 bytes)"),
        (lambda path: path.write_bytes(GOOD.encode() + b"# \xff\xfe\n"), "is not TOML"),
        (lambda path: path.write_text("x = " + "[" * 20_000), "is not TOML"),
        (lambda path: path.write_text("x = " + "9" * 20_000), "is not TOML"),
    ],
)
def test_what_is_no_plain_text_is_told_and_holds_nothing_up(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    make(tmp_path / "broken.toml")
    (tmp_path / "good.toml").write_text(GOOD)
    found = load_themes([tmp_path])
    assert list(found.themes) == ["mine"]
    assert len(found.problems) == 1
    assert said in found.problems[0]
    assert found.problems[0].count("broken.toml") == 1


def test_a_link_to_a_theme_is_a_theme(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "dotfiles" / "good").write_text(GOOD)
    (tmp_path / "mine.toml").symlink_to(tmp_path / "dotfiles" / "good")
    assert list(load_themes([tmp_path]).themes) == ["mine"]


def test_a_config_folder_of_nobody_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "~no-such-user/x")
    assert first_theme(None) is not None
    assert "relay-dark" in load_themes().themes


def test_without_any_file_there_are_plain_colours(tmp_path: Path) -> None:
    found = load_themes([tmp_path])
    assert list(found.themes) == ["relay-ansi"]
    assert found.problems


def test_no_color_chooses_the_plain_theme_over_all() -> None:
    themes = load_themes([shipped_folder()]).themes
    assert choose_theme("relay-light", themes, {"NO_COLOR": "1"}) == "relay-ansi"
    assert choose_theme("relay-light", themes, {}) == "relay-light"
    assert choose_theme("no-such", themes, {}) == "relay-dark"
    first = first_theme("relay-light", {"NO_COLOR": "1"})
    assert first is not None
    assert first.name == "relay-ansi"


@pytest.mark.parametrize("theme", ["relay-dark", "relay-light", "relay-contrast", "relay-ansi"])
async def test_each_shows_and_can_be_changed_for_another(theme: str) -> None:
    commander = await ScriptedCommander().start()
    scripted(commander)
    async with dashboard(commander, theme=theme) as rig:
        await rig.shows("● running")
        assert rig.app.theme == theme
        rig.app.theme = "relay-light" if theme != "relay-light" else "relay-dark"
        await rig.press("2", "3", "1")
        await rig.shows("● running")
    await commander.stop()


async def test_a_theme_that_does_not_exist_is_said() -> None:
    commander = await ScriptedCommander().start()
    scripted(commander)
    async with dashboard(commander, theme="[/x]") as rig:
        await rig.shows("no theme is called")
        assert rig.app.theme == "relay-dark"
    await commander.stop()


async def test_a_broken_one_is_told_once_to_who_looks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told at each start, over the tabs."""
    folder = tmp_path / "relay-tui" / "themes"
    folder.mkdir(parents=True)
    (folder / "bad.toml").write_text('name = "bad"\n[colors]\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    commander = await ScriptedCommander().start()
    scripted(commander)
    async with dashboard(commander, size=(120, 30)) as rig:
        await rig.shows("● running")
        assert [len(rig.app._notifications), len(rig.app.broken_themes)] == [0, 1]
        rig.app.action_change_theme()
        await rig.becomes(lambda: rig.app.screen.is_modal)
        assert len(rig.app._notifications) == 0
        await rig.press("escape")
        await rig.becomes(lambda: [n.message[-26:] for n in rig.app._notifications] == ["colors.primary: is missing"])
        assert rig.app.broken_themes == []
    await commander.stop()


def test_a_theme_that_does_not_exist_is_refused_and_those_there_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "relay-tui" / "themes"
    folder.mkdir(parents=True)
    (folder / "bad.toml").write_text('name = "bad"\n[colors]\n')
    (folder / "other.toml").write_text(GOOD)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(cli_dashboard, "check_terminal", lambda: None)
    monkeypatch.setattr(demo, "check_terminal", lambda: None)
    shown: list[object] = []
    monkeypatch.setattr(cli_dashboard, "show", lambda source, **how: shown.append(how) or DashboardResult("quit"))
    said = "no theme is called 'nope'. there are: mine, relay-ansi, relay-contrast, relay-dark, relay-light"
    for line in (["--theme", "nope"], ["demo", "--theme", "nope"]):
        assert run("relay-tui", cli, line) == Exit.USAGE
        assert capsys.readouterr().err == f"relay-tui: {said}\n"
    assert run("relay-tui", cli, ["--theme", "bad"]) == Exit.USAGE
    err = capsys.readouterr().err
    assert "bad.toml: colors.primary: is missing. there are: mine, relay-ansi" in err
    assert err.count("\n") == 1
    assert shown == []
    for name in ("mine", "relay-light"):
        assert run("relay-tui", cli, ["--theme", name]) == 0
    assert len(shown) == 2


async def test_the_palette_offers_our_themes_only() -> None:
    commander = await ScriptedCommander().start()
    scripted(commander)
    async with dashboard(commander) as rig:
        await rig.shows("● running")
        assert all(name.startswith("relay-") for name in rig.app.available_themes)
    await commander.stop()
