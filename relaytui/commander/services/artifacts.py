"""The artifact store: what is asked for is refused before a byte is sent, and nothing is listed that is not whole.

In this order an upload becomes an artifact: all its bytes are hashed, its file gets its content's name, a transaction
that looks at the lease once more makes the row. Content and rows change under one lock, so that nothing is taken away
between being found and being counted on.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from contextlib import suppress
from typing import BinaryIO

from msgspec.structs import replace

from relaytui.commander.model.artifact_room import Room, here, without
from relaytui.commander.model.artifacts import Upload, as_told, in_words
from relaytui.commander.model.lease import LeaseState
from relaytui.commander.services.artifact_readings import GONE, Readings
from relaytui.commander.services.artifact_room import admit_in, drop_in, goes_on, idle
from relaytui.commander.services.artifact_rows import Rows, unknown_artifact
from relaytui.commander.services.board import Board
from relaytui.commander.services.leases import Leases
from relaytui.commander.services.orders import unknown_run
from relaytui.commander.services.uploads import (
    UNKNOWN_UPLOAD,
    Coming,
    UploadRefused,
    Uploads,
    lease_lost,
    not_holder,
    store_failed,
)
from relaytui.commander.settings import CommanderSettings
from relaytui.commander.store import artifacts as store
from relaytui.commander.store import attempts, runs
from relaytui.commander.store.content import Content, Sight
from relaytui.commander.store.reader import Reader
from relaytui.commander.store.writer import Tx, Writer
from relaytui.wire.artifacts import ArtifactKind, ArtifactRow, Began, BeginUpload, FinishUpload
from relaytui.wire.clock import Clock
from relaytui.wire.errors import RelayError
from relaytui.wire.proof import token_hash


class ArtifactStore:
    def __init__(
        self,
        settings: CommanderSettings,
        relay: Writer,
        reader: Reader,
        leases: Leases,
        board: Board,
        clock: Clock,
    ) -> None:
        self._relay = relay
        self._reader = reader
        self._leases = leases
        self._board = board
        self._clock = clock
        self.quota = settings.artifact_quota
        self.run_quota = settings.artifact_run_quota
        self._reserve = settings.artifact_reserve
        self._rows = Rows(clock, settings.artifact_keep_last_n)
        self.content = Content(settings.state)
        self.uploads = Uploads(self.content, leases, board, clock, self._reserve)
        self.readings = Readings(self.uploads, clock, self._found)
        self.placing = asyncio.Lock()

    def load_in(self, tx: Tx) -> None:
        for upload in store.uploads(tx):
            self.uploads.add(upload)

    def close(self) -> None:
        self.readings.close()
        self.uploads.close()

    # -- uploads -------------------------------------------------------------------------------------------------

    async def begin(self, ask: BeginUpload, operator: str | None) -> Began:
        """`operator`: who it is, where it is one; else the token in `ask` has to be the live holder's.

        What is here already is read again first, where that is some time ago. RelayError 404 (no such run), 403 and 409
        (not the live holder), 422 (what cannot be begun without a hash), 503 (`busy`: it is being read), 507 (`quota`,
        `store_full`, `too_many`).
        """
        hashed = b""
        if operator is None:
            if ask.token is None:
                raise RelayError("bad_field", "token is missing", "a pod shows the lease's token", status=422)
            hashed = token_hash(ask.token)
        uploads, content, readings = self.uploads, self.content, self.readings
        sha256, size = ask.sha256 or "", ask.size
        if not sha256:
            sha256, size = await self._relay.run(lambda tx: self._archive_in(tx, ask, operator, hashed))
        told = replace(ask, sha256=sha256, size=size)
        if await uploads.in_thread(lambda: content.has(sha256, size)) and await self._relay.run(
            lambda tx: self._known_in(tx, told, operator, hashed)
        ):
            await readings.see(sha256, size)
        async with self.placing:
            there = await uploads.in_thread(lambda: content.has(sha256, size))
            there = there and await readings.believed(sha256)
            asked = told if there else ask
            try:
                await uploads.in_thread(content.prepare)
                free = await uploads.in_thread(content.free)
                free -= self._reserve + sum(coming.left for coming in uploads.coming.values())
                room = Room(self.quota, self.run_quota, free)
                async with idle(uploads, asked, pod=operator is None) as others:
                    begun, gone, unused = await self._relay.run(
                        lambda tx: self._begin_in(tx, asked, operator, hashed, room, others, there=there)
                    )
                    await self._drop(gone)
            except OSError as error:
                raise store_failed(error) from None
            await self._collect(unused)
            if isinstance(begun, ArtifactRow):
                return Began(stored=True, artifact=begun)
            coming = uploads.add(begun)
        async with uploads.turn(coming):
            return Began(upload=begun.upload, offset=await self._offset(coming))

    def _archive_in(self, tx: Tx, ask: BeginUpload, operator: str | None, hashed: bytes) -> tuple[str, int]:
        """Hash and size of the archive that the run has of a checkpoint; an empty hash where it has none. RelayError as
        `begin`."""
        if ask.kind is not ArtifactKind.CHECKPOINT or ask.manifest_sha256 is None:
            hint = "only a checkpoint, which its manifest_sha256 tells from others, may say at its end what it is"
            raise RelayError("bad_field", "sha256 is missing", hint, status=422)
        if operator is None and runs.get(tx, ask.run_id) is not None:
            self._holder_in(tx, ask.run_id, ask.epoch, hashed)
        row = store.of_manifest(tx, ask.run_id, ask.kind, ask.manifest_sha256)
        return ("", ask.size) if row is None else (row.sha256, row.size)

    def _known_in(self, tx: Tx, ask: BeginUpload, operator: str | None, hashed: bytes) -> bool:
        """Whether its bytes, where they are here, need not be sent. A pod that knows a hash shows with it that it has
        the bytes of its own run, and of no other's. RelayError as `begin`."""
        if operator is None and runs.get(tx, ask.run_id) is not None:
            self._holder_in(tx, ask.run_id, ask.epoch, hashed)
        known = store.of_content(tx, ask.sha256 or "")
        own = operator is not None or any(row.run_id == ask.run_id for row in known)
        return own and not any(row.damaged for row in known)

    def _begin_in(
        self,
        tx: Tx,
        ask: BeginUpload,
        operator: str | None,
        hashed: bytes,
        room: Room,
        others: list[Coming],
        *,
        there: bool,
    ) -> tuple[ArtifactRow | Upload, list[str], list[str]]:
        """What there is of it; uploads that it took the place of; contents that no row has any more."""
        at, pod = self._clock.wall(), operator is None
        run = runs.get(tx, ask.run_id)
        if run is None:
            raise unknown_run(ask.run_id)
        by = self._holder_in(tx, ask.run_id, ask.epoch, hashed) if operator is None else operator
        upload = Upload(
            secrets.token_hex(16), ask.run_id, ask.kind, ask.name, ask.sha256 or "", ask.size, at, by, pod,
            ask.epoch if pod else run.epoch, ask.step, ask.manifest_sha256, ask.final,
        )  # fmt: skip
        gone = list[str]()
        begun = store.begun(tx, ask.run_id, ask.kind, ask.name, upload.sha256, pod)
        if there and self._known_in(tx, ask, operator, hashed):
            gone += [] if begun is None else [drop_in(tx, begun)]
            if store.same(tx, ask.run_id, ask.kind, ask.name, upload.sha256) is None:
                gone += admit_in(tx, upload, here(room, ask.size), others, gone)
            row, unused = self._rows.add_in(tx, upload, "its bytes were here already")
            return row, gone, unused
        if begun is not None:
            room, dropped = without(room, begun), drop_in(tx, begun)
            if goes_on(begun, upload, others):
                upload = replace(upload, upload=begun.upload)
            else:
                gone.append(dropped)
        if begun is None or begun.upload in gone or upload.size > begun.size:
            gone += admit_in(tx, upload, room, others, gone)
        return store.save_upload(tx, upload), gone, []

    async def offset(self, upload_id: str) -> int:
        """Up to where it came. RelayError 404, 409 where its lease is over."""
        coming = self.uploads.get(upload_id)
        async with self.uploads.turn(coming):
            return await self._offset(coming)

    async def _offset(self, coming: Coming) -> int:
        try:
            return await self.uploads.offset(coming)
        except OSError as error:
            raise store_failed(error) from None

    async def finish(self, upload_id: str, run_id: str | None = None, told: FinishUpload | None = None) -> ArtifactRow:
        """Once all bytes are there; where it was begun without their hash they are `told`. Asked again after its answer
        was lost, the same row; `run_id`: only of that run.

        UploadRefused `incomplete` (409), `wrong_hash` (422: the upload is gone then). RelayError as `begin`.
        """
        try:
            coming = self.uploads.get(upload_id)
            async with self.uploads.turn(coming):
                return await self._finish(coming, as_told(coming.upload, told))
        except OSError as error:
            raise store_failed(error) from None
        except RelayError as error:
            done = None
            if error.code == UNKNOWN_UPLOAD:  # it may have become an artifact, while this one waited for its turn
                done = await self._relay.run(lambda tx: store.of_upload(tx, upload_id))
            if done is None or run_id not in (None, done.run_id):
                raise
            return done

    async def _finish(self, coming: Coming, upload: Upload) -> ArtifactRow:
        part, in_thread = coming.part, self.uploads.in_thread
        at = await self.uploads.offset(coming)
        if at < upload.size:
            message = f"{at} of {upload.size} bytes are here"
            raise UploadRefused("incomplete", message, "send the rest first", 409, at)
        if upload.size == 0:
            await in_thread(lambda: part.write(b""))
        while await in_thread(part.hash_more):
            pass
        if at > upload.size or not hmac.compare_digest(part.digest(), upload.sha256):
            self.uploads.still(coming, upload)
            await self.drop(coming)
            hint = "did the file change meanwhile? Begin again"
            raise UploadRefused("wrong_hash", f"what came is not {upload.sha256[:16]}…", hint, 422, 0)
        async with self.placing:
            self.uploads.still(coming, upload)
            await in_thread(lambda: self.content.place(part, upload.sha256))
            try:
                row, unused = await self._relay.run(lambda tx: self._finish_in(tx, upload))
            except RelayError as error:
                if error.code == "lease_lost":
                    await self._collect([upload.sha256])
                raise
            await self._drop([upload.upload])
            await self.readings.came(upload.sha256)
            await self._collect(unused)
        return row

    def _finish_in(self, tx: Tx, upload: Upload) -> tuple[ArtifactRow, list[str]]:
        if upload.pod:
            self._holder_in(tx, upload.run_id, upload.epoch, None)
        self._rows.whole_in(tx, upload.sha256, "sent again, and whole")
        store.drop_upload(tx, upload.upload)
        return self._rows.add_in(tx, upload, in_words(upload.size))

    async def give_up(self, upload_id: str) -> None:
        coming = self.uploads.get(upload_id)
        async with self.uploads.turn(coming):
            await self.drop(coming)

    async def drop(self, coming: Coming) -> None:
        """An upload that nobody goes on with. Its lock is held."""
        await self._relay.run(lambda tx: store.drop_upload(tx, coming.upload.upload))
        await self._drop([coming.upload.upload])

    async def _drop(self, gone: list[str]) -> None:
        """Uploads whose rows are gone. A file that cannot be removed is nobody's from now on."""
        for upload_id in gone:
            coming = self.uploads.coming.pop(upload_id, None)
            if coming is not None:
                with suppress(OSError):
                    await self.uploads.in_thread(coming.part.remove)

    def _holder_in(self, tx: Tx, run_id: str, epoch: int, hashed: bytes | None) -> str:
        """The worker that holds the live lease; RelayError 409, or 403 where the token is another."""
        run, lease, attempt = runs.get(tx, run_id), runs.get_lease(tx, run_id), attempts.get(tx, run_id, epoch)
        if attempt is not None and hashed is not None and not hmac.compare_digest(attempt.token_hash, hashed):
            raise not_holder()
        live = run is not None and lease is not None and run.epoch == epoch == lease.epoch
        if not live or lease is None or lease.state is not LeaseState.HELD or self._leases.has_run_out(lease):
            raise lease_lost(run_id, epoch)
        return lease.worker

    # -- what is stored ------------------------------------------------------------------------------------------

    async def rows(self, run_id: str | None) -> list[ArtifactRow]:
        """Oldest first, the newest 5,000."""
        return (await self._reader.artifacts(run_id))[::-1]

    async def used(self) -> int:
        """Bytes of all runs, content that is shared counted once, and those that uploads have announced."""
        return await self._reader.artifact_bytes() + sum(one.upload.size for one in self.uploads.coming.values())

    async def row(self, artifact: int) -> ArtifactRow:
        """RelayError 404."""
        row = await self._relay.run(lambda tx: store.get(tx, artifact))
        if row is None:
            raise unknown_artifact(artifact)
        return row

    async def open(self, row: ArtifactRow) -> BinaryIO:
        """Its bytes; what is deleted meanwhile can still be read to its end. RelayError 409 `damaged`."""
        if not row.damaged:
            file = await self._open(row)
            if file is None and not await self.is_lost(row.sha256, row.size):
                file = await self._open(row)
            if file is not None:
                return file
        where = self.content.path(row.sha256)
        hint = f"what is left of it, if anything, is {where} where the commander runs; upload it again to mend it"
        message = f"artifact {row.id} ({row.name}) is damaged: {row.damaged or GONE}"
        raise RelayError("damaged", message, hint, status=409)

    async def _open(self, row: ArtifactRow) -> BinaryIO | None:
        try:
            return await self.uploads.in_thread(lambda: self.content.open(row.sha256, row.size))
        except OSError as error:
            raise store_failed(error) from None

    async def is_lost(self, sha256: str, size: int) -> bool:
        """Whether what somebody did not find is not there: its rows say so from now on. It may have come again."""
        async with self.placing:
            if await self.uploads.in_thread(lambda: self.content.has(sha256, size)):
                return False
            await self.damaged(sha256, GONE)
        return True

    async def delete(self, artifact: int, by: str, why: str) -> ArtifactRow:
        """A checkpoint's manifest goes with it. RelayError 404."""

        async with self.placing:
            row, unused = await self._relay.run(lambda tx: self._rows.delete_in(tx, artifact, by, why))
            await self._collect(unused)
        return row

    async def damaged(self, sha256: str, why: str) -> None:
        """All rows of that content say so from now on, and the history of their runs does."""
        await self._relay.run(lambda tx: self._rows.damaged_in(tx, sha256, why))

    async def _found(self, sha256: str, wrong: str, seen: Sight | None) -> bool:
        """The file `seen` was read where it lies. False where another is there by now: of that nothing is known."""
        async with self.placing:
            if await self.uploads.in_thread(lambda: self.content.sight(sha256)) != seen:
                return False
            if wrong:
                await self.damaged(sha256, wrong)
            else:
                await self._relay.run(lambda tx: self._rows.whole_in(tx, sha256, "read again, and whole"))
        return True

    async def _collect(self, contents: list[str]) -> None:
        """Those that no row has. `placing` is held."""
        for sha256 in dict.fromkeys(contents):
            if not await self._relay.run(lambda tx, name=sha256: store.of_content(tx, name)):  # type: ignore[misc]
                await self.uploads.in_thread(lambda name=sha256: self.content.remove(name))  # type: ignore[misc]

    async def collect(self, contents: list[str]) -> None:
        async with self.placing:
            await self._collect(contents)
