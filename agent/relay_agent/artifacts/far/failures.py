"""What went wrong at the artifact store: for good, for now, or nobody knows."""

from __future__ import annotations

import errno
from typing import Any

from relay_agent.artifacts.jobs import STORE
from relay_agent.checkpoints.tree import Torn, Unreadable
from relay_agent.sending import trouble
from relay_agent.sending.protocol import Failed, Kind
from relay_agent.sending.trouble import Trouble
from relaytui.archive.errors import BadArchive, SourceChanged, Unpackable
from relaytui.wire.errors import RelayError
from relaytui.wire.text import clean

_BY_CODE: dict[str, tuple[Kind, float | None]] = {
    "busy": ("transient", None),
    "stalled": ("transient", None),
    "store_full": ("transient", 60.0),  # somebody may make room, and files of others are given up
    "store_failed": ("transient", None),
    "incomplete": ("transient", None),
    "unknown_upload": ("transient", None),
    "wrong_offset": ("transient", None),
    "wrong_hash": ("unknown", None),
}
"""Errors of the commander's that may go away by themselves; any other of its own words is for good."""
_NO_ROUTE = ("not_found", "http_404", "http_405", "method_not_allowed")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class StoreRefused(Trouble):
    """An answer that is none of what was hoped for. `offset`: up to where the upload is there, where it says so."""

    offset: int | None = None


def refused(status: int, code: str, words: str, wait: float | None = None) -> StoreRefused:
    """`code`: the commander's own, or empty where the answer is not one of its; `words`: with what it says to do."""
    words = clean(words, 300)
    if (status in (404, 405) and code in ("", *_NO_ROUTE)) or code == "forbidden":  # to a pod, of any route it has not
        return StoreRefused("no_store", f"this commander has no artifact store (it answers {status})")
    if code in _BY_CODE:
        kind, least = _BY_CODE[code]
        return StoreRefused(code, words, kind, wait or least)
    if status == 429 or (status >= 500 and status != 507):
        return StoreRefused(code or "unavailable", f"the commander has trouble ({status}: {words})", "transient", wait)
    return StoreRefused(code or "refused", words or f"the commander answers {status}")


def told(error: BaseException, job: Any) -> Failed:
    if isinstance(error, BadArchive):
        return Failed("not_whole", error.message, "permanent")
    if isinstance(error, Unpackable):
        words = f"{error.message}; it stays whole on the volume, and docs/artifacts.md says what {STORE} takes"
        return Failed(error.code, words, "permanent")
    if isinstance(error, SourceChanged):
        return Failed("changed" if error.code == "source_changed" else "damaged", error.message, "permanent")
    if isinstance(error, Unreadable):
        return Failed("volume", error.reason, "transient")
    if isinstance(error, Torn):
        return Failed("damaged", error.reason, "permanent")
    if isinstance(error, RelayError):
        return Failed(error.code, error.message, "transient" if error.code in ("disk", "unavailable") else "permanent")
    if isinstance(error, OSError):
        room = error.errno in _NO_ROOM
        return Failed("no_room" if room else "unreachable", clean(error.strerror or str(error), 200), "transient")
    return trouble.told(error)
