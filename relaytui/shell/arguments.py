"""Arguments of commands, checked where they come in: what is empty, not a number or made to hurt is no guess."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from relaytui.wire.figures import plain_number, plain_whole
from relaytui.wire.ids import is_id
from relaytui.wire.text import clean
from relaytui.wire.url import BadUrl, holds_more, plain_url

MAX_COUNT = 2**53
"""Epochs, event ids: what JSON carries exactly."""
MAX_TEXT = 1_024
_MAX_PART, _MAX_PATH = 255, 4_000
"""Bytes that file systems take, of one name and of a whole path."""


def shown(value: str) -> str:
    return repr(clean(value.encode("utf-8", "replace").decode(), 80))


class Checked(click.ParamType):  # type: ignore[type-arg]
    """`check` gives what the value means, or raises ValueError with what it should be."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.check(value)
        except ValueError as error:
            said = str(error)
            self.fail(f"{self.shown(value)} {said}" if value else said, param, ctx)

    def shown(self, value: str) -> str:
        """As it may be said again."""
        return shown(value)

    def check(self, text: str) -> Any:
        raise NotImplementedError


class RunId(Checked):
    name = "run_id"

    def check(self, text: str) -> str:
        if not is_id(text):
            raise ValueError(
                "should be a run's name: up to 128 letters, digits, dots, dashes and underscores, no dot or dash first"
            )
        return text


class FilePath(Checked):
    """A path, with `~` made whole; not asked whether it is there."""

    name = "path"

    def check(self, text: str) -> Path:
        return usable_path(text)


class Words(Checked):
    """One line of text that is said to people, or handed on to other programs. `least`: 0 takes none, too."""

    name = "text"

    def __init__(self, *, least: int = 1, most: int = MAX_TEXT) -> None:
        self._least = least
        self._most = most

    def check(self, text: str) -> str:
        if len(text.strip()) < self._least:
            raise ValueError("should not be empty")
        if len(text) > self._most:
            raise ValueError(f"should be {self._most} characters at most")
        if clean(text, self._most) != text:
            raise ValueError("should be plain text without control or invisible characters")
        return text


class Url(Checked):
    name = "url"

    def shown(self, value: str) -> str:
        return "it" if holds_more(value) else shown(value)

    def check(self, text: str) -> str:
        try:
            return plain_url(text if "://" in text else f"http://{text}")
        except BadUrl as error:
            raise ValueError(f"{error}" if text else "should be http(s)://host[:port], not empty") from None


class Seconds(click.FloatRange):
    """A finite number of seconds: nan is in no range, and click lets it pass."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str):
            value = _figure(plain_number, value, "number", self, param, ctx)
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return seconds


class Whole(click.IntRange):
    """A whole number in a range."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str):
            value = _figure(plain_whole, value, "whole number", self, param, ctx)
        return super().convert(value, param, ctx)


class Count(Whole):
    """A whole number from `least` on. That JSON carries none above MAX_COUNT exactly is said to whoever comes there."""

    name = "count"

    def __init__(self, least: int = 0) -> None:
        super().__init__(least)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number > MAX_COUNT:
            self.fail(f"should be {MAX_COUNT} at most", param, ctx)
        return number


def _figure(
    read: Callable[[str], float],
    value: str,
    what: str,
    kind: click.ParamType,  # type: ignore[type-arg]
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> float:
    try:
        return read(value.strip())
    except ValueError:
        kind.fail(f"{shown(value)} is not a plain {what}", param, ctx)


RUN_ID = RunId()
PATH = FilePath()
WORDS = Words()
WHY = Words(least=0)
URL = Url()
COUNT = Count()


def usable_path(text: str) -> Path:
    """ValueError where no file system has such a path, or `~user` is nobody."""
    if not text:
        raise ValueError("should be a path, not empty")
    if "\0" in text:
        raise ValueError("should be a path: there is a NUL in it")
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise ValueError("begins with ~ and a user that does not exist") from None
    if len(os.fsencode(path)) > _MAX_PATH or any(len(os.fsencode(part)) > _MAX_PART for part in path.parts):
        raise ValueError(f"should be a path: it, or a name in it, is too long ({_MAX_PART} bytes a name)")
    return path
