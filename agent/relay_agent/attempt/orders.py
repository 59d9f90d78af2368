"""An operator's orders to an attempt that goes on: each is carried out once, and answered every time it comes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from signal import Signals
from typing import Any, NamedTuple

from relay_agent import guardian
from relay_agent.attempt.telling import Teller
from relay_agent.attempt.tenure import Tenure
from relay_agent.checkpoints.disk import folder
from relay_agent.link.link import Link
from relay_agent.outcome.stop import Stop, Why
from relay_agent.process import say
from relay_agent.trainer.supervise import Supervised
from relaytui.wire.messages import Order
from relaytui.wire.status import OrderKind
from relaytui.wire.text import clean, counted

VOLUME_ANSWERS = 5.0
"""Seconds that the volume has to take a file."""


class Answer(NamedTuple):
    """To the operator. `accepted`: it is being done."""

    accepted: bool = True
    message: str = ""


class _StopRule(NamedTuple):
    why: Why
    word: str
    said: str


_STOPS = {
    OrderKind.DRAIN: _StopRule(Why.DRAIN, "drained", "asked to drain {who}"),
    OrderKind.CANCEL: _StopRule(Why.CANCEL, "cancelled", "the run is cancelled {who}"),
}
NO_HUB = Answer(False, "it has no repository on the Hub: HF_REPO is not set")
_GONE = Answer(False, "the trainer has exited")


class Orders:
    """Of one attempt. `spawn` begins work that goes on beside it."""

    def __init__(
        self,
        tenure: Tenure,
        link: Link,
        stop: Stop,
        tell: Teller,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        self._tenure = tenure
        self._link = link
        self._stop = stop
        self._tell = tell
        self._spawn = spawn
        self._answers: dict[int, Answer | None] = {}  # None: it is being carried out
        self._early: list[Order] = []  # saves that wait for a trainer
        self._trainer: Supervised | None = None
        self._file = Path()
        self._signal: Signals | None = None
        self._over = False
        self._asked_by_file = False
        self._stopping: tuple[_StopRule, str] | None = None  # and by whom, while the trainer saves first
        self.before_stop: Callable[[], Coroutine[Any, Any, float]] | None = None
        """Waited for before a trainer that runs is stopped for an order: it may save first. By when it is to die."""
        self.on_save: Callable[[], None] | None = None
        """The trainer is asked to save now."""
        self.on_sync: Callable[[str], Answer] | None = None
        """Whatever is newest goes to the Hub now, on this word of who asked; None: the run has none."""

    def take(self, order: Order) -> None:
        """Through the commander. It comes again after each reconnect until the commander has the answer."""
        lease = self._tenure.lease
        if order.run_id != lease.run_id or order.epoch != lease.epoch:
            return
        if order.order_id in self._answers:
            self._acknowledge(order)
            return
        self._answers[order.order_id] = None
        who = clean(f"by {order.by or 'the commander'}" + (f": {order.why}" if order.why else ""), 300)
        if order.kind in _STOPS:
            self._answer(order, Answer())
            self._stop_for(order.kind, who)
        elif order.kind is OrderKind.STOP:
            self._answer(order, Answer())
            self._tenure.lose("superseded", f"taken over {who}")
        elif order.kind is OrderKind.SYNC:
            self._sync(order, who)
        else:
            self._tell.event("order.save", who, send=False)
            say(f"asked for a checkpoint now {who}")
            self._early.append(order)
            self._see_to_saves()

    def _stop_for(self, kind: OrderKind, who: str) -> None:
        rule = _STOPS[kind]
        if self._stop.why is not None and self._stop.why >= rule.why:
            return
        self._tell.event(f"order.{kind}", who, send=False)
        say(rule.said.format(who=who))
        if self.before_stop is None or self._over or self._stop.asked.is_set():
            if self.before_stop is None and not self._stop.asked.is_set():  # it may be taken over, or be about to start
                say("stopping the trainer if it runs, publishing what it saves")
            self._stop_now(rule, who)
            return
        first = self._stopping is None
        if self._stopping is None or self._stopping[0].why < rule.why:
            self._stopping = rule, who
        if first:
            self._spawn(self._stop_gently(self.before_stop), "gently")

    async def _stop_gently(self, before_stop: Callable[[], Coroutine[Any, Any, float]]) -> None:
        try:
            kill_by = await before_stop()
            if not self._over:
                self._stop.kill_by = kill_by
        finally:  # whatever fails there
            if not self._over:
                self._stop_as_ordered()

    def _stop_as_ordered(self) -> None:
        if self._stopping is not None:
            (rule, who), self._stopping = self._stopping, None
            self._stop_now(rule, who)

    def all_is_heard(self, completed: bool) -> None:
        """Of a trainer that is gone. `completed`: it reached its last step, and nobody has to stop it any more; else,
        where it ended by itself while it was to save, that it was to stop counts."""
        if completed:
            self._stopping = None
        self._stop_as_ordered()

    def _stop_now(self, rule: _StopRule, who: str) -> None:
        self._stop.ask(rule.why, f"{rule.word} {who}")

    @property
    def hurried(self) -> bool:
        """There is no trainer to wait for any more, or somebody stops it already."""
        return self._over or self._stop.asked.is_set()

    @property
    def asked_by_file(self) -> bool:
        """Once or more."""
        return self._asked_by_file

    def _sync(self, order: Order, who: str) -> None:
        self._tell.event("order.sync", who, send=False)
        say(f"asked to sync to the Hub now {who}")
        self._answer(order, NO_HUB if self.on_sync is None else self.on_sync(who))

    # -- saving now ----------------------------------------------------------------------------------------------

    def trainer_is_up(self, trainer: Supervised, file: Path, signal: Signals | None) -> None:
        """From now on it can be asked to save: by `file`, which it may look for, and by `signal`, if it knows one."""
        self._trainer, self._file, self._signal, self._over = trainer, file, signal, False
        self._link.training = True
        self._see_to_saves()

    def trainer_is_gone(self) -> None:
        self._over, self._link.training = True, False
        self._see_to_saves()

    def _see_to_saves(self) -> None:
        if self._trainer is None:
            return
        early, self._early = self._early, []
        for order in early:
            if self._over:
                self._answer(order, _GONE)
            elif self._stop.asked.is_set():
                self._answer(order, Answer(False, "the trainer is being stopped, and saves if it can"))
            else:
                self._spawn(self._save(order, self._trainer), "save")

    async def _save(self, order: Order, trainer: Supervised) -> None:
        answer, _ = await self._ask_to_save(trainer)
        if answer.accepted:
            say(f"the trainer was asked to save: {answer.message}")
        self._answer(order, answer)

    async def ask_to_save(self) -> tuple[Answer, bool]:
        """In every way there is. Whether that could be done, and whether a process heard it that knows the signal."""
        if self._trainer is None or self._over:
            return _GONE, False
        return await self._ask_to_save(self._trainer)

    async def _ask_to_save(self, trainer: Supervised) -> tuple[Answer, bool]:
        words, asked, reached = [], False, 0
        if self.on_save is not None:
            self.on_save()
        if self._signal is not None:
            reached, said = await _signalled(trainer, self._signal)
            asked = reached > 0
            words.append(said)
        try:
            async with asyncio.timeout(VOLUME_ANSWERS):
                await asyncio.to_thread(_ask_by_file, self._file)
        except OSError as error:
            words.append(f"the file {self._file.name} could not be made: {error.strerror or 'the volume hangs'}")
        else:
            asked = self._asked_by_file = True
            words.append("$RELAY_SAVE_FILE made; a trainer that does not look for it saves as usual")
        return Answer(asked, ", ".join(words)), reached > 0

    # -- answers -------------------------------------------------------------------------------------------------

    def _answer(self, order: Order, answer: Answer) -> None:
        self._answers[order.order_id] = answer
        if not answer.accepted:
            say(f"refused to {order.kind}: {answer.message}")
        self._acknowledge(order)

    def _acknowledge(self, order: Order) -> None:
        answer = self._answers[order.order_id]
        if answer is not None:
            self._link.acknowledge(order, answer.accepted, clean(answer.message, 300))


async def _signalled(trainer: Supervised, signal: Signals) -> tuple[int, str]:
    """How many processes of it heard that, and in words."""
    try:
        async with asyncio.timeout(VOLUME_ANSWERS):  # all threads may wait for the volume
            reached = await asyncio.to_thread(trainer.signal, signal)
    except OSError as error:
        return 0, f"{signal.name} could not be sent: {error.strerror or 'nothing answers'}"
    if not reached:
        return 0, f"nothing of the trainer handles {signal.name}"
    return reached, f"{signal.name} sent to {counted(reached, 'process', 'processes')} of the trainer"


def _ask_by_file(file: Path) -> None:
    """An empty file, which the trainer takes away when it has seen it. OSError where the volume refuses. Blocking."""
    with folder(file.parent) as at:
        os.close(os.open(file.name, os.O_WRONLY | os.O_CREAT | guardian.OURS, 0o644, dir_fd=at))
