"""How a value in run.yaml or the environment is read: each takes what stands there, and raises Bad at anything else."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from relay_agent.checkpoints.retention import Best
from relay_agent.fork_from import ForkFrom
from relay_agent.outcome.endings import CAN_BE_SET
from relay_agent.reading.patterns import MAX_PATTERNS, BadPattern, check
from relaytui.wire.figures import meant_as_number, plain_number
from relaytui.wire.ids import is_id
from relaytui.wire.text import sayable
from relaytui.wire.url import BadUrl, plain_url

SAVE_SIGNALS = ("USR1", "USR2", "HUP")
"""Those that a trainer can take for a wish; others mean something else to programs or to the system."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Bad(Exception):  # noqa: N818 - becomes a RelayError that says where
    """What a value should be."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What stands without quotes in a run.yaml and is a number to YAML, as it is written there."""

    text: str

    def __str__(self) -> str:
        return self.text


def a_text(value: object) -> str:
    if not isinstance(value, str):
        raise Bad("should be text; put it in quotes")
    if _CONTROL.search(value):
        raise Bad("holds a control character")
    return value


def a_word(value: object) -> str:
    """What names something: it is told to others, in JSON."""
    text = a_text(value).strip()
    if sayable(text) != text:
        raise Bad("holds a byte that is no UTF-8")
    return text


def an_id(value: object) -> str:
    text = a_word(value)
    if not is_id(text):
        raise Bad("should be 1 to 128 letters, digits, dots, dashes and underscores, a letter or digit first")
    return text


def a_secret(value: object) -> str:
    if not isinstance(value, str):
        raise Bad("should be text; put it in quotes")
    text = value.strip()  # a newline at the end of a file or of `$(cat …)` is nobody's intention
    if not text.isascii() or not text.isprintable() or " " in text:
        raise Bad("should be printable ASCII without spaces or line breaks inside")
    return text


def a_url(value: object) -> str:
    try:
        return plain_url(a_word(value))
    except BadUrl as error:
        raise Bad(str(error)) from None


def a_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in ("true", "yes", "on", "1"):
        return True
    if word in ("false", "no", "off", "0"):
        return False
    raise Bad("should be true or false")


def a_number(value: object, what: str = "a plain number of seconds, such as 600") -> float:
    if not isinstance(value, Figure | str):
        raise Bad("should be a number")
    text = str(value).strip()
    try:
        return plain_number(text)
    except ValueError:
        plain = "; write it in plain digits, without a leading 0, _, : or x" if meant_as_number(text) else ""
        raise Bad(f"should be {what}{plain}") from None


def seconds_from(least: float) -> Callable[[object], float]:
    def parse(value: object) -> float:
        number = a_number(value)
        if not least <= number <= 86_400:
            raise Bad(f"should be between {least:g} and 86400 seconds")
        return number

    return parse


def a_count(value: object) -> int:
    number = a_number(value, "a whole number above 0")
    if number != int(number) or not 1 <= number <= 2**53:
        raise Bad("should be a whole number above 0")
    return int(number)


def up_to_1000(value: object) -> int:
    number = a_number(value, "a whole number; 0 is none")
    if number != int(number) or not 0 <= number <= 1000:
        raise Bad("should be a whole number up to 1000; 0 is none")
    return int(number)


def some_endings(value: object) -> tuple[str, ...]:
    words = value if isinstance(value, list) else re.split(r"[\s,]+", a_text(value))
    found = tuple(a_word(word) for word in words if word)
    if any(name not in CAN_BE_SET for name in found):
        raise Bad(f"should be one or more of these endings: {', '.join(CAN_BE_SET)}")
    return found


def some_patterns(value: object) -> tuple[str, ...]:
    given = value if isinstance(value, list) else [line for line in a_text(value).splitlines() if line.strip()]
    if len(given) > MAX_PATTERNS:
        raise Bad(f"holds more than {MAX_PATTERNS} patterns")
    for number, pattern in enumerate(given, 1):
        if not isinstance(pattern, str):
            raise Bad("should be a list of regular expressions, each in single quotes")
        try:
            check(pattern)
        except BadPattern as bad:
            raise Bad(f"holds a pattern, number {number}, that {bad}") from None
    return tuple(given)


def a_path(value: object) -> Path:
    text = a_word(value)
    if "\n" in text or not text:
        raise Bad("should be a path")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise Bad("begins with ~ and the name of a user that does not exist here") from None


def a_kind(value: object) -> str:
    from relay_agent.checkpoints.adapters import BY_NAME

    text = a_word(value)
    words = ("auto", "none", *BY_NAME)
    if text not in words:
        raise Bad(f"should be {', '.join(words[:-1])} or {words[-1]}")
    return text


def a_best(value: object) -> Best:
    best = Best.parse(a_word(value))
    if best is None:
        raise Bad("should be a metric's name: eval_loss where the lowest is the best, -reward where the highest is")
    return best


def a_model(value: object) -> str:
    text = a_word(value)
    if text.startswith(("/", "~")):
        return str(a_path(text))
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w./-]+)?", text, re.ASCII):
        raise Bad("should be a folder's absolute path, or a model's name on the Hub, such as owner/name")
    return text


def a_fork(value: object) -> ForkFrom:
    fork = ForkFrom.parse(a_word(value))
    if fork is None:
        raise Bad("should be run, run@step or hf:owner/name@step-N")
    return fork


def a_path_below(value: object) -> Path:
    path = a_path(value)
    if ".." in path.parts:
        raise Bad("should be a folder below RELAY_OUTPUT_DIR, or an absolute path, without ..")
    return path


def one_of(*words: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        text = a_word(value)
        if text not in words:
            raise Bad(f"should be {' or '.join(words)}")
        return text

    return parse


def a_save_signal(value: object) -> signal.Signals:
    name = a_word(value).upper().removeprefix("SIG")
    if name not in SAVE_SIGNALS:
        raise Bad(f"should be {', '.join(SAVE_SIGNALS[:-1])} or {SAVE_SIGNALS[-1]}")
    return signal.Signals[f"SIG{name}"]


def some_globs(value: object) -> tuple[str, ...]:
    """() is none."""
    words = value if isinstance(value, list) else re.split(r"[\s,]+", a_text(value))
    found = tuple(a_word(word) for word in words if word)
    if len(found) > 100 or any(len(word) > 200 for word in found):
        raise Bad("should be up to 100 patterns such as *.json and configs/*.yaml")
    if excluding := [word for word in found if word.startswith("!")]:
        raise Bad(f"names what is sent, and leaves nothing out by {excluding[0]!a}")
    return tuple(map(_pattern, found))


def some_files(value: object) -> tuple[str, ...]:
    """() is all of them."""
    words = value if isinstance(value, list) else re.split(r"[\s,]+", a_text(value))
    found = tuple(a_word(word) for word in words if word)
    if found in ((), ("all",)):
        return ()
    if len(found) > 100 or any(len(word) > 200 or word in ("all", "!") for word in found):
        raise Bad("should be all, weights, or up to 100 patterns such as *.safetensors and !optimizer*")
    if "weights" in found and len(found) > 1:
        raise Bad("should be weights alone, or patterns")
    return tuple(word if (plain := _pattern(word)) in ("all", "weights") else plain for word in found)


def _pattern(word: str) -> str:
    """As paths are: with no `./` in it, which none of them has, nor an empty part."""
    mark = "!" if word.startswith("!") else ""
    *folders, last = word.removeprefix(mark).split("/")
    if (folders and not folders[0]) or ".." in (*folders, last):
        raise Bad(f"matches files by their paths in the folder, and none of these can be {word!a}")
    if not last:
        raise Bad(f"matches files, and {word!a} is a folder: with a * behind, it is what lies in that")
    return mark + "/".join([*(part for part in folders if part not in ("", ".")), last])
