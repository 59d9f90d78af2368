"""How the dashboard looks: its theme from the first frame on, all others for the palette, and the inks made of one."""

from __future__ import annotations

from typing import TypeVar

from textual.app import App
from textual.theme import Theme

from relaytui.dashboard.ink import TOKENS, Ink
from relaytui.dashboard.themes import choose_theme, first_theme, load_themes, shipped_folder
from relaytui.wire.text import clean

T = TypeVar("T")


class ThemedApp(App[T]):
    def __init__(self, *, theme: str | None, plain: bool) -> None:
        """`plain`: no colours at all (NO_COLOR); states are read from glyph, word, bold and reverse."""
        super().__init__(ansi_color=True if plain else None)
        self._plain = plain
        self._wanted_theme = theme
        self.broken_themes = list[str]()
        """Sentences about files that nobody was told of yet."""
        self._begin_with_theme(first_theme(theme))
        self.ink = self._make_ink()

    def on_mount(self) -> None:
        self.theme_changed_signal.subscribe(self, self._theme_changed)

    def _begin_with_theme(self, theme: Theme | None) -> None:
        if theme is None:
            self.load_themes()
        elif theme.ansi:  # changes how colours are sent: Textual's own, slower way
            self.register_theme(theme)
            self.theme = theme.name
        else:
            # Set before anything is drawn, so that the style sheet is parsed once and not twice.
            self.register_theme(theme)
            self.set_reactive(App.theme, theme.name)
            self.set_class(theme.dark, "-dark-mode", update=False)
            self.set_class(not theme.dark, "-light-mode", update=False)
            self.stylesheet.set_variables(self.get_css_variables())

    def load_themes(self) -> list[str]:
        """All themes, for the palette; Textual's own leave. What to say at once; of files that are broken whoever looks
        for a theme is told."""
        found = load_themes()
        self.broken_themes, said = (found.problems, []) if shipped_folder() else ([], found.problems)
        for name in list(self.available_themes):
            if name not in found.themes and name != self.theme:
                self.unregister_theme(name)
        for theme in found.themes.values():
            self.register_theme(theme)
        if self.theme not in found.themes:
            before = self.theme
            self.theme = choose_theme(self._wanted_theme, found.themes)
            self.unregister_theme(before)
        if self._wanted_theme is not None and self._wanted_theme not in found.themes:
            known = ", ".join(sorted(found.themes))
            said.append(f"no theme is called {clean(self._wanted_theme, 40)!r} (known: {known})")
        return said

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return {name: value for name, value in TOKENS.items() if not value.startswith("$")}

    def _make_ink(self) -> Ink:
        return Ink(self.get_css_variables(), plain=self._plain or self.current_theme.ansi)

    def _theme_changed(self, _: object) -> None:
        self.ink = self._make_ink()
        for screen in self.screen_stack:
            for widget in screen.query("*"):
                widget.notify_style_update()
                widget.refresh()
