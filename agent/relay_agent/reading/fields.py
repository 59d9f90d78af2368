"""Plain lines that name their step: `step 120/400 loss 2.3`, `iter 250: loss 3.45`, `[120/1000] loss: 0.35`."""

from __future__ import annotations

import re

from relay_agent.reading.sight import (
    MAX_STEP,
    NUMBER,
    PLAIN,
    PROSE,
    SPEAKERS,
    Epoch,
    Sight,
    begins_with_pair,
    evaluated,
    named,
    number,
    pairs,
    whole,
)

_WORD = r"(?:global[_ ]?step|train(?:ing)?[_ ]?step|steps?|iter(?:ation)?s?)"
_COUNT = r"\d{1,3}(?:,\d{3}){1,4}(?![\d,])|\d{1,16}"
_N = rf"(?P<step>{_COUNT})(?:\s{{0,8}}(?:/|of)\s{{0,8}}(?P<total>{_COUNT}))?"
_EPOCH = r"\[?epoch\s{0,4}[:=]?\s{0,4}\[?(?P<epoch>\d{1,9})(?:\s{0,4}/\s{0,4}(?P<of>\d{1,9}))?\]?(?P<part>\.\d{1,6})?"
_STEP = re.compile(rf"(?P<word>{_WORD})\s{{0,8}}[=:#]?\s{{0,8}}\[?\s{{0,8}}{_N}(?![\w.]*\w)\]?", re.IGNORECASE)
_LAST_STEP = re.compile(
    rf"(?P<pair>max_(?:steps?|iter(?:ation)?s?)\s?[=:]\s?(?:{_COUNT}))\s{{0,4}}(?P<sign>[,;|]?)\s{{1,4}}", re.IGNORECASE
)
_LAST_STEPS = ("max_steps", "max_step", "max_iters", "max_iterations")
"""Fields that are a total: unlike `total_steps`, which some count up, they can be nothing else."""
_GLUED = re.compile(rf"(?:(?<=[^\sA-Za-z_/\-])|(?<=[\])>:|][ ])){_STEP.pattern}", re.IGNORECASE)
"""What another writer left in the midst of somebody's line."""
_LED = re.compile(
    rf"{_EPOCH}\s{{0,4}}[\]:,|;\-–/]{{0,2}}\s{{0,4}}(?:micro_step=\d{{1,16}}/)?"
    rf"(?P<word>{_WORD}|batch)\s{{0,8}}[=:#]?\s{{0,8}}\[?\s{{0,8}}{_N}(?![\w.]*\w)\]?",
    re.IGNORECASE,
)
"""With the epoch before it: then step and total may count within that."""
_BRACKETS = re.compile(r"\[\s{0,8}(?P<step>\d{1,16})\s{0,8}/\s{0,8}(?P<total>\d{1,16})\s{0,8}\]")
_BOOST = re.compile(r"\[(?P<step>\d{1,16})\]\s{1,8}(?=[\w\-' ]{1,40}[:\-])")
_EPOCHS = re.compile(rf"{_EPOCH}(?!\.\d)\]?", re.IGNORECASE)
_BEFORE = re.compile(
    r"(?:^|[\]:,|)}]\s{0,8}|>>\s{0,8}|[\-–]\s{1,8}|\s{2,}|[^\x00-\x7f]\s{0,8}|\d\.?)(?=(?:global|train|step|iter))",
    re.IGNORECASE,
)
"""What may stand before the word in the midst of a line: the end of a prefix, or what another writer left of his."""
_EVALUATES = re.compile(
    r"(?<![\w./\-])(?:eval(?:uat(?:e|ed|ing|ion))?|validat(?:e|ed|ing|ion)|valid|val|test(?:ing)?)(?![\w./\-])",
    re.IGNORECASE,
)
_SEPARATORS = re.compile(r"[\s:,;|\-–>)\]]*")
_CELL = re.compile(
    rf"\s*(?P<name>[A-Za-z][\w /.%\-]{{0,60}}?)\s*(?:\([^()]{{1,24}}\)\s*)?[:=]\s*(?P<value>{NUMBER})\s*%?\s*\Z",
    re.IGNORECASE,
)
_ESTIMATED = re.compile(rf"[\s:,]{{0,4}}train loss {PLAIN},\s{{1,4}}val loss {PLAIN}\s*\Z", re.IGNORECASE)
"""nanoGPT's evaluation, of both its splits; its training prints `iter 250: loss 3.45`."""
_LAST = 4
"""Steps of one line that are looked at, from its end."""
_LOOSE = re.compile(rf"\s*[A-Za-z][\w/.\-]{{0,40}}\s+{PLAIN}(?![\w.:]|/\d)", re.IGNORECASE)


def at_start(text: str) -> Sight | None:
    """Of a line that begins with it, or with the last one there will be. Where several writers share a pipe, the last
    one that is whole."""
    if last := _LAST_STEP.match(text):
        text = f"{text[last.end() :]}{last['sign']} {last['pair']}"
    head = _STEP.match(text)
    if head is not None:
        return _last(text, head)
    if text[:1] in "Ee[" and (head := _LED.match(text)) is not None:
        within = None
        if head["word"].lower() == "batch" or head["of"]:
            within = Epoch(int(head["epoch"]), int(head["of"]) if head["of"] else None, 1)
        return _sight(head, text[head.end() :], within if head["total"] else None)
    return None


def inside(text: str) -> Sight | None:
    """Of a line that has it behind a prefix nobody knows."""
    quoted = PROSE.search(text)
    end = quoted.start() if quoted else len(text)
    if speaker := SPEAKERS.search(text):
        end = min(end, speaker.start())
    sights = []
    for before in _BEFORE.finditer(text, 0, end):
        head = _STEP.match(text, before.end(), end)
        if head is not None:
            sights.append(head)
    for head in reversed(sights[-_LAST:]):
        if not _EVALUATES.search(text, 0, head.start()) and (sight := _sight(head, text[head.end() : end])) is not None:
            return sight
    return None


def _last(text: str, first: re.Match[str]) -> Sight | None:
    heads = [first]
    if text.find(first["word"], first.end()) >= 0:
        quoted = PROSE.search(text, first.end())
        end = quoted.start() if quoted else len(text)
        heads += list(_GLUED.finditer(text, first.end(), end))[-_LAST:]
    for head in reversed(heads):
        if (sight := _sight(head, text[head.end() :])) is not None:
            return sight
    return None


def _sight(head: re.Match[str], rest: str, within: Epoch | None = None) -> Sight | None:
    step = number(head["step"])
    total = number(head["total"]) if head["total"] else None
    if step > MAX_STEP:
        return None
    if total is not None and not 0 < total <= MAX_STEP:
        total = None
    metrics = _metrics(rest)
    if metrics is None or not (metrics or total is not None):
        return None
    if total is None and "loss" in metrics and _ESTIMATED.match(rest):
        metrics = {"eval/train_loss": metrics.pop("loss"), **metrics}
    if within is not None and total is None:
        within = None
    if total is None and (name := next((name for name in _LAST_STEPS if name in metrics), None)):
        total = whole(metrics.pop(name), 1)
    return Sight(int(step), None if total is None else int(total), metrics, within)


def _metrics(rest: str) -> dict[str, float] | None:
    """The fields that follow at once; {} where nothing follows, None where it is something else than fields."""
    if quoted := PROSE.search(rest):
        rest = rest[: quoted.start()]
    separators = _SEPARATORS.match(rest)
    begin = separators.end() if separators else 0
    if begin >= len(rest.rstrip(" .…")):
        return {}
    if "|" in rest:
        return _cells(rest)
    if not (begins_with_pair(rest[begin:]) or _LOOSE.match(rest, begin)):
        return None
    return named(pairs(rest))


def _cells(rest: str) -> dict[str, float] | None:
    """Between pipes, where names have spaces: `| consumed samples:  1280 | lm loss: 6.1E+00 |`."""
    found: list[tuple[str, float]] = []
    first = True
    for cell in rest.split("|"):
        if not cell.strip(" .:,;-"):
            continue
        if match := _CELL.match(cell):
            found.append((match["name"].strip().replace(" ", "_"), number(match["value"])))
        else:
            fields = pairs(cell)
            if first and not (fields and begins_with_pair(cell.lstrip(" :,;-"))):
                return None
            found += fields
        first = False
    metrics = named(found)
    nan = metrics.get("number_of_nan_iterations")
    if nan and "loss" not in metrics:
        metrics["loss"] = float("nan")  # Megatron leaves it out
    return metrics


def brackets(text: str) -> Sight | None:
    """`[120/1000] loss: 0.35 | lr: 3e-4`, and xgboost's `[10]  train-logloss:0.41`."""
    head = _BRACKETS.match(text)
    if head is not None:
        sight = _sight(head, text[head.end() :])
        return sight if sight and "loss" in sight.metrics else None
    boost = _BOOST.match(text)
    if boost is None:
        return None
    metrics = named(pairs(text[boost.end() :]))
    if not any(name.startswith("train-") for name in metrics) and "loss" not in metrics:
        return None
    return Sight(int(boost["step"]), None, metrics) if int(boost["step"]) <= MAX_STEP else None


def epochs(text: str) -> Sight | None:
    """`Epoch 3/10 loss 0.35`: of who tells no steps, epochs are the progress."""
    head = _EPOCHS.match(text)
    if head is None or head["part"]:
        return None
    metrics = _metrics(text[head.end() :])
    if not metrics or "loss" not in metrics or evaluated(metrics):
        return None
    total = int(head["of"]) if head["of"] else None
    return Sight(int(head["epoch"]), total or None, metrics, unit="epoch")
