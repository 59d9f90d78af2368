"""What there is room for in the artifact store, and which unfinished uploads give way where there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relaytui.commander.model.artifacts import MAX_UNFINISHED, Upload, in_words
from relaytui.wire.errors import RelayError


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes. `free`: on the disk, less what it is to keep and what uploads have announced and not sent yet."""

    quota: int
    run_quota: int
    free: int


def here(room: Room, size: int) -> Room:
    """What is there already takes no room on the disk."""
    return Room(room.quota, room.run_quota, max(room.free, size))


def without(room: Room, upload: Upload) -> Room:
    """Once that is gone: with what is there of it, and what was still to come."""
    return Room(room.quota, room.run_quota, room.free + upload.size)


@dataclass(frozen=True, slots=True)
class Held:
    """What takes room: bytes of all runs, and of the one that asks, with those that uploads have announced; and how
    many uploads that one has on their way."""

    used: int
    used_by_run: int
    uploads: int


@dataclass(frozen=True, slots=True)
class Limit:
    """`over`: by how much it would be passed; at most 0 where there is room. `own`: only the run's own uploads count
    for it. `weight` of an upload: what it takes less once that is gone."""

    over: Callable[[Upload, Held, Room], int]
    refusal: Callable[[Upload, Held, Room], RelayError]
    own: bool = False
    weight: Callable[[Upload], int] = lambda upload: upload.size


def _quota_of_run(asked: Upload, held: Held, room: Room) -> RelayError:
    has = f"run {asked.run_id} has {in_words(held.used_by_run)} of {in_words(room.run_quota)} here"
    return _no_room("quota", f"{has}: no room for {in_words(asked.size)} more", "RELAY_ARTIFACT_RUN_QUOTA")


def _quota(asked: Upload, held: Held, room: Room) -> RelayError:
    has = f"the store holds {in_words(held.used)} of {in_words(room.quota)}"
    return _no_room("quota", f"{has}: no room for {in_words(asked.size)} more", "RELAY_ARTIFACT_QUOTA")


def _too_many(asked: Upload, held: Held, room: Room) -> RelayError:
    message = f"run {asked.run_id} has {MAX_UNFINISHED} uploads on their way"
    return RelayError("too_many", message, "finish one first, or give it up", status=507)


def disk_full(size: int, free: int) -> RelayError:
    message = f"the store's disk has {in_words(max(0, free))} to spare: no room for {in_words(size)}"
    return _no_room("store_full", message, "the room on its disk")


def _no_room(code: str, message: str, what: str) -> RelayError:
    """What to do is in the message itself, which is said where there is no place for a hint."""
    todo = f"delete some (`relay-tui artifacts delete`), or raise {what} at the commander"
    return RelayError(code, f"{message}; {todo}", status=507)


LIMITS = (
    Limit(lambda asked, held, room: held.used_by_run + asked.size - room.run_quota, _quota_of_run, own=True),
    Limit(lambda asked, held, room: held.uploads + 1 - MAX_UNFINISHED, _too_many, own=True, weight=lambda upload: 1),
    Limit(lambda asked, held, room: held.used + asked.size - room.quota, _quota),
    Limit(lambda asked, held, room: asked.size - room.free, lambda asked, held, room: disk_full(asked.size, room.free)),
)
"""The run's own first: what gives way for them helps with the others, too."""


def make_room(asked: Upload, held: Held, room: Room, unfinished: Sequence[Upload]) -> list[Upload]:
    """Which of `unfinished`, that nobody goes on with, give way to `asked`: the first ones, and no more than are
    needed. RelayError 507 where all of them would not do; then none does."""
    gone: dict[str, Upload] = {}
    for limit in LIMITS:
        mine = [one for one in gone.values() if one.run_id == asked.run_id or not limit.own]
        over = limit.over(asked, held, room) - sum(map(limit.weight, mine))
        for one in unfinished:
            if over <= 0:
                break
            helps = limit.weight(one) > 0 and (one.run_id == asked.run_id or not limit.own)
            if helps and one.upload not in gone:
                gone[one.upload] = one
                over -= limit.weight(one)
        if over > 0:
            raise limit.refusal(asked, held, room)
    return list(gone.values())
