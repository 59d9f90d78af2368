"""All services of one commander, wired together; what transactions changed is told to the live picture here."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets

from relaytui.commander.services import endings
from relaytui.commander.services.artifact_care import Care
from relaytui.commander.services.artifacts import ArtifactStore
from relaytui.commander.services.board import Board
from relaytui.commander.services.feed import Feed
from relaytui.commander.services.leases import Leases
from relaytui.commander.services.orders import Orders
from relaytui.commander.services.pages import Pages
from relaytui.commander.services.reports import StateReports
from relaytui.commander.services.telemetry import Telemetry
from relaytui.commander.services.telemetry_room import TelemetryRoom
from relaytui.commander.services.workers import Workers
from relaytui.commander.settings import CommanderSettings
from relaytui.commander.store import artifacts as artifact_rows
from relaytui.commander.store import attempts, history, runs
from relaytui.commander.store import telemetry as telemetry_store
from relaytui.commander.store.changes import (
    ArtifactRemoved,
    ArtifactSaved,
    AttemptSaved,
    Change,
    CheckpointSaved,
    EventSaved,
    LeaseExtended,
    LeaseSaved,
    OrderGiven,
    RunSaved,
    WorkerForgotten,
    WorkerSaved,
)
from relaytui.commander.store.reader import Reader
from relaytui.commander.store.writer import Tx, Writer
from relaytui.wire.clock import Clock
from relaytui.wire.messages import RunConfig

log = logging.getLogger(__name__)


class Core:
    """Made by the server with open stores; `load` must be awaited before anything else."""

    def __init__(
        self,
        settings: CommanderSettings,
        clock: Clock,
        relay: Writer,
        telemetry: Writer,
        reader: Reader,
        state_key: bytes,
        key_made: bool = False,
    ) -> None:
        """`key_made`: the key was made at this start."""
        self.settings = settings
        self.clock = clock
        self.relay = relay
        self.frames = telemetry
        self.reader = reader
        self.board = Board(clock)
        self.feed = Feed(self.board, clock)
        self.leases = Leases(
            relay, self.board, clock, state_key, settings.lease_seconds, settings.max_runs, settings.max_no_progress
        )
        self.orders = Orders(relay, clock)
        self.reports = StateReports(relay, self.leases, clock)
        self.telemetry = Telemetry(relay, telemetry, self.board, self.feed, clock)
        self.pages = Pages(reader)
        self.workers = Workers(relay, self.board, self.feed, clock)
        self.feed.on_watch = self.workers.tell_all_watched
        self.artifacts = ArtifactStore(settings, relay, reader, self.leases, self.board, clock)
        self.room = TelemetryRoom(settings, relay, telemetry, reader, clock)
        self.care = Care(self.artifacts, reader, clock)
        self._key_id = hmac.new(state_key, b"relay key id 1", hashlib.sha256).hexdigest()[:16]
        self._key_made = key_made
        self.generation = ""
        """Id of this commander's history, made when its database was."""

    async def load(self) -> None:
        """The live picture from the store, then the leases' reconnect window."""

        def relay(tx: Tx) -> str:
            generation = history.meta(tx, "generation")
            if generation is None:
                generation = secrets.token_hex(8)
                history.set_meta(tx, "generation", generation)
            self._note_key(tx)
            self.artifacts.load_in(tx)
            self.leases.load_in(tx, unproven=self._knows_no_older_key(tx, generation))
            self.board.load(
                runs.everything(tx),
                runs.all_leases(tx),
                history.workers(tx),
                history.newest_events(tx, 200),
                attempts.newest(tx),
                last,
                artifact_rows.checkpoints(tx),
                history.count_events(tx),
                attempts.last_of_workers(tx),
            )
            return generation

        last = await self.frames.run(telemetry_store.all_streams)
        self.generation = await self.relay.run(relay)
        await self.leases.recover("the commander started")

    def close(self) -> None:
        """What works in threads of its own ends soon."""
        self.artifacts.close()

    def _note_key(self, tx: Tx) -> None:
        """Another key than at the last start shuts out all who know the old one's tokens: that is said."""
        before = history.meta(tx, "key_id")
        if before == self._key_id:
            return
        history.set_meta(tx, "key_id", self._key_id)
        if before is not None:
            message = "the state folder's key is another one: give pods the new worker token (relay-tui token worker)"
            if not self._key_made:  # on the operator's word: whoever asked for it says so
                log.warning("%s", message)
            history.add_event(tx, self.clock.wall(), "key.changed", endings.COMMANDER, message)

    def _knows_no_older_key(self, tx: Tx, generation: str) -> bool:
        """Whether this history began with a key made for it, or was given one: what was granted before cannot be
        proven by it. A database that is lost or restored while its key is kept is another history."""
        mine = f"{self._key_id} {generation}"
        if self._key_made:
            history.set_meta(tx, "key_made", mine)
        return history.meta(tx, "key_made") == mine

    def committed(self, changes: list[Change]) -> None:
        """The writer's callback: called in the loop with what a batch of transactions changed, in order."""
        board, feed = self.board, self.feed
        for change in changes:
            match change:
                case LeaseExtended():
                    view = board.runs.get(change.run_id)
                    if view is not None:
                        view.expires = max(view.expires, change.expires)
                        feed.run(change.run_id)
                case RunSaved():
                    view = board.save_run(change.run)
                    feed.run(change.run.run_id)
                    if view.lease is not None:
                        feed.worker(view.lease.incarnation)
                case LeaseSaved():
                    for incarnation in board.save_lease(change.lease):
                        feed.worker(incarnation)
                        self.workers.tell_watched(incarnation)
                    feed.run(change.lease.run_id)
                case AttemptSaved():
                    board.hear_attempt(change.attempt)
                    if change.attempt.run_id in board.runs:
                        feed.run(change.attempt.run_id)
                case EventSaved():
                    board.hear_event(change.row)
                    feed.event(change.row)
                case CheckpointSaved():
                    feed.checkpoint(change.row)
                case ArtifactSaved():
                    board.save_artifact(change.row)
                    feed.artifact(change.row)
                    feed.run(change.row.run_id)
                case ArtifactRemoved():
                    board.drop_artifact(change.row)
                    feed.artifact_gone(change.row)
                    feed.run(change.row.run_id)
                case WorkerSaved():
                    worker = board.save_worker(change.worker)
                    worker.connected = self.workers.is_connected(change.worker.incarnation)
                    feed.worker(change.worker.incarnation)
                    if (run_id := board.holding.get(change.worker.incarnation)) is not None:
                        feed.run(run_id)
                case WorkerForgotten():
                    board.workers.pop(change.incarnation, None)
                    feed.worker_gone(change.incarnation)
                case OrderGiven():
                    self.workers.deliver(change.order)

    def config(self, run_id: str) -> RunConfig:
        """What a grant tells an agent about its run."""
        settings = self.settings
        return RunConfig(
            l1_root=settings.l1_root,
            run_id=run_id,
            ckpt_interval_sec=settings.ckpt_interval,
            ckpt_keep_last_n=settings.ckpt_keep_last_n,
            hf_sync_interval_sec=settings.hf_sync_interval,
            hf_repo=settings.hf_repo,
            hf_push_on_improve=settings.hf_push_on_improve,
        )
