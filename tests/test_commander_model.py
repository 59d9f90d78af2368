"""The rules themselves: what may happen to a run, and that nobody is granted what another may still be training."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from commander_kit import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from relaytui.commander.http.frames import Envelope, Frame, read_frame
from relaytui.commander.model.lease import RECONNECT_WINDOW, Deny, Lease, LeaseState, Refuse, after_restart
from relaytui.commander.model.run import CAUSE_OF, RULES, Cause, Run, change
from relaytui.commander.services.board import Board
from relaytui.commander.services.leases import Ask, Extended, Given, Leases
from relaytui.commander.services.orders import Orders
from relaytui.commander.services.reports import StateReports
from relaytui.commander.store.database import RELAY, open_database
from relaytui.commander.store.writer import Tx
from relaytui.wire.errors import RelayError
from relaytui.wire.messages import Reports
from relaytui.wire.proof import token_hash
from relaytui.wire.reports import Ended, Started
from relaytui.wire.status import ACTIVE, ENDED, OrderKind, Outcome, RunStatus

LENGTH = 300.0
ENDINGS = (Outcome.PREEMPTED, Outcome.DRAINED, Outcome.SUPERSEDED, Outcome.CRASHED)


def test_the_table_knows_every_cause_and_every_outcome() -> None:
    assert set(RULES) == set(Cause)
    assert set(CAUSE_OF) == set(Outcome)


@pytest.mark.parametrize("status", list(RunStatus))
@pytest.mark.parametrize("cause", list(Cause))
def test_only_what_the_table_allows_happens(status: RunStatus, cause: Cause) -> None:
    run = Run("r", "sft", status, 1, 0.0, 0.0, draining_since=1.0 if status is RunStatus.DRAINING else None)
    if status not in RULES[cause].before:
        with pytest.raises(ValueError, match="cannot be"):
            change(run, cause, 5.0, "why")
        return
    after = change(run, cause, 5.0, "why")
    assert (after.updated_at, after.message, after.epoch) == (5.0, "why", 1)
    assert after.status not in (RunStatus.LOST, RunStatus.PREEMPTED), "these are passed through, never stayed in"
    assert (after.draining_since is not None) == (after.status is RunStatus.DRAINING)
    assert (status in ENDED) == (cause is Cause.REQUEUED), "an ended run stays as it is until somebody says otherwise"
    of_waiting = (Cause.GRANTED, Cause.REVIVED, Cause.FORCED, Cause.CALLED_OFF, Cause.HELD)
    assert status in ACTIVE or cause in (*of_waiting, Cause.REQUEUED)


leases = st.builds(
    Lease,
    run_id=st.just("r"), epoch=st.just(1), token_hash=st.just(b"x"), worker=st.just("w"), incarnation=st.just("i"),
    request_id=st.just("q"), state=st.just(LeaseState.HELD), length=st.floats(1, 86_400), boot_id=st.just("b"),
    expires=st.floats(0, 1e6), grace=st.floats(0, 1e4),
)  # fmt: skip


@given(leases, st.floats(0, 1e6), st.booleans())
def test_a_restart_never_shortens_a_lease_and_its_gifts_are_bounded(lease: Lease, now: float, same: bool) -> None:
    expires, grace = after_restart(lease, now=now, boot_id="b" if same else "other")
    assert grace >= lease.grace
    if same:
        assert expires >= lease.expires
        assert expires - max(lease.expires, now) <= min(lease.length, RECONNECT_WINDOW) + 1e-6
        if lease.grace == 0:
            assert expires >= now + min(lease.length, RECONNECT_WINDOW) - 1e-6
    elif lease.grace == 0:
        assert expires == now + lease.length


def test_the_envelope_is_the_wires_reports() -> None:
    assert [field.name for field in fields(Envelope)] == [field.name for field in fields(Reports)]
    for ours, wire in zip(fields(Envelope), fields(Reports), strict=True):
        assert ours.name == "reports" or ours.type == wire.type


HEAD = '"type":"reports","run_id":"r","epoch":1,"token":"0123456789abcdef","stream":"telemetry","first_seq":1'
LOG, GAP = '[{"type":"log","t":1,"n":1,"lines":["\\"reports\\":[]}"]}]', '[{"type":"gap","t":1,"n":2,"count":3}]'


@pytest.mark.parametrize(
    ("frame", "array"),
    [
        (f'{{{HEAD},"reports":{LOG}}}', LOG),
        (f'{{"reports":{LOG},{HEAD}}}', LOG),
        (f'{{{HEAD}, "reports" : {LOG} }}\n', LOG),
        (f'{{{HEAD},"reports":{LOG},"more":[]}}', LOG),
        (f'{{{HEAD},"reports":{LOG},"more":{{"reports":[]}}}}', LOG),
        (f'{{"more":{{"reports":{GAP}}},{HEAD},"reports":{LOG}}}', LOG),
        (f'{{"more":[{{"reports":[]}}],{HEAD},"reports":{LOG}}}', LOG),
        (f'{{{HEAD},"reports":{GAP},"reports":{LOG}}}', LOG),
        (f'{{{HEAD},"reports": {GAP},"reports":{LOG}}}', LOG),
        (f'{{{HEAD},"reports": {LOG},"more\\"reports":{GAP}}}', LOG),
    ],
)
def test_wherever_the_array_stands_the_reports_are_those_of_one_json_object(frame: str, array: str) -> None:
    whole = msgspec.json.decode(frame, type=Reports)
    read = read_frame(frame.encode())
    assert isinstance(read, Frame)
    assert read.raw == array.encode()
    assert Reports(read.run_id, read.epoch, read.token, read.stream, read.first_seq, read.reports) == whole


@pytest.mark.parametrize(
    "frame",
    [
        f'{{{HEAD},"reports":[]}}',
        f'{{{HEAD},"reports":{LOG[:-1]}}}',
        f'{{{HEAD},"reports":[{LOG}]}}',
        f'{{{HEAD},"reports":{LOG}}}]}}',
        f'{{"more":{{{HEAD},"reports":{LOG}}}',
        f'{{"more\\"reports":{LOG}}}',
        f'{{"type":"skip","reports":{LOG}}}',
        f'"reports":{LOG}}}',
    ],
)
def test_what_is_no_frame_of_reports_is_refused_wherever_its_array_stands(frame: str) -> None:
    with pytest.raises(RelayError):
        read_frame(frame.encode())


TWICE = {
    "renew": '{"type":"renew","request":1,"run_id":"run-1","epoch":3,"token":"%s","epoch":4}',
    "hello": '{"type":"hello","protocol":1,"worker":"a","worker":"b","incarnation":"i"}',
    "nested": '{"type":"hello","protocol":1,"worker":"a","incarnation":"i","capability":{"cpus":1,"cpus":2}}',
    "escaped": '{"type":"renew","request":1,"run_id":"run-1","epoch":3,"token":"%s","\\u0065poch":4}',
}


@pytest.mark.parametrize("name", list(TWICE))
def test_a_request_that_says_a_key_twice_is_refused(name: str) -> None:
    """Which one was meant is not guessed. (Of reports the last one counts: they are read in one pass.)"""
    frame = TWICE[name].replace("%s", "t" * 43)
    with pytest.raises(RelayError, match="there twice"):
        read_frame(frame.encode())


class World:
    """Leases without sockets: agents, an operator, time, crashes; and what each holder believes."""

    def __init__(self, path: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.clock = FakeClock()
        self.db = open_database(path, RELAY)
        self.board = Board(self.clock)
        self.holders: dict[int, dict[str, Any]] = {}  # epoch -> what that holder knows
        self.epochs: list[int] = []
        self.over = False  # cancelled, and not queued again since
        self.seq: dict[int, int] = {}
        self.count = 0
        self.open()

    def open(self) -> None:
        writer: Any = None  # units are run here, one by one
        self.leases = Leases(writer, self.board, self.clock, b"k" * 32, LENGTH, max_no_progress=0)
        self.orders = Orders(writer, self.clock)
        self.reports = StateReports(writer, self.leases, self.clock)

    def do(self, unit: Any) -> Any:
        tx = Tx(self.db)
        self.db.execute("BEGIN IMMEDIATE")
        try:
            result = unit(tx)
        except RelayError as error:
            self.db.execute("ROLLBACK")
            return error
        self.db.execute("COMMIT")
        return result

    def acquire(self) -> None:
        self.count += 1
        ask = Ask("run", f"w{self.count}", f"i{self.count}", "q", "sft", self.dice.choice([0, 0, 0, 3]))
        sent = self.clock.boot()
        answer = self.do(lambda tx: self.leases.acquire_in(tx, ask))
        if isinstance(answer, Deny):
            return
        assert isinstance(answer, Given)
        assert not self.epochs or answer.epoch > self.epochs[-1], "epochs only grow"
        for epoch, holder in self.holders.items():
            dead = holder["stopped"] or holder["gone"] or self.clock.boot() >= holder["safe_until"]
            assert dead, f"epoch {epoch} may still be training, and {answer.epoch} was granted"
        self.epochs.append(answer.epoch)
        self.holders[answer.epoch] = {
            "token": answer.token, "safe_until": sent + 0.98 * LENGTH, "stopped": False, "gone": False
        }  # fmt: skip
        self.tell(answer.epoch, Started(t=0.0))

    def tell(self, epoch: int, report: Any) -> Any:
        self.seq[epoch] = self.seq.get(epoch, 0) + 1
        token = token_hash(self.holders[epoch]["token"])
        return self.do(lambda tx: self.reports._apply(tx, "run", epoch, token, self.seq[epoch], [report], None))

    def renew(self) -> None:
        if not self.epochs:
            return
        epoch = self.dice.choice(self.epochs[-3:])
        holder = self.holders[epoch]
        sent = self.clock.boot()
        self.clock.advance(self.dice.uniform(0, 2))  # on its way
        claim = ("run", epoch, token_hash(holder["token"]))
        (answer,) = self.do(lambda tx: self.leases._renew_in(tx, [claim]))
        if isinstance(answer, Extended):
            assert epoch == self.epochs[-1], "only the newest epoch is ever renewed"
            assert not holder["stopped"]
            holder["safe_until"] = max(holder["safe_until"], sent + 0.98 * LENGTH)
        else:
            assert isinstance(answer, Refuse)

    def end(self) -> None:
        if not self.epochs:
            return
        epoch = self.dice.choice(self.epochs[-2:])
        self.tell(epoch, Ended(t=0.0, outcome=self.dice.choice(ENDINGS)))
        self.holders[epoch]["stopped"] = True

    def force(self) -> None:
        gone = self.dice.random() < 0.3
        epoch = self.do(lambda tx: tx.execute("SELECT epoch FROM runs").fetchone())
        if epoch is None:
            return

        def unit(tx: Tx) -> Run:
            run = self.orders._expected(tx, "run", epoch[0])
            return self.orders.force_in(tx, run, "operator", "", pod_gone=gone)

        if isinstance(self.do(unit), Run) and gone:
            for holder in self.holders.values():
                holder["gone"] = True

    def cancel(self) -> None:
        """The operator's word that nobody is to train it any more, or that it may be trained again."""
        row = self.do(lambda tx: tx.execute("SELECT epoch, status FROM runs").fetchone())
        if row is None:
            return
        if row[1] == "cancelled":
            again = self.do(lambda tx: self.orders.requeue_in(tx, self.orders._expected(tx, "run", row[0]), "op", ""))
            self.over = isinstance(again, RelayError)
        else:
            given = self.do(lambda tx: self.orders._give_in(tx, OrderKind.CANCEL, "run", row[0], "op", ""))
            self.over = not isinstance(given, RelayError)

    def wait(self) -> None:
        """Time passes: with the sweep at work, or with a commander that sleeps or is down."""
        kind = self.dice.choice(["awake", "awake", "awake", "asleep", "restart"])
        if kind == "awake":
            for _ in range(self.dice.randrange(1, 200)):
                self.clock.advance(2)
                self.do(self.leases._sweep_in)
        else:
            self.clock.advance(self.dice.choice([3, 60, 1_000, 30_000]))
            if kind == "restart":
                self.open()
            self.do(lambda tx: self.leases._recover_in(tx, "test"))


@pytest.mark.parametrize("seed", range(12))
def test_nobody_is_granted_what_another_may_still_be_training(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path / "relay.db", seed)
    world.db.execute("PRAGMA synchronous=OFF")
    actions = [world.acquire] * 4 + [world.renew] * 6 + [world.end] + [world.force] + [world.wait] * 3
    for _ in range(250):
        world.dice.choice(actions)()
    assert len(world.epochs) > 5, "the world was too quiet to prove anything"
    # And whatever happened, the run is not wedged: silence frees it.
    granted = len(world.epochs)
    for _ in range(400):
        world.clock.advance(2)
        world.do(world.leases._sweep_in)
    world.acquire()
    assert len(world.epochs) == granted + 1
    world.db.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_cancelled_run_is_nobodys_until_it_is_requeued(tmp_path: Path, seed: int) -> None:
    """Whatever else happens meanwhile, and whatever way its last attempt ends."""
    world = World(tmp_path / "relay.db", seed)
    world.db.execute("PRAGMA synchronous=OFF")
    actions = [world.acquire] * 6 + [world.renew] * 4 + [world.end] + [world.force] + [world.wait] * 3 + [world.cancel]
    denied = 0
    for _ in range(400):
        action, over, granted = world.dice.choice(actions), world.over, len(world.epochs)
        action()
        assert not over or len(world.epochs) == granted, "it was granted although it was cancelled"
        denied += over and action == world.acquire
    assert denied > 5, "the world was too quiet to prove anything"
    world.db.close()
