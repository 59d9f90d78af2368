"""Metric values on the wire. JSON has no NaN or infinity, and a diverged loss is the one that must be shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

Number = float | Literal["nan", "inf", "-inf"]


def pack(value: float) -> Number:
    """A float as JSON can carry it: itself if finite, else its name."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"


def unpack(value: Number) -> float:
    return float(value)


def pack_all(values: Mapping[str, float]) -> dict[str, Number]:
    return {name: pack(value) for name, value in values.items()}
