"""The commander's leases on real SQLite files beside a small model of them: whatever is called in whatever order, with
time that stands, passes, jumps and starts over, restarts, reboots and restores, both say the same."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from commander_kit import FakeClock
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from linearize import Call
from linearize_lease import EXPIRED, HELD, HELD_AFTER, REVOKED, Lease, LeaseModel

from relaytui.commander.model.lease import MAX_GRACE, Deny, LeaseState, Refuse
from relaytui.commander.services.core import Core
from relaytui.commander.services.leases import Ask, Extended
from relaytui.commander.services.reports import Applied
from relaytui.commander.settings import CommanderSettings
from relaytui.commander.store import runs
from relaytui.commander.store.backup import back_up
from relaytui.commander.store.changes import Change
from relaytui.commander.store.database import RELAY, TELEMETRY, open_database
from relaytui.commander.store.restore import restore
from relaytui.commander.store.writer import Writer
from relaytui.wire.errors import RelayError
from relaytui.wire.reports import Ended, Started
from relaytui.wire.status import OrderKind, Outcome

T = TypeVar("T")
LENGTH = 40.0
TICK = 2.0
KEY = b"k" * 32
MEMORY = Path("/dev/shm")
RUN_IDS = ("run-a", "run-b")
RUNS = st.sampled_from(["run-a", "run-a", "run-b"])
OPERATIONS = st.sampled_from(["force", "pod gone", "drain", "cancel", "requeue", "requeue"])
BACK = st.sampled_from([0, 0, 0, 1, 2])
"""Whose lease speaks: the newest one's, or an older one's."""
AGENTS = st.sampled_from(["one", "two", "three"])
RIGHT = st.sampled_from([True, True, False])
"""Whether the operator saw the run as it is."""
OUTCOMES = st.sampled_from([Outcome.PREEMPTED, Outcome.DRAINED, Outcome.COMPLETED, Outcome.FAILED, Outcome.CRASHED])


class NoThread:
    def __init__(self, **kwargs: Any) -> None:
        pass

    def start(self) -> None:
        pass


class PromptWriter(Writer):
    """Commits each unit when it is submitted: one call at a time needs no thread to wait for."""

    def __init__(self, *args: Any) -> None:
        with patch.object(threading, "Thread", NoThread):
            super().__init__(*args)

    def _put(self, work: Any) -> None:
        assert not self._closed
        self._waiting += work.size
        self._deliver(*self._commit([work]), work.size)

    async def close(self) -> None:
        self._closed = True
        self._db.close()


class Commander:
    """The store and services of leases, without sockets."""

    def __init__(self, state: Path, clock: FakeClock, telemetry: Writer) -> None:
        self._state = state
        self._clock = clock
        self._telemetry = telemetry

    async def start(self) -> None:
        self.relay = PromptWriter(open_database(self._state / RELAY.file, RELAY), RELAY.name, self._committed)
        wanted = CommanderSettings(state=self._state, lease_seconds=LENGTH)
        reader: Any = None  # for the API's pages alone
        self.core = Core(wanted, self._clock, self.relay, self._telemetry, reader, KEY)
        await self.core.load()

    def _committed(self, changes: list[Change]) -> None:
        self.core.committed(changes)

    async def stop(self) -> None:
        await self.relay.close()


class Leases(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.clock = FakeClock()
        self.time = 0.0
        """Of the world: it goes on whatever the machine's clocks do."""
        self.states: dict[str, set[Lease]] = {}
        self.model = LeaseModel(LENGTH, ())
        self.given: list[tuple[str, str, int, str]] = []
        """(run, agent, epoch, token) of every lease there was."""
        self.highest: dict[str, int] = {}
        self.renewed: dict[str, tuple[int, str, float]] = {}
        """(epoch, agent, when) of the latest renewal of a run's lease, unless it was given up."""
        self.requests = 0
        self.backup: tuple[Path, dict[str, set[Lease]]] | None = None

    @initialize()
    def begin(self) -> None:
        self.telemetry = self.do(self.open_telemetry())
        self.start()
        self.acquire("run-a", "one", False)

    async def open_telemetry(self) -> Writer:
        return PromptWriter(open_database(self.folder / TELEMETRY.file, TELEMETRY), TELEMETRY.name)

    def start(self) -> None:
        self.commander = Commander(self.folder, self.clock, self.telemetry)
        self.do(self.commander.start())

    def teardown(self) -> None:
        if hasattr(self, "commander"):
            self.do(self.commander.stop())
            self.do(self.telemetry.close())
            open_database(self.folder / RELAY.file, RELAY).close()  # which checks what is in it
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.folder)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    async def answer(self, submit: Callable[[Callable[[Any, BaseException | None], None]], None]) -> Any:
        """Of a call that answers by callback."""
        future = self.loop.create_future()
        submit(lambda result, error: future.set_exception(error) if error else future.set_result(result))
        return await future

    def told(self, run_id: str, what: str, said: tuple[Any, ...], answer: tuple[Any, ...]) -> None:
        """The model can have said that, too."""
        call = Call(what, said, 0, self.time, answer, 1, self.time)
        before = self.states.get(run_id, {Lease()})
        after = {state for each in before for state in self.model.step(each, call)}
        assert after, f"{call} cannot be in {before}"
        self.states[run_id] = after

    # -- agents --------------------------------------------------------------------------------------------------

    @rule(run_id=RUNS, agent=AGENTS, anew=st.sampled_from([False, False, True]))
    def acquire(self, run_id: str, agent: str, anew: bool) -> None:
        self.requests += anew
        request = f"q{self.requests}"
        answer = self.do(self.commander.core.leases.acquire(Ask(run_id, agent, agent, request, "sft")))
        if isinstance(answer, Deny):
            self.told(run_id, "acquire", (agent, request), ("refused", answer.code))
            return
        self.told(run_id, "acquire", (agent, request), ("granted", answer.epoch, answer.token))
        lease = (run_id, agent, answer.epoch, answer.token)
        if lease not in self.given:
            # Whatever was restored or restarted: never an epoch again, and never a run that somebody may train.
            assert answer.epoch > self.highest.get(run_id, 0)
            epoch, holder, when = self.renewed.get(run_id, (0, agent, 0.0))
            assert holder == agent or self.time >= when + LENGTH, f"{holder} holds epoch {epoch}"
            self.given.append(lease)
        self.extended(run_id, answer.epoch, agent)

    def extended(self, run_id: str, epoch: int, agent: str) -> None:
        self.highest[run_id] = max(epoch, self.highest.get(run_id, 0))
        self.renewed[run_id] = (epoch, agent, self.time)

    @precondition(lambda self: self.given)
    @rule(back=BACK, known=st.sampled_from([True, True, True, False]))
    def renew(self, back: int, known: bool) -> None:
        """Or register, as a holder does that a commander with other books does not know."""
        run_id, agent, epoch, token = self.given[-1 - back % len(self.given)]
        leases = self.commander.core.leases
        if known:
            answer = self.do(self.answer(lambda done: leases.renew(run_id, epoch, token, done)))
            self.told(run_id, "renew", (epoch, token), self.plain(answer))
        else:
            answer = self.do(leases.register(Ask(run_id, agent, agent, "register", "sft", epoch), token))
            self.told(run_id, "register", (agent, epoch, token, True), self.plain(answer))
        if not isinstance(answer, Refuse):
            self.extended(run_id, epoch, agent)

    @rule(run_id=RUNS, agent=AGENTS, above=st.sampled_from([1, 7, 500_000]), theirs=st.booleans())
    def forge(self, run_id: str, agent: str, above: int, theirs: bool) -> None:
        """Registers what nobody was granted, or with the token of another lease: the key proves neither."""
        epoch = self.highest.get(run_id, 0) + above
        token = self.given[-1][3] if theirs and self.given else f"{above:064x}"
        ask = Ask(run_id, agent, agent, "register", "sft", epoch)
        answer = self.do(self.commander.core.leases.register(ask, token))
        assert isinstance(answer, Refuse)
        self.told(run_id, "register", (agent, epoch, token, False), self.plain(answer))

    @precondition(lambda self: self.given)
    @rule(back=BACK, outcome=OUTCOMES)
    def end(self, back: int, outcome: Outcome) -> None:
        run_id, agent, epoch, token = self.given[-1 - back % len(self.given)]
        reports = [Started(1.0, 0, None, 7), Ended(1.0, outcome, 1)]
        core = self.commander.core
        answer = self.do(self.answer(lambda done: core.reports.submit(run_id, epoch, token, 1, reports, 100, done)))
        self.told(run_id, "end", (epoch, token, outcome), self.plain(answer))
        if isinstance(answer, Applied) and self.renewed.get(run_id, (0, "", 0.0))[:2] == (epoch, agent):
            del self.renewed[run_id]

    def plain(self, answer: Any) -> tuple[Any, ...]:
        assert isinstance(answer, Refuse | Extended | Applied), answer
        return ("refused", answer.code) if isinstance(answer, Refuse) else ("ok",)

    # -- the operator --------------------------------------------------------------------------------------------

    def order(self, run_id: str, what: str, said: tuple[Any, ...], work: Coroutine[Any, Any, Any]) -> Any:
        try:
            answer = self.do(work)
        except RelayError as error:
            self.told(run_id, what, said, ("refused", error.code))
            return None
        self.told(run_id, what, said, ("ok", answer.epoch) if what == "force" else ("ok",))
        return answer

    def seen(self, run_id: str, right: bool) -> int:
        view = self.commander.core.board.runs.get(run_id)
        return (view.run.epoch if view is not None else 0) + (not right)

    @rule(
        run_id=RUNS, right=RIGHT, what=st.sampled_from(["force", "pod gone", "drain", "cancel", "requeue", "requeue"])
    )
    def operate(self, run_id: str, right: bool, what: str) -> None:
        expected, orders = self.seen(run_id, right), self.commander.core.orders
        if what == "requeue":
            self.order(run_id, what, (expected,), orders.requeue(run_id, expected, "ada", ""))
        elif what in ("drain", "cancel"):
            self.order(run_id, what, (expected,), orders.give(OrderKind(what), run_id, expected, "ada", ""))
        else:
            gone = what == "pod gone"
            work = orders.force(run_id, expected, "ada", "", pod_gone=gone)
            run = self.order(run_id, "force", (expected, gone), work)
            if run is not None:
                assert run.epoch > self.highest.get(run_id, 0)
                self.highest[run_id] = run.epoch
                if gone:
                    self.renewed.pop(run_id, None)

    # -- time ----------------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.time += seconds

    async def tick(self, ticks: int) -> None:
        for _ in range(ticks):
            self.pass_time(TICK)
            await self.commander.core.leases.sweep()

    @rule(ticks=st.sampled_from([1, 3, 10, 19, 21, 21]))
    def awake(self, ticks: int) -> None:
        self.do(self.tick(ticks))

    def held(self) -> dict[str, Any]:
        leases = {run_id: view.lease for run_id, view in self.commander.core.board.runs.items()}
        return {
            run_id: lease for run_id, lease in leases.items() if lease is not None and lease.state is LeaseState.HELD
        }

    @rule(seconds=st.sampled_from([3.0, 39.0, 41.0, 500.0]), step=st.sampled_from([0.0, 0.0, -7_200.0, 7_200.0]))
    def asleep(self, seconds: float, step: float) -> None:
        """And somebody sets the wall clock. Who held a run when the commander fell asleep has a moment to come back."""
        held = self.held()
        self.pass_time(seconds)
        self.clock.step_wall(step)
        self.do(self.commander.core.leases.sweep())
        self.still(held)

    def still(self, held: dict[str, Any]) -> None:
        """Unless that was so often that nobody waits any longer."""
        now = self.held()
        for run_id, lease in held.items():
            assert lease.grace or (run_id in now and now[run_id].epoch == lease.epoch), f"{run_id} was lost on the way"

    # -- the commander -------------------------------------------------------------------------------------------

    @rule(away=st.sampled_from([0.0, 1.0, 39.0, 200.0]), reboot=st.booleans(), often=st.sampled_from([1] * 11 + [8]))
    def restart(self, away: float, reboot: bool, often: int) -> None:
        held = self.held()
        for number in range(often):
            self.do(self.commander.stop())
            self.pass_time(away)
            if reboot:
                self.clock.reboot(f"boot-{self.time}-{number}")
            self.start()
        if often == 1:
            self.do(self.commander.core.leases.sweep())
            self.still(held)
        elif often * away > LENGTH + MAX_GRACE * LENGTH + 2 * LENGTH:
            # A crash loop keeps no dead holder alive for ever.
            self.do(self.tick(1))
            assert not self.held()

    @rule(wait=st.sampled_from([0, 1, 21]))
    def back_up_or_restore(self, wait: int) -> None:
        """The first time a backup is made, the second time it takes the place of what came after it."""
        if self.backup is None:
            made = back_up(self.folder, self.clock.wall())
            kept = made.rename(self.folder / "kept.db")  # those of the folder make room for newer ones
            self.backup = kept, {run_id: self.possible(states) for run_id, states in self.states.items()}
            return
        (path, states), self.backup = self.backup, None
        self.do(self.commander.stop())
        floor = restore(self.folder, path, self.clock.wall()).epoch_floor
        path.unlink()
        assert floor > max(self.highest.values(), default=0)
        self.states = {run_id: {Lease(floor=floor)} for run_id in RUN_IDS}
        for run_id, before in states.items():
            self.states[run_id] = {_restored(lease, floor) for lease in before}
        self.start()
        self.do(self.tick(wait))

    def possible(self, states: set[Lease]) -> set[Lease]:
        """With what may have run out already, though no call has shown it yet."""
        out = {each.expired() for each in states if each.state in (HELD, REVOKED) and self.time >= each.since + LENGTH}
        return states | out

    # -- always --------------------------------------------------------------------------------------------------

    @invariant()
    def rows_and_picture_agree(self) -> None:
        if not hasattr(self, "commander"):
            return

        def look(tx: Any) -> tuple[list[Any], list[Any]]:
            return runs.everything(tx), runs.all_leases(tx)

        rows, leases = self.do(self.commander.relay.run(look))
        board = self.commander.core.board
        assert {run.run_id: run for run in rows} == {run_id: view.run for run_id, view in board.runs.items()}
        for lease in leases:
            view = board.runs[lease.run_id]
            assert view.lease is not None
            assert view.expires == lease.expires
            assert (view.lease.epoch, view.lease.state) == (lease.epoch, lease.state)


def _restored(lease: Lease, floor: int) -> Lease:
    """Held when the backup was made: as expired, until its holder is heard of or another is granted."""
    silent = min(HELD_AFTER, lease.silent + (lease.state == HELD))
    state = EXPIRED if lease.state == HELD else lease.state
    return lease._replace(state=state, floor=floor, silent=silent)


Leases.TestCase.settings = settings(
    max_examples=50, stateful_step_count=40, derandomize=True, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)  # fmt: skip
TestLeases = Leases.TestCase
