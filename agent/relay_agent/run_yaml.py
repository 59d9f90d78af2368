"""What stands in a run.yaml: `KEY: value` lines, and nothing else that YAML has. No error repeats a value."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relay_agent.values import Figure
from relay_agent.yaml_words import NO_COLON, first_without_colon, in_words
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.variables import COMMANDERS, PREFIX, THERE, TRAINERS, nearest

CONFIG_VARIABLE = "RELAY_RUN_CONFIG"
MAX_FILE = 1 << 20
MAX_TOKENS = 2000
"""Of YAML: some four for each key."""

TOLD = 5
"""Things that are wrong, at most, in one line."""

_FIGURES = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_KEY_LIKE = re.compile(r"[A-Za-z][A-Za-z_]{0,39}")
_WORD = re.compile(r"\w{1,80}", re.ASCII)


def read(
    path: Path, named: bool, spellings: Mapping[str, str], troubles: list[RelayError]
) -> dict[str, tuple[str, object]]:
    """Canonical name → (name as written, value). A file that nobody named may be missing. `spellings`: how a key may be
    written → its canonical name. What is wrong with single keys goes into `troubles`; RelayError where the file is
    none. Each (exit 2) names file and key."""
    try:
        # Not blocking: a FIFO would wait for a writer, and only then say what it is.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _unusable(path, "is not a plain file")
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise _unusable(path, "is over 1 MiB, and cannot be a run.yaml")
    except FileNotFoundError:
        if named:
            raise _unusable(path, "does not exist") from None
        return {}
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise _unusable(path, "is no path that can be opened") from None
    found: dict[str, tuple[str, object]] = {}
    for line, name, value in _pairs(path, data):
        if not isinstance(name, str):
            raise _unusable(
                path, f"has a key in line {line} that is not a plain word, but a number, a list or something else"
            )
        key = spellings.get(name)
        if key is None:
            troubles.append(_unknown(path, name, line, spellings))
            continue
        if key in found:
            twice = f"{path}: {key} is set twice ({found[key][0]}, {name})"
            troubles.append(RelayError("duplicate_key", twice, "keep one of them", exit_code=Exit.USAGE))
            continue
        if value is not None:
            found[key] = (name, value)
    return found


def _unknown(path: Path, name: str, line: int, spellings: Mapping[str, str]) -> RelayError:
    bare = name[:80].upper()
    full = bare if bare.startswith(PREFIX) else PREFIX + bare
    near = nearest(bare, set(spellings.values()))
    if full in COMMANDERS:
        what, hint = f"{full} is the commander's, and no key of a run.yaml", THERE
    elif near:
        what, hint = "", f"did you mean {near}?"
    elif full in TRAINERS:
        what, hint = f"{full} is what Relay tells the trainer, and no key of a run.yaml", "leave it out"
    else:
        what, hint = "", "`relay-agent example` prints every key"
    # A colon without a space makes one word of a key and its value, and braces make a key of a value.
    said = _KEY_LIKE.fullmatch(name) or (near and _WORD.fullmatch(name))
    what = what or (
        f"there is no key {name!a}"
        if said
        else f"what stands before the colon in line {line} is not a key of a run.yaml"
    )
    return RelayError("unknown_key", f"{path}: {what}", hint, exit_code=Exit.USAGE)


def all_of(troubles: list[RelayError]) -> RelayError:
    """Of several things that are wrong one line; who mends one should not find the next only then."""
    if len(troubles) == 1:
        return troubles[0]
    told = [f"{each.message} ({each.hint})" if each.hint else each.message for each in troubles[:TOLD]]
    more = [f"and {len(troubles) - TOLD} more"] if len(troubles) > TOLD else []
    return RelayError(troubles[0].code, "; ".join(told + more), exit_code=Exit.USAGE)


def _pairs(path: Path, data: bytes) -> list[tuple[int, object, object]]:
    """Line, key and value. No error repeats what stands there, which may be a secret."""
    import yaml  # only where there is a file

    try:
        for number, token in enumerate(yaml.scan(data, Loader=yaml.SafeLoader)):
            if isinstance(token, yaml.AliasToken | yaml.AnchorToken):
                line = token.start_mark.line + 1
                words = "to YAML a value that begins with & or * is an alias; put the value in quotes"
                raise _unusable(path, f"is not plain YAML in line {line}: {words}")
            if isinstance(token, yaml.TagToken | yaml.DirectiveToken):
                line = token.start_mark.line + 1
                words = "to YAML a value that begins with ! is a tag, and a line that begins with % a directive"
                raise _unusable(path, f"is not plain YAML in line {line}: {words}; put the value in quotes")
            if number > MAX_TOKENS:
                raise _unusable(path, "is far longer than a run.yaml, which has one `KEY: value` line for each setting")
        loader = yaml.SafeLoader(data)
        try:
            node = loader.get_single_node()
            if node is None:
                if data.strip() and b"#" not in data:  # a byte order mark, of a file that was cut off
                    raise _unusable(path, "holds no `KEY: value` line, though it is not empty")
                return []
            if isinstance(node, yaml.ScalarNode):
                raise _unusable(path, f"is not YAML in line {node.start_mark.line + 1}: {NO_COLON}")
            if not isinstance(node, yaml.MappingNode):
                raise _unusable(path, "should hold `KEY: value` lines, without a dash before them")
            return [
                (key.start_mark.line + 1, _read(path, loader, key), _read(path, loader, value))
                for key, value in node.value
            ]
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        begun, noticed = (mark.line if mark else None for mark in (error.context_mark, error.problem_mark))
        line, words = in_words(
            str(error.context or ""), str(error.problem or ""), begun, noticed, first_without_colon(data)
        )
        raise _unusable(path, f"is not YAML{f' in line {line}' if line else ''}: {words}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _unusable(path, f"is not YAML: {' '.join(str(error).split())[:200]}") from None


def _read(path: Path, loader: Any, node: Any) -> object:
    if node.tag in _FIGURES:  # what YAML makes of 0777, 1:30 and 1_000 is not what the next reader does
        return Figure(node.value)
    try:
        return loader.construct_object(node, deep=True)
    except Exception:  # noqa: BLE001 - a constructor raises what comes, such as for a date that is none
        line = node.start_mark.line + 1
        raise _unusable(
            path, f"has something in line {line} that looks like a date or a number and is none: put it in quotes"
        ) from None


def _unusable(path: Path, what: str) -> RelayError:
    return RelayError(
        "bad_config_file",
        f"{_printable(path)} {what}",
        f"{CONFIG_VARIABLE} names the file; `relay-agent example` prints one to begin with",
        exit_code=Exit.USAGE,
    )


def _printable(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 200 and text.isprintable() else f"{text[:200]!a}"
