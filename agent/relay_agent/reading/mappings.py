"""Metrics as a dict or an object: `{'loss': '2.345', 'epoch': '0.02'}`, `{"step": 121, "loss": NaN}`."""

from __future__ import annotations

import re
from typing import NamedTuple

from relay_agent.reading.sight import MAX_METRICS, NUMBER, PLAIN, Sight, evaluated, is_evaluated, named, number, whole

MAX_STARTS = 8
"""Braces of one line that are looked at."""
MAX_DEPTH = 3
LONG = 80
"""Characters from which on a text is a sample, and whatever stands beside it tells of that."""

_STEPS = (
    "step",
    "global_step",
    "current_steps",
    "train/step",
    "train/global_step",
    "training/global_step",
    "iteration",
    "iter",
)
_TOTALS = ("total", "max_steps", "total_steps", "max_step", "num_steps")
_SAMPLES = frozenset((
    "prompt", "prompts", "response", "responses", "completion", "text", "content", "messages", "input", "inputs",
    "question", "answer", "instruction", "sample", "output", "role", "label", "query",
))  # fmt: skip
"""Keys of what is trained on."""
_NESTED = frozenset(("metrics", "train", "logs", "log", "scalars", "data", "values"))
"""Objects within, whose names need none before them."""

_START = re.compile(r"\{\s*['\"]")
_ITEM = re.compile(
    r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\s*:\s*"""
    rf"""(?:(?P<number>{PLAIN})(?=\s*[,}}])|(?:np\.|numpy\.)?(?:float|int)\d\d\((?P<wrapped>{PLAIN})\)|tensor\((?P<tensor>{PLAIN})[^()]*\)"""
    r"""|'(?P<single>(?:[^'\\]|\\.)*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?:true|false|null|None|True|False)\b"""
    r"""|(?P<opens>[\[({]))\s*""",
    re.IGNORECASE,
)
_NEXT = re.compile(r"\s*([,}])")
_QUOTED = re.compile(NUMBER, re.IGNORECASE)
_INNER = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[\[\](){}]|[^\[\](){}'\"]+")
_BEFORE = re.compile(
    r"(?:[^\w{}'\"]{0,8}"
    r"(?P<word>(?:global|train|training)?[_ ]?(?:step|iter|iteration)|rollout|perf|eval|train|training|metrics|logs?)"
    r"\s{0,8}(?P<n>\d{1,16})?\s{0,8}[:=|\-]{0,2}\s{0,8})?\Z",
    re.IGNORECASE,
)
_BAR_BEFORE = re.compile(r"(?:it/s|s/it|\?)\S{0,200}\]\s*\Z")
_AFTER = re.compile(r"\s*(?:\Z|\{|\d{1,3}%\|)")


class _Mapping(NamedTuple):
    numbers: dict[str, float]
    texts: bool
    """Some values are words."""
    sample: bool
    end: int


def read(text: str) -> Sight | None:
    """The last one of a line that is whole: several ranks may write into one pipe."""
    found: Sight | None = None
    begun = False  # what stands before was cut off by another writer
    end = 0
    for count, start in enumerate(_START.finditer(text)):
        if count >= MAX_STARTS:
            break
        if start.start() < end:
            continue
        mapping = _parse(text, start.start() + 1)
        if mapping is None:
            first = _ITEM.match(text, start.start() + 1)
            counts = first is not None and bool(
                first["number"] or _QUOTED.fullmatch(first["single"] or first["double"] or "")
            )
            begun = begun or (counts and _BEFORE.match(text, 0, start.start()) is not None)
            continue
        before = text[end : start.start()]
        head = _BEFORE.match(before)
        end = mapping.end
        if head is None and not begun and not _BAR_BEFORE.search(before):
            continue
        if not _AFTER.match(text, end):
            continue
        sight = _understand(mapping, (head["word"] or "").lower() if head else "", head["n"] if head else None)
        found = sight or found
    return found


def _understand(mapping: _Mapping, word: str, counted: str | None) -> Sight | None:
    numbers = mapping.numbers
    if mapping.sample or "train_runtime" in numbers or "eval" in word:
        return None  # a sample; the means of a whole training
    steps = [whole(numbers.pop(key)) for key in _STEPS if key in numbers]
    totals = [whole(numbers.pop(key), 1) for key in _TOTALS if key in numbers]
    step = next((step for step in steps if step is not None), None)
    total = next((total for total in totals if total is not None), None)
    counts = word.endswith(("step", "iter", "iteration"))
    if counted and counts:
        step = whole(float(counted))
    if steps and step is None:
        return None
    metrics = named(numbers.items())
    if step is not None:
        return Sight(step, total, metrics) if metrics or total else None
    if not metrics or evaluated(metrics):
        return None
    if counted and not counts:
        return Sight(None, None, metrics)
    if (
        mapping.texts
        or "epoch" not in metrics
        or not any(name in metrics for name in ("loss", "reward", "lr", "grad_norm"))
    ):
        return None
    return Sight(None, None, metrics, awaits=True)


def evaluation(text: str) -> dict[str, float] | None:
    """Metrics of an evaluation, where the whole line is such a mapping."""
    start = _START.search(text)
    if start is None or not (head := _BEFORE.match(text[: start.start()])):
        return None
    mapping = _parse(text, start.start() + 1)
    if mapping is None or mapping.sample or mapping.texts or not _AFTER.match(text, mapping.end):
        return None
    metrics = named((name, value) for name, value in mapping.numbers.items() if name not in _STEPS)
    if "eval" in (head["word"] or "").lower():
        return {name if is_evaluated(name) else f"eval/{name}": value for name, value in metrics.items()}
    return metrics if evaluated(metrics) else None


def _parse(text: str, at: int, depth: int = 1) -> _Mapping | None:
    """From behind the brace that opens it. None where it is no mapping to its end."""
    numbers: dict[str, float] = {}
    texts = sample = False
    while True:
        item = _ITEM.match(text, at)
        if item is None:
            return None
        key = item[1] if item[1] is not None else item[2]
        at = item.end()
        value = item["number"] or item["wrapped"] or item["tensor"]
        words = item["single"] if item["single"] is not None else item["double"]
        if value is not None:
            numbers.setdefault(key, number(value))
        elif words is not None:
            if _QUOTED.fullmatch(words):
                numbers.setdefault(key, number(words))
            else:
                texts = True
                sample = sample or len(words) > LONG or key in _SAMPLES
        elif item["opens"] == "{" and depth < MAX_DEPTH and _START.match(text, at - 1):
            inner = _parse(text, at, depth + 1)
            if inner is None:
                return None
            at = inner.end
            texts, sample = texts or inner.texts, sample or inner.sample or key in _SAMPLES
            for name, each in inner.numbers.items():
                numbers.setdefault(name if key in _NESTED else f"{key}/{name}", each)
        elif item["opens"]:
            closed = _skip(text, at)
            if closed is None:
                return None
            texts = True
            sample = sample or key in _SAMPLES
            at = closed
        if len(numbers) > 4 * MAX_METRICS:
            return None
        then = _NEXT.match(text, at)
        if then is None:
            return None
        at = then.end()
        if then[1] == "}":
            return _Mapping(numbers, texts, sample, at)


def _skip(text: str, at: int) -> int | None:
    """Behind the bracket that closes the one before `at`."""
    depth = 1
    while depth:
        token = _INNER.match(text, at)
        if token is None:
            return None
        at = token.end()
        depth += (token[0] in "[({") - (token[0] in "])}") if len(token[0]) == 1 else 0
    return at
