"""What the dashboard draws with: named tokens, whose colours come from the theme."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from rich.style import Style
from textual.color import Color, ColorParseError

TOKENS: dict[str, str] = {
    "muted": "#8b95a1",
    "faint": "#4b545e",
    "cursor-background": "#25303c",
    "state-queued": "#9fb0c3",
    "state-leased": "#5fb3b3",
    "state-running": "$success",
    "state-draining": "$warning",
    "state-completed": "$primary",
    "state-failed": "$error",
    "state-cancelled": "#8b95a1",
    "state-preempted": "#c39ae0",
    "state-lost": "#f0995c",
    "lease-low": "$warning",
    "bar-done": "$success",
    "bar-rest": "$faint",
    "chart-line": "$primary",
    "chart-old": "$faint",
    "log-error": "$error",
    "log-warn": "$warning",
    "log-mark": "$muted",
}
"""Relay's own tokens with what they are where a theme does not say; `$name` is another colour of the theme."""

# Tokens that are a colour of the theme plus an attribute. Attributes carry the meaning where there is no colour.
_ALIASES: dict[str, tuple[str, str]] = {
    "text": ("foreground", ""),
    "strong": ("foreground", "bold"),
    "title": ("primary", "bold"),
    "key": ("accent", "bold"),
    "good": ("success", ""),
    "warn": ("warning", "bold"),
    "bad": ("error", "bold"),
    "badge": ("accent", "bold reverse"),
    "tab": ("primary", "bold underline"),
}
_ATTRIBUTES: dict[str, str] = {
    "state-running": "bold",
    "state-draining": "bold",
    "state-failed": "bold",
    "state-lost": "bold",
    "lease-low": "bold",
    "log-error": "bold",
    "faint": "dim",
}
_ATTRIBUTES_ONLY_PLAIN = frozenset({"faint"})


class Piece(NamedTuple):
    """A stretch of text in one ink. Text of pods passes `clean` before it gets here, and is never markup."""

    text: str
    ink: str = "text"


class Ink:
    """Styles of one theme. `plain`: colours are the terminal's or none, so attributes must carry the meaning."""

    def __init__(self, variables: Mapping[str, str], *, plain: bool = False) -> None:
        self._variables = variables
        self.plain = plain
        self._styles: dict[str, Style] = {}
        if plain or self._value("cursor-background") == "ansi_default":
            self.cursor = Style(reverse=True)
        else:
            self.cursor = Style(bgcolor=_color(self._value("cursor-background")))

    def _value(self, name: str) -> str:
        value = self._variables.get(name) or TOKENS.get(name) or "ansi_default"
        for _ in range(4):  # tokens may point at tokens
            if not value.startswith("$"):
                break
            value = self._variables.get(value[1:]) or TOKENS.get(value[1:]) or "ansi_default"
        return value

    def style(self, token: str) -> Style:
        """The style of a token; several joined by `+` add up (`muted+strike`)."""
        style = self._styles.get(token)
        if style is None:
            name, *attributes = token.split("+")
            colour, attribute = _ALIASES.get(name, (name, _ATTRIBUTES.get(name, "")))
            if name in _ATTRIBUTES_ONLY_PLAIN and not self.plain:
                attribute = ""
            style = Style(color=_color(self._value(colour))) + Style.parse(" ".join([attribute, *attributes]).strip())
            self._styles[token] = style
        return style


@lru_cache(maxsize=256)
def _color(value: str) -> str | None:
    """A theme's colour as Rich names it; None for the terminal's default."""
    try:
        colour = Color.parse(value)
    except ColorParseError:
        return None
    if colour.ansi is not None:
        return None if colour.ansi < 0 else f"color({colour.ansi})"
    return f"#{colour.r:02x}{colour.g:02x}{colour.b:02x}"
