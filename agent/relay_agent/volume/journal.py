"""What happened to an attempt, written beside its checkpoints: events.jsonl and state.json, for people and scripts.

Written in order by one task, each write in a thread: a volume that is slow, full or gone delays nobody and ends
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from relay_agent.process import say
from relay_agent.secret_words import scrub_lines
from relay_agent.volume.own_files import append, replace
from relay_agent.volume.volume import RunFolder
from relaytui.wire.clock import Clock
from relaytui.wire.codec import encode


class Journal:
    def __init__(self, folder: RunFolder, worker: str, clock: Clock) -> None:
        self._folder = folder
        self._worker = worker
        self._clock = clock
        self._writes: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._said = False
        self._status = "RUNNING"
        self.epoch = 0
        self.latest_ckpt: str | None = None
        self.hub_revision: str | None = None

    def open(self) -> None:
        self._task = asyncio.create_task(self._write_all(), name="journal")

    async def close(self) -> None:
        """All written, or given up on after a while: nothing in here is worth holding a pod for."""
        if self._task is not None:
            try:
                await asyncio.wait_for(self._writes.join(), 10)
            except TimeoutError:
                say(f"the volume does not take the last lines of {self._folder.events.name}")
            self._task.cancel()

    def event(self, kind: str, message: str, data: dict[str, str]) -> None:
        """One line of events.jsonl."""
        now = self._clock.wall()
        line = {"at": now, "event": kind, "epoch": self.epoch, "worker": self._worker, "message": message, **data}
        text = scrub_lines(encode(line) + b"\n")
        self._writes.put_nowait(lambda: append(self._folder.events, text))

    def state(self, status: str | None = None, exit_code: int | None = None) -> None:
        """state.json as the original wrote it: `exit_code` only at the end. No status: still the same."""
        self._status = status or self._status
        state: dict[str, object] = {
            "status": self._status,
            "latest_ckpt": self.latest_ckpt,
            "last_hf_revision": self.hub_revision,
            "updated_at": int(self._clock.wall()),
        }
        if exit_code is not None:
            state["exit_code"] = exit_code
        text = encode(state) + b"\n"
        self._writes.put_nowait(lambda: replace(self._folder.state, text))

    async def _write_all(self) -> None:
        while True:
            write = await self._writes.get()
            try:
                await asyncio.to_thread(write)
            except OSError as error:
                if not self._said:
                    self._said = True
                    where = error.filename or self._folder.root
                    say(f"the volume does not take {where}: {error.strerror}; training goes on")
            finally:
                self._writes.task_done()
