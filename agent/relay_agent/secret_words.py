"""Secrets that this process knows, and the word that stands for each in all that it says, stores and sends.

A trainer prints its token in the message of an error, and the last line goes to people, to the commander, onto the
volume and to the Hub: there it reads `[HF_TOKEN]`. What is known belongs to the process, as its environment does; the
log that the trainer writes stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import islice, zip_longest
from typing import Any
from urllib.parse import quote

SHORTEST = 8
"""Characters; what is shorter would be found in words that are none."""
MOST = 64
"""Words that are looked for, at most: each is a look at every block of lines."""
_SAYS_SO = re.compile(r"(?:TOKENS?|KEYS?|SECRETS?|_PASS)\Z|SECRET|PASSWORD|PASSWD", re.I)
_IN_URL = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")
_ODD = re.compile(r"[^A-Za-z0-9_.-]")

_texts: dict[str, str] = {}
"""Words, the longest first, and what stands for them."""
_bytes: tuple[bytes, ...] = ()
"""The same words as they stand in JSON."""


def learn(named: Mapping[str, str]) -> None:
    """Secrets by their names, besides what is known already: that stays, and a key of many lines leaves room for
    others, as the first line of each is taken before the second of any."""
    words = dict(_texts)
    labels = [f"[{_ODD.sub('_', name)[:60]}]" for name in named]
    for row in zip_longest(*map(_spellings, named.values())):
        for word, label in zip(row, labels, strict=True):
            if word is not None:
                words.setdefault(word, label)
    know(words)


def know(words: Mapping[str, str]) -> None:
    """These words, with what stands for each, and no others; of more than MOST the first."""
    global _texts, _bytes
    _texts = dict(sorted(islice(words.items(), MOST), key=lambda item: -len(item[0])))
    _bytes = tuple({_in_json(word).encode("utf-8", "surrogateescape") for word in _texts})


def known() -> dict[str, str]:
    """For another process of ours, never by argv or the environment."""
    return dict(_texts)


def of(environ: Mapping[str, str]) -> dict[str, str]:
    """Those variables whose names say that they are secret, and passwords in the URLs of others."""
    found: dict[str, str] = {}
    for name, value in environ.items():
        if _SAYS_SO.search(name):
            found[name] = value
        elif "@" in value and (password := _IN_URL.search(value)):
            found[name] = password[1]
    return found


def hold(data: bytes) -> bool:
    """Whether one of them stands in some JSON, in one look at it for each."""
    for word in _bytes:  # noqa: SIM110 - a generator would cost as much as the look
        if word in data:
            return True
    return False


def scrub(text: str) -> str:
    """With what stands for them."""
    for word, label in _texts.items():
        if word in text:
            text = text.replace(word, label)
    return text


def scrub_all(lines: Iterable[str]) -> list[str]:
    """Line by line, after one look at all of them."""
    lines = list(lines)
    return [scrub(line) for line in lines] if scrub(whole := "\n".join(lines)) != whole else lines


def scrub_deep(value: Any) -> Any:
    """Every text within lists and tables. One that grew is as long as it was, where that may be all that it may be."""
    if isinstance(value, str):
        told = scrub(value)
        return told if len(told) <= max(len(value), SHORTEST * 8) else told[: len(value) - 1] + "…"
    if isinstance(value, list | tuple):
        return [scrub_deep(each) for each in value]
    if isinstance(value, dict):
        return {scrub_deep(name): scrub_deep(each) for name, each in value.items()}
    return value


def scrub_lines(data: bytes) -> bytes:
    """Lines of JSON: those that hold one are written anew; what is no JSON is replaced as it stands."""
    if not hold(data):
        return data
    return b"".join(_json_line(line) if hold(line) else line for line in data.splitlines(keepends=True))


def _json_line(line: bytes) -> bytes:
    try:
        told = json.dumps(scrub_deep(json.loads(line)), ensure_ascii=False, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return scrub(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return told + b"\n" if line.endswith(b"\n") else told


def _spellings(value: str) -> Iterable[str]:
    """The lines of it (a key in PEM has many), and each as it stands in a URL."""
    for line in value.splitlines():
        word = line.strip()
        if len(word) >= SHORTEST:
            yield word
            yield quote(word, safe="", errors="surrogateescape")


def _in_json(word: str) -> str:
    return json.dumps(word, ensure_ascii=False)[1:-1]
