"""What a pod may say at most: the one table of ranges, checked where a message is decoded.

Whatever is in range can be stored, sent on and shown; whatever is not gets a refusal that names its field. Ids and
numbers that count are in `ids`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

Time = Annotated[float, Meta(ge=-62_000_000_000, le=253_000_000_000)]
"""Seconds since 1970, within the years that a calendar of any time zone can show."""
ExitCode = Annotated[int, Meta(ge=-(2**31), le=2**32 - 1)]
"""Of a process on any system; negative where a signal ended it."""
Protocol = Annotated[int, Meta(ge=0, le=65_535)]
Devices = Annotated[int, Meta(ge=0, le=65_536)]

Text = Annotated[str, Meta(max_length=16_384)]
ShortText = Annotated[str, Meta(max_length=1_024)]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Ending = Annotated[str, Meta(pattern=r"^([a-z][a-z_]{0,63})?\Z")]
"""Name of how a trainer ended, such as `cuda_oom`; empty: nobody says."""
Token = Annotated[str, Meta(min_length=16, max_length=256)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Data = Annotated[dict[Name, ShortText], Meta(max_length=64)]

MAX_DATA = 4_096
"""Bytes of all keys and values of one event's data, as UTF-8, that are kept: hundreds of events are shown at once."""
MAX_LINES = 1_000
MAX_METRICS = 256
MAX_CHECKPOINTS = 1_000
"""Of a run's volume, in one report."""


def fitting(data: Mapping[str, str]) -> dict[str, str]:
    """The data as far as it fits into `MAX_DATA`; what does not is counted under `…`."""
    left, kept = MAX_DATA, dict[str, str]()
    for key, value in data.items():
        left -= len(key.encode("utf-8", "surrogatepass")) + len(value.encode("utf-8", "surrogatepass"))
        if left < 0:
            kept["…"] = f"{len(data) - len(kept)} left out"
            break
        kept[key] = value
    return kept
