"""Admission to the artifact store: whether there is room for what is begun, and what gives way where there is none.

An upload that broke off is kept for a day, so that whoever comes next goes on with it. It costs nobody else anything:
where room is wanted, those of pods that lost their lease since give way, of whatever run, and after them what the very
pod that asks left behind, as it sends one thing at a time. What an operator uploads never does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from relaytui.commander.model.artifact_room import Held, Room, make_room
from relaytui.commander.model.artifacts import MAX_ROWS, Upload
from relaytui.commander.services.uploads import Coming, Uploads
from relaytui.commander.store import artifacts as store
from relaytui.commander.store.writer import Tx
from relaytui.wire.artifacts import BeginUpload
from relaytui.wire.errors import RelayError


@asynccontextmanager
async def idle(uploads: Uploads, ask: BeginUpload, *, pod: bool) -> AsyncIterator[list[Coming]]:
    """What may give way to it, in that order, and what it may go on with: nobody has it in hand, nor gets it before the
    end of this. OSError: how far that came cannot be seen."""

    def stale(upload: Upload) -> bool:
        return upload.pod and not uploads.is_live(upload)

    def left_behind(upload: Upload) -> bool:
        return pod and upload.pod and (upload.run_id, upload.epoch) == (ask.run_id, ask.epoch)

    def same(upload: Upload) -> bool:
        of = upload.run_id, upload.kind, upload.name, upload.sha256, upload.pod
        return of == (ask.run_id, ask.kind, ask.name, ask.sha256 or "", pod)

    async with uploads.kept_from_all(lambda each: stale(each) or left_behind(each) or same(each)) as found:
        for coming in found:
            if same(coming.upload):
                await uploads.in_thread(coming.part.look)
        yield sorted(found, key=lambda coming: (not stale(coming.upload), coming.upload.begun_at))


def goes_on(begun: Upload, asked: Upload, idle: list[Coming]) -> bool:
    """Whether it is `begun` that goes on; else it begins anew. RelayError 422: one hash, and its holder says two sizes.

    Nothing that an earlier lease said of it is in the way of this one.
    """
    if not begun.sha256 and begun.manifest_sha256 != asked.manifest_sha256:
        return False  # of another checkpoint, which had that name before
    if begun.size == asked.size:
        return True
    if not begun.sha256:
        return any(one.upload.upload == begun.upload and one.part.size <= asked.size for one in idle)
    if begun.pod and begun.epoch != asked.epoch:
        return False
    raise RelayError("bad_field", f"size: begun with {begun.size} bytes", "one sha256, one size", status=422)


def admit_in(tx: Tx, asked: Upload, room: Room, idle: list[Coming], gone: Collection[str]) -> list[str]:
    """Uploads that were dropped for it, of those that are `idle` and not `gone` yet. RelayError 507 where there is no
    room for it."""
    run_id = asked.run_id
    if store.count(tx, run_id) >= MAX_ROWS:
        message = f"run {run_id} has {MAX_ROWS} artifacts here"
        raise RelayError("too_many", message, "delete some: `relay-tui artifacts delete`", status=507)
    held = Held(store.used(tx), store.used(tx, run_id), len(store.uploads_of(tx, run_id)))
    others = [coming.upload for coming in idle if coming.upload.pod]
    unfinished = [one for one in others if one.upload not in (asked.upload, *gone)]
    return [drop_in(tx, one) for one in make_room(asked, held, room, unfinished)]


def drop_in(tx: Tx, upload: Upload) -> str:
    """Its id: its file is to go once this is committed."""
    store.drop_upload(tx, upload.upload)
    return upload.upload
