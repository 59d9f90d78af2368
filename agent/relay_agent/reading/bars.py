"""Progress bars: tqdm's, rich's, Keras' and Ultralytics'. One line of a log may hold several, written over each other.

Most bars are of something else than steps: loading, tokenising, writing shards, evaluating. Those of a training have
no description, or one of `_MAIN`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from relay_agent.reading.sight import MAX_STEP, Epoch, Sight, named, number, pairs

MAX_BARS = 8
"""Bars of one line that are looked at, from its end."""

_UNIT = r"(?:it|steps?|batch(?:es)?|iters?|updates?)"
_RATE = rf"\s*(?:(?:[\d.]+|\?)\s*{_UNIT}/s|[\d.]+\s*s/{_UNIT})"
_COUNT = re.compile(
    r"[^|]{0,400}\|\s*(?P<n>\d{1,16})/(?P<total>\d{1,16}|\?)\s*\[[^\]<]{0,40}<[^\],]{0,40}"
    rf"(?:,(?P<rate>{_RATE}))?(?:,(?P<post>[^|]*?))?\](?=\s|\Z|[^\w,}}])"
)
"""From behind `20%|`."""
_OPEN = re.compile(
    rf"(?P<desc>[^\[\]|]{{0,80}}?)(?P<n>\d{{1,16}})it \[(?P<elapsed>[\d:]{{4,20}}),(?P<rate>{_RATE})"
    r"(?:,(?P<post>[^|]*?))?\]\s*\Z"
)
"""Of who does not know how much there is to do: `120it [00:10, 11.9it/s]`."""
_MAIN = re.compile(
    r"(?:epochs?\s*\d+(?:/\d+)?\s*[,|:]?\s*)?(?:(?:global |train(?:ing)? |optimization )?steps?|"
    r"train(?:ing)?(?: progress| loop| model)?|fine-?tun(?:e|ing)|iter(?:ation)?s?|it)\s*:?",
    re.IGNORECASE,
)
_EPOCH = re.compile(
    r"(?:train(?:ing)?\s*[|:,]?\s*)?\[?epoch\s*\[?(?P<number>\d{1,9})(?:\s*/\s*(?P<of>\d{1,9}))?\]?\s*[:,|]?\s*(?:\[?train(?:ing)?\]?:?)?",
    re.IGNORECASE,
)
_ROUND = re.compile(r"train epoch \[", re.IGNORECASE)
"""Of what one rollout collected."""
_OF_EPOCH = re.compile(r"train step of epoch (?P<number>\d{1,9})\s*:?", re.IGNORECASE)
_TUNE = re.compile(r"(?P<epoch>\d{1,9})\|(?P<step>\d{1,16})\|Loss:\s*(?P<loss>\S{1,32}?):?", re.IGNORECASE)

_RICH = re.compile(
    r"\s*Epoch (?P<number>\d{1,9})/(?P<of>-?\d{1,9})\s+[━╸╺╴╶─\s]*\s(?P<n>\d{1,16})/(?P<total>\d{1,16})\s+"
    r"[\d:\-]{4,20}\s+•\s+[\d:\-]{4,20}\s+[\d.]+it/s(?P<post>.*)"
)
_KERAS = re.compile(
    r"\s*(?P<n>\d{1,16})/(?P<total>\d{1,16}|Unknown)\s(?P<bar>\s*(?:[━╸╺╴╶─]+|\[[=>.]{3,60}\]|-))\s.{0,40}?"
    r"(?:\d(?:ms|us|s)/(?:step|epoch)|ETA:\s*[\d:]+s?)(?P<post>(?: - [\w/.]+: \S+)*)\s*\Z"
)
_EPOCH_LINE = re.compile(r"\s*Epoch (?P<number>\d{1,9})/(?P<of>\d{1,9})\s*\Z")

_ULTRA = re.compile(
    r"\s*(?P<n>\d{1,9})/(?P<of>\d{1,9})\s+[\d.]+[GMK]B?\s+(?P<columns>(?:[\d.]+|nan|inf)(?:\s+(?:[\d.]+|nan|inf)){1,12}):\s*"
    r"(?P<percent>\d{1,3})%(?:\s*[━╸╺╴╶─\s]+|\|[^|]{0,80}\|)\s*(?P<at>\d{1,9})/(?P<all>\d{1,9})\s"
)
_ULTRA_HEAD = re.compile(r"\s*Epoch\s+GPU_mem\s+(?P<columns>\w+(?:\s+\w+){1,12})\s*\Z")
_ULTRA_COLUMNS = {
    3: ("box_loss", "cls_loss", "dfl_loss"),
    4: ("box_loss", "seg_loss", "cls_loss", "dfl_loss"),
    1: ("loss",),
}
"""By how many losses there are, where the heading was not seen. Two more columns stand behind them."""


def tqdm(text: str) -> Sight | None:
    """The last bar of a training in the line."""
    before_cut = ""
    end = len(text)
    for _ in range(MAX_BARS):
        sign = text.rfind("%|", 0, end)
        if sign < 0:
            break
        end = start = sign
        while start > 0 and sign - start < 3 and text[start - 1].isdigit():
            start -= 1
        count = _COUNT.match(text, sign + 2)
        if count is None or start == sign:
            continue
        before_cut = text[:start]
        other = before_cut.rfind("%|")
        if other >= 0:  # another bar before it: whole, or cut off by this one
            whole = _COUNT.match(before_cut, other + 2)
            description = before_cut[whole.end() :] if whole else before_cut[: max(0, other - 3)].rstrip("0123456789 ")
        else:
            description = before_cut
        if (sight := _bar(description.strip(), count)) is not None:
            return sight
    if "it [" in text and (count := _OPEN.match(text)) is not None:
        return _bar(count["desc"].strip(), count)
    return None


def _bar(description: str, count: re.Match[str]) -> Sight | None:
    n = int(count["n"])
    all_of_it = count.groupdict().get("total") or "?"
    total = int(all_of_it) if all_of_it != "?" else None
    if n > MAX_STEP or (total is not None and not (0 < total <= MAX_STEP and n <= total)):
        return None
    metrics = named(pairs(count["post"] or ""))
    if not description:
        return Sight(n, total, metrics, bar=True)
    if count["rate"] is None and "loss" not in metrics:
        return None  # `examples/s`, `MB/s`
    if tune := _TUNE.fullmatch(description):
        try:
            loss = number(tune["loss"])
        except ValueError:
            return None
        return Sight(int(tune["step"]), None, {"loss": loss})
    if _MAIN.fullmatch(description):
        return Sight(n, total, metrics, bar=True)
    if total is None:
        return None
    if epoch := _OF_EPOCH.fullmatch(description):
        return Sight(n, total, metrics, Epoch(int(epoch["number"]), None, 0), bar=True)
    if _ROUND.match(description):
        return None
    if epoch := _EPOCH.fullmatch(description):
        of = int(epoch["of"]) if epoch["of"] else None
        return Sight(n, total, metrics, Epoch(int(epoch["number"]), of, 1 if of else None), bar=True)
    return None


def rich(text: str) -> Sight | None:
    """Lightning's: epochs are counted from 0, and the last one is shown."""
    count = _RICH.match(text)
    if count is None or not 0 < int(count["total"]) <= MAX_STEP:
        return None
    of = int(count["of"]) + 1
    epoch = Epoch(int(count["number"]), of if of > 0 else None, 0)
    return Sight(int(count["n"]), int(count["total"]), named(pairs(count["post"])), epoch, bar=True)


def keras(text: str) -> Sight | None:
    """Its epoch stands in a line of its own."""
    count = _KERAS.match(text)
    if count is None or count["total"] == "Unknown" or not 0 < int(count["total"]) <= MAX_STEP:
        return None
    return Sight(int(count["n"]), int(count["total"]), named(pairs(count["post"])), Epoch(None, None, 1), bar=True)


def epoch_line(text: str) -> tuple[int, int] | None:
    """`Epoch 1/2` alone: number, and how many."""
    line = _EPOCH_LINE.match(text)
    return (int(line["number"]), int(line["of"])) if line else None


def ultralytics_columns(text: str) -> tuple[str, ...] | None:
    """Names of the losses in a heading."""
    head = _ULTRA_HEAD.match(text)
    return tuple(head["columns"].split()) if head else None


def ultralytics(text: str, columns: Sequence[str] = ()) -> Sight | None:
    """An epoch that is done: its bar says what the losses were. The loss is their sum, as is what it trains on."""
    row = _ULTRA.match(text)
    if row is None or row["at"] != row["all"] or not 0 < int(row["n"]) <= int(row["of"]):
        return None
    values = row["columns"].split()
    losses = len(values) - 2
    names = columns or _ULTRA_COLUMNS.get(losses, ())
    metrics = {name: float(value) for name, value in zip(names, values, strict=False) if name.endswith("loss")}
    if metrics:
        metrics["loss"] = sum(metrics.values())
    return Sight(int(row["n"]), int(row["of"]), metrics, unit="epoch", bar=True)
