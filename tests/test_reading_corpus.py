"""Lines as the usual trainers print them, with what each says: every one of `tests/data/output/*.jsonl`.

A case is a `line` (or `bytes` in hex) with `step`, `total` and `metrics` (those that must be there; a loss only where
one is named), `within` (epoch, how many, the number of the first) or `unit`; or `nothing`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from relay_agent.output.lines import Lines
from relay_agent.reading.shapes import read

FOLDER = Path(__file__).parent / "data" / "output"
CASES = [
    (path.stem, number, json.loads(line))
    for path in sorted(FOLDER.glob("*.jsonl"))
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
]


def shown(case: dict[str, Any]) -> str:
    """As the reader gets it."""
    lines = Lines()
    data = bytes.fromhex(case["bytes"]) if "bytes" in case else case["line"].encode()
    lots = lines.feed(data + b"\n", 0.0)
    return [line for lot in lots if lot.whole for line in lot.lines][-1]


def same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9) or (math.isnan(one) and math.isnan(other))


@pytest.mark.parametrize("trainer", sorted({trainer for trainer, _, _ in CASES}))
def test_every_line_says_what_it_says(trainer: str) -> None:
    wrong = []
    for name, number, case in CASES:
        if name != trainer:
            continue
        sight = read(shown(case))
        where = f"{name}.jsonl:{number}: {case.get('line', case.get('bytes'))!r} -> {sight}"
        if case.get("nothing"):
            if sight is not None:
                wrong.append(where)
            continue
        expected = {key: float(value) for key, value in case["metrics"].items()}
        if sight is None or (
            (sight.step, sight.total, sight.unit) != (case["step"], case["total"], case.get("unit", "step"))
            or any(key not in sight.metrics or not same(sight.metrics[key], value) for key, value in expected.items())
            or ("loss" in sight.metrics and "loss" not in expected)
            or (list(sight.within) if sight.within else None) != case.get("within")
        ):
            wrong.append(where)
    assert not wrong, "\n".join(wrong)


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 300
    assert len({json.dumps(case, sort_keys=True) for _, _, case in CASES}) == len(CASES)
