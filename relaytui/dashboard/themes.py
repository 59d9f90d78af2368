"""Themes are files: found, checked, handed to Textual. A broken one is told about and left out."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from textual.color import Color, ColorParseError
from textual.theme import Theme

from relaytui.dashboard.ink import TOKENS
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.files import first_bytes
from relaytui.wire.text import clean

DEFAULT_DARK = "relay-dark"
PLAIN = "relay-ansi"

COLORS = (
    "primary",
    "secondary",
    "accent",
    "success",
    "warning",
    "error",
    "foreground",
    "background",
    "surface",
    "panel",
)
_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,39}\Z")
_MAX_BYTES = 65_536

# Textual's stock widgets need these of a theme that leaves colours to the terminal.
_ANSI_VARIABLES = {
    "ansi-background": "ansi_black",
    "ansi-foreground": "ansi_white",
    "border-blurred": "ansi_bright_black",
    "block-cursor-foreground": "ansi_black",
    "block-cursor-background": "ansi_white",
    "input-cursor-background": "ansi_white",
    "input-cursor-foreground": "ansi_black",
    "input-selection-background": "ansi_bright_blue",
    "input-selection-foreground": "ansi_black",
    "screen-selection-background": "ansi_bright_blue",
    "screen-selection-foreground": "ansi_black",
}


@dataclass
class Themes:
    """`problems` are whole sentences that name file and key."""

    themes: dict[str, Theme] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class _BadThemeError(Exception):
    pass


def shipped_folder() -> Path | None:
    """Where Relay's own themes are: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "themes", package.parent / "themes"):
        if (folder / f"{DEFAULT_DARK}.toml").is_file():
            return folder
    return None


def user_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    try:
        base = Path(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    except RuntimeError:  # `~user` of nobody, or a user without a home
        return None
    return base / "relay-tui" / "themes"


def load_themes(folders: Iterable[Path | None] | None = None) -> Themes:
    """All themes; one of the user's takes the place of a shipped one of the same name."""
    found = Themes()
    for folder in (shipped_folder(), user_folder()) if folders is None else folders:
        if folder is None or not folder.is_dir():
            continue
        for path in sorted(folder.glob("*.toml")):
            try:
                theme = read_theme(path)
            except _BadThemeError as bad:
                found.problems.append(f"theme {clean(str(path), 200)}: {bad}")
            else:
                found.themes[theme.name] = theme
    if not found.themes:  # a theme file is never what keeps the dashboard from coming up
        found.problems.append("no theme files were found: plain colours are used")
        found.themes[PLAIN] = Theme(
            name=PLAIN,
            ansi=True,
            variables=dict(_ANSI_VARIABLES),
            **{key: "ansi_default" for key in COLORS if key != "primary"},  # type: ignore[arg-type]
            primary="ansi_blue",
        )
    return found


def first_theme(wanted: str | None, environ: Mapping[str, str] = os.environ) -> Theme | None:
    """The theme to begin with, from its own file alone, so that the first frame waits for no other.

    None where that file is missing, broken or names itself otherwise: then all have to be looked at.
    """
    name = PLAIN if environ.get("NO_COLOR") else wanted or DEFAULT_DARK
    if not _NAME.match(name):
        return None
    for folder in (user_folder(environ), shipped_folder()):
        if folder is not None and (folder / f"{name}.toml").is_file():
            try:
                theme = read_theme(folder / f"{name}.toml")
            except _BadThemeError:
                continue
            if theme.name == name:
                return theme
    return None


def refuse_unknown(wanted: str) -> None:
    """RelayError (exit USAGE) where there is no such theme, or only a broken one."""
    if (theme := first_theme(wanted)) is not None and theme.name == wanted:
        return
    found = load_themes()
    if wanted in found.themes:
        return
    broken = [problem for problem in found.problems if f"/{wanted}.toml: " in problem]
    said = broken[0] if broken else f"no theme is called {clean(wanted, 40)!r}"
    raise RelayError("usage", said, f"there are: {', '.join(sorted(found.themes))}", exit_code=Exit.USAGE)


def read_theme(path: Path) -> Theme:
    """One theme file, every key and colour checked."""
    try:
        content = first_bytes(path, _MAX_BYTES, follow=True)
    except RelayError as error:
        raise _BadThemeError(error.message.removeprefix(str(path)).strip()) from None
    if content is None:
        raise _BadThemeError("cannot be read (No such file or directory)")
    if len(content) > _MAX_BYTES:
        raise _BadThemeError(f"is too large (over {_MAX_BYTES:,} bytes)")
    try:
        data = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _BadThemeError(f"is not TOML: {clean(str(error), 120)}") from None
    _only(data, {"name", "dark", "ansi", "colors", "tokens"}, "")
    name = data.get("name", path.stem)
    if not isinstance(name, str) or not _NAME.match(name):
        raise _BadThemeError("name: wants small letters, digits and dashes")
    flags = {}
    for flag, default in (("dark", True), ("ansi", False)):
        flags[flag] = data.get(flag, default)
        if not isinstance(flags[flag], bool):
            raise _BadThemeError(f"{flag}: wants true or false")
    colors = _colors(data.get("colors", {}), set(COLORS), "colors")
    tokens = _colors(data.get("tokens", {}), set(TOKENS), "tokens")
    if "primary" not in colors:
        raise _BadThemeError("colors.primary: is missing")
    variables = {**(_ANSI_VARIABLES if flags["ansi"] else {}), **tokens}
    return Theme(name=name, variables=variables, dark=flags["dark"], ansi=flags["ansi"], **colors)  # type: ignore[arg-type]


def _only(table: Mapping[str, object], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise _BadThemeError(f"{where}{clean(key, 60)}: no such key (known: {', '.join(sorted(known))})")


def _colors(table: object, known: set[str], where: str) -> dict[str, str]:
    if not isinstance(table, dict):
        raise _BadThemeError(f"{where}: wants a table")
    _only(table, known, f"{where}.")
    for key, value in table.items():
        try:
            if not isinstance(value, str):
                raise ColorParseError("a colour is a string")
            Color.parse(value)
        except ColorParseError:
            raise _BadThemeError(f"{where}.{key}: {clean(str(value), 60)!r} is no colour (write #rrggbb)") from None
    return dict(table)


def choose_theme(wanted: str | None, themes: Mapping[str, Theme], environ: Mapping[str, str] = os.environ) -> str:
    """The theme to begin with: as wanted, plain under NO_COLOR, else Relay's own."""
    if environ.get("NO_COLOR") and PLAIN in themes:
        return PLAIN
    for name in (wanted, DEFAULT_DARK, PLAIN):
        if name and name in themes:
            return name
    return next(iter(themes))
