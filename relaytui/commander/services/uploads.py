"""Uploads on their way: chunks are written, hashed and made durable in threads, a few at a time whoever sends how many.

How far an upload is its file alone says, and others hear of it only once that is on the disk for good. So it goes on
from there whatever was cut off: a body, a connection, the commander.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypeVar

from msgspec.structs import replace

from relaytui.commander.model.artifact_room import disk_full
from relaytui.commander.model.artifacts import Upload
from relaytui.commander.model.lease import Lease, LeaseState
from relaytui.commander.services.board import Board
from relaytui.commander.services.leases import Leases
from relaytui.commander.store.content import FULL, Content, Part
from relaytui.wire.clock import Clock
from relaytui.wire.errors import Exit, RelayError

T = TypeVar("T")

THREADS = 2
AT_ONCE = 8
"""Chunks that are read from their sockets at a time: more of them wait where they are, on the pods."""
PIECE = 1 << 20
"""Bytes given to a thread at a stretch."""
IDLE_WITHIN = 15.0
"""Seconds from one byte of a chunk to the next."""
CHUNK_WITHIN = 120.0
"""Seconds that a chunk may take: what came by then is kept, and others have their turn."""
TURN_WITHIN = 20.0
"""Seconds that a chunk waits for another one of its upload, or for one of the places."""

UNKNOWN_UPLOAD = "unknown_upload"


class Body(Protocol):
    """The bytes of a request, as aiohttp gives them."""

    async def readany(self) -> bytes:
        """What is there; b"" at the end."""
        ...


class UploadRefused(RelayError):  # noqa: N818 - what it is
    """`offset`: up to where the upload's bytes are on the disk."""

    def __init__(self, code: str, message: str, hint: str, status: int, offset: int) -> None:
        super().__init__(code, message, hint, status=status)
        self.offset = offset


class Coming:
    """One upload on its way. Who holds `lock` is alone with its file."""

    def __init__(self, upload: Upload, part: Part) -> None:
        self.upload = upload
        self.part = part
        self.lock = asyncio.Lock()
        self.users = 0
        """Who has it in hand, or waits for it."""
        self.touched = upload.begun_at

    @property
    def left(self) -> int:
        """Bytes that are still to come, as far as is known."""
        return self.upload.size - max(0, self.part.size)


class Uploads:
    """All of them, by id. Rows in the database follow; what is here is what was committed."""

    def __init__(self, content: Content, leases: Leases, board: Board, clock: Clock, reserve: int) -> None:
        self.content = content
        self._leases = leases
        self._board = board
        self._clock = clock
        self._reserve = reserve
        self._threads = ThreadPoolExecutor(THREADS, "relay-artifacts")
        self._places = asyncio.Semaphore(AT_ONCE)
        self.coming: dict[str, Coming] = {}

    def add(self, upload: Upload) -> Coming:
        """As it was begun, or begun again."""
        known = self.coming.get(upload.upload)
        if known is None:
            known = self.coming[upload.upload] = Coming(upload, self.content.part(upload.upload))
        known.upload = upload
        return known

    def get(self, upload: str) -> Coming:
        known = self.coming.get(upload)
        if known is None:
            raise unknown_upload()
        return known

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Its result. It goes on where who waits is cancelled, and is waited for then: its file is its own."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    # -- who may -------------------------------------------------------------------------------------------------

    def live(self, upload: Upload) -> None:
        """RelayError 409 where a pod's upload is of a lease that is not the live one (any more)."""
        if upload.pod:
            self._held(upload.run_id, upload.epoch)

    def still(self, coming: Coming, upload: Upload) -> None:
        """RelayError 409 where the lease that `upload` was begun or gone on with in is over, and whoever holds the run
        now may go on with it; 404 where it is gone."""
        self.live(upload)
        if self.coming.get(upload.upload) is not coming:
            raise unknown_upload()

    def is_live(self, upload: Upload) -> bool:
        with suppress(RelayError):
            self.live(upload)
            return True
        return False

    def must_hold(self, run_id: str, epoch: int, hashed: bytes) -> Lease:
        """The lease; RelayError 403 or 409 where that token is not the one of the live holder."""
        lease = self._held(run_id, epoch)
        if not hmac.compare_digest(lease.token_hash, hashed):
            raise not_holder()
        return lease

    def must_be_of(self, upload: str, run_id: str | None, epoch: int) -> None:
        """RelayError 404 where there is such an upload, and another's: the holder of that lease did not begin it."""
        known = self.coming.get(upload)
        if known is not None and (not known.upload.pod or (known.upload.run_id, known.upload.epoch) != (run_id, epoch)):
            raise unknown_upload()

    def _held(self, run_id: str, epoch: int) -> Lease:
        view = self._board.runs.get(run_id)
        if view is not None and view.lease is not None and view.run.epoch == epoch == view.lease.epoch:
            lease = replace(view.lease, expires=view.expires)
            if lease.state is LeaseState.HELD and not self._leases.has_run_out(lease):
                return lease
        raise lease_lost(run_id, epoch)

    # -- bytes ---------------------------------------------------------------------------------------------------

    async def offset(self, coming: Coming) -> int:
        """Up to where it is on the disk for good."""
        found = await self.in_thread(coming.part.look)
        coming.touched = self._clock.wall()
        return found

    async def receive(self, upload_id: str, offset: int, length: int, body: Body) -> int:
        """Takes in a chunk of `length` bytes that begins at `offset`; the offset after it, durable.

        UploadRefused with the offset that holds: `wrong_offset` and `busy` (409), `too_long` (413), `stalled` (408),
        `store_full` (507), `store_failed` (503). RelayError `lease_lost` (409). What came before is kept.
        """
        coming = self.get(upload_id)
        upload = coming.upload
        self.live(upload)
        async with self.turn(coming), self._place(coming):
            at = await self.offset(coming)
            size = upload.size
            if offset != at:
                raise UploadRefused("wrong_offset", f"the upload is at {at}, not {offset}", "go on there", 409, at)
            if offset + length > size:
                message = f"{offset} and {length} bytes are more than the {size} that were announced"
                raise UploadRefused("too_long", message, "send no more than that", 413, at)
            spare = await self.in_thread(self.content.free) - self._reserve
            if length > spare:
                full = disk_full(length, spare)
                raise UploadRefused(full.code, full.message, full.hint, 507, at)
            try:
                await self._take(coming, upload, length, body)
            except OSError as error:
                raise await self._of_disk(coming, error) from None
            finally:
                coming.touched = self._clock.wall()
            at = await self._durable(coming)
            self.still(coming, upload)
            return at

    async def _take(self, coming: Coming, upload: Upload, length: int, body: Body) -> None:
        """One piece is written while the next one comes in. What came is written, whatever ended it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + CHUNK_WITHIN
        left, piece, gathered = length, list[bytes](), 0
        ended: Exception | None = None
        writing: asyncio.Future[None] | None = None
        try:
            while left > 0 and ended is None:
                try:
                    async with asyncio.timeout(min(IDLE_WITHIN, max(0.0, until - loop.time()))):
                        data = (await body.readany())[:left]
                except Exception as error:  # noqa: BLE001 - silence, or that it was cut off in whatever way
                    ended = error
                else:
                    ended = None if data else EOFError()
                    piece.append(data)
                    left, gathered = left - len(data), gathered + len(data)
                if gathered < PIECE and left > 0 and ended is None:
                    continue
                if writing is not None:
                    await asyncio.shield(writing)
                self.still(coming, upload)
                whole, piece, gathered = b"".join(piece), [], 0
                writing = loop.run_in_executor(self._threads, coming.part.write, whole)
        finally:
            if writing is not None:
                await asyncio.wait([writing])
        if writing is not None:
            writing.result()
        if ended is not None:  # where the connection is gone, nobody hears it
            at = await self._durable(coming)
            self.still(coming, upload)
            hint = "go on from there, in smaller chunks if it is slow"
            raise UploadRefused("stalled", f"{left} bytes of the chunk did not come", hint, 408, at)

    async def _durable(self, coming: Coming) -> int:
        try:
            return await self.offset(coming)
        except OSError as error:
            raise await self._of_disk(coming, error) from None

    async def _of_disk(self, coming: Coming, error: OSError) -> UploadRefused:
        at = 0
        with suppress(OSError):
            at = await self.offset(coming)
        if error.errno in FULL:
            full = disk_full(coming.upload.size - at, 0)
            return UploadRefused(full.code, full.message, full.hint, 507, at)
        refused = store_failed(error)
        return UploadRefused(refused.code, refused.message, refused.hint, refused.status, at)

    @asynccontextmanager
    async def turn(self, coming: Coming) -> AsyncIterator[None]:
        """Alone with the upload's file. RelayError 409 `busy` where another has it for long, 409 and 404 as `still` of
        the one that it was when the turn was asked for."""
        upload = coming.upload
        coming.users += 1
        try:
            try:
                async with asyncio.timeout(TURN_WITHIN):
                    await coming.lock.acquire()
            except TimeoutError:
                raise self._busy(coming, "another chunk of this upload is on its way") from None
            try:
                self.still(coming, upload)
                yield
            finally:
                coming.lock.release()
        finally:
            coming.users -= 1

    @asynccontextmanager
    async def kept_from_all(self, which: Callable[[Upload], bool]) -> AsyncIterator[list[Coming]]:
        """Those of them that nobody has in hand, or waits for. Until the end of this others wait for them."""
        found = [
            one for one in self.coming.values() if not one.users and not one.lock.locked() and which(one.upload)
        ]  # fmt: skip
        for coming in found:
            await coming.lock.acquire()  # at once
        try:
            yield found
        finally:
            for coming in found:
                coming.lock.release()

    @asynccontextmanager
    async def _place(self, coming: Coming) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(TURN_WITHIN):
                await self._places.acquire()
        except TimeoutError:
            raise self._busy(coming, "the store takes in others' chunks") from None
        try:
            yield
        finally:
            self._places.release()

    @staticmethod
    def _busy(coming: Coming, what: str) -> UploadRefused:
        return UploadRefused("busy", what, "try again in a moment", 409, coming.part.durable)


def unknown_upload() -> RelayError:
    hint = "begin it again: what came of it, or is stored already, is known by its sha256"
    return RelayError(UNKNOWN_UPLOAD, "no such upload here", hint, status=404)


def lease_lost(run_id: str, epoch: int) -> RelayError:
    message = f"epoch {epoch} of run {run_id} does not hold its lease"
    return RelayError("lease_lost", message, "only the live holder uploads", exit_code=Exit.LEASE, status=409)


def not_holder() -> RelayError:
    return RelayError("not_holder", "this token does not hold the lease", "send the lease's own token", status=403)


def store_failed(error: OSError) -> RelayError:
    message = f"the store's disk failed: {error.strerror or error}"
    return RelayError("store_failed", message, "see the disk of the commander", exit_code=Exit.STATE, status=503)
