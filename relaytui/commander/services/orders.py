"""What an operator orders: take a run from its holder, queue it again, or have the holder drain, cancel or save."""

from __future__ import annotations

from msgspec.structs import replace

from relaytui.commander.model.lease import LeaseState
from relaytui.commander.model.orders import LASTING, ORDERS, OrderRule
from relaytui.commander.model.records import ORIGINALS, PendingOrder
from relaytui.commander.model.run import Cause, Run, allowed, change
from relaytui.commander.services import endings
from relaytui.commander.store import attempts, history, runs
from relaytui.commander.store.writer import Tx, Writer
from relaytui.wire.clock import Clock
from relaytui.wire.errors import RelayError
from relaytui.wire.status import ACTIVE, OrderKind, Outcome


def unknown_run(run_id: str) -> RelayError:
    return RelayError("unknown_run", f"no run {run_id}", "see `relay-tui runs`", status=404)


def _again(run: Run) -> str:
    return f"`relay-tui requeue {run.run_id}` queues it again"


def conflict(code: str, message: str, hint: str) -> RelayError:
    return RelayError(code, message, hint, status=409)


def _either(rule: OrderRule) -> str:
    return " or ".join(sorted(rule.before))


class Orders:
    def __init__(self, writer: Writer, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock

    async def force(
        self,
        run_id: str,
        expected_epoch: int,
        by: str,
        why: str,
        *,
        pod_gone: bool,
        told: endings.Told | None = None,
    ) -> Run:
        """The run with the burned epoch; RelayError 404, or 409 where it is not as the operator saw it. `told`: the
        last step of the run that was heard of."""

        def unit(tx: Tx) -> Run:
            run = self._expected(tx, run_id, expected_epoch)
            return self.force_in(tx, run, by, why, pod_gone=pod_gone, told=told)

        return await self._writer.run(unit)

    def force_in(self, tx: Tx, run: Run, by: str, why: str, *, pod_gone: bool, told: endings.Told | None = None) -> Run:
        """Burns an epoch: whatever the old holder says from this commit on changes nothing."""
        if run.status.ended:
            raise conflict("ended", f"run {run.run_id} is {run.status}", _again(run))
        at = self._clock.wall()
        message = f"forced by {by}"
        lease = runs.get_lease(tx, run.run_id)
        called_off = attempts.in_force(tx, run.run_id, lease.epoch, OrderKind.CANCEL) if lease is not None else None
        if lease is not None and lease.state in (LeaseState.HELD, LeaseState.REVOKED):
            attempt = attempts.get(tx, run.run_id, lease.epoch)
            assert attempt is not None
            if lease.state is LeaseState.HELD:
                attempts.give_order(tx, attempt, OrderKind.STOP, by, why, at)
            if pod_gone:
                gone = endings.vanished(run, attempt, told, f"{by} said that its pod is gone")
                endings.end_attempt(tx, attempt, Outcome.SUPERSEDED, at, gone)
                runs.save_lease(tx, replace(lease, state=LeaseState.RELEASED))
                message = endings.vanished(run, attempt, told, f"{message}: {lease.worker}'s pod is gone")
            else:
                runs.save_lease(tx, replace(lease, state=LeaseState.REVOKED))
                message += f": waits for {lease.worker} to stop"
        elif lease is not None and lease.state is LeaseState.EXPIRED:
            # Its holder may come back and must find that it lost.
            runs.save_lease(tx, replace(lease, state=LeaseState.RELEASED))
        run = replace(change(run, Cause.FORCED, at, message), epoch=max(run.epoch, history.epoch_floor(tx)) + 1)
        runs.save(tx, run)
        data = {"why": why, "pod_gone": "yes" if pod_gone else "no"}
        if lease is not None:
            data["holder"] = lease.worker
        history.add_event(tx, at, "lease.forced", by, why or message, run.run_id, run.epoch, data)
        return run if called_off is None else endings.call_off(tx, run, called_off.by, at)

    async def requeue(self, run_id: str, expected_epoch: int, by: str, why: str) -> None:
        """An ended run waits for an agent again; RelayError 404, or 409 where it has not ended or changed meanwhile."""

        def unit(tx: Tx) -> None:
            run = self._expected(tx, run_id, expected_epoch)
            if not run.status.ended:
                raise conflict("not_ended", f"run {run_id} is {run.status}", "there is nothing to queue again")
            self.requeue_in(tx, run, by, why)

        await self._writer.run(unit)

    def requeue_in(self, tx: Tx, run: Run, by: str, why: str) -> None:
        """A terminal status is final for its epoch; the next grant has a higher one. RelayError 409: it is held."""
        lease = runs.get_lease(tx, run.run_id)
        if lease is not None and lease.state in (LeaseState.HELD, LeaseState.REVOKED):
            raise conflict(
                "held", f"run {run.run_id} is {run.status}, and {lease.worker} still has its lease",
                "wait until its trainer has stopped",
            )  # fmt: skip
        at = self._clock.wall()
        message = f"queued again by {by}"
        runs.save(tx, change(run, Cause.REQUEUED, at, message))
        data = {"was": str(run.status)}
        history.add_event(tx, at, "run.requeued", by, why or message, run.run_id, run.epoch, data)

    async def give(self, kind: OrderKind, run_id: str, expected_epoch: int, by: str, why: str) -> PendingOrder | None:
        """The order that was given; asked again while it is in force, the same one. None: it is done already, as nobody
        had to be asked. RelayError 404, or 409 where it is not as the operator saw it or does not fit."""
        return await self._writer.run(lambda tx: self._give_in(tx, kind, run_id, expected_epoch, by, why))

    def _give_in(
        self, tx: Tx, kind: OrderKind, run_id: str, expected_epoch: int, by: str, why: str
    ) -> PendingOrder | None:
        rule = ORDERS[kind]
        run = self._expected(tx, run_id, expected_epoch)
        at = self._clock.wall()
        if rule.waiting is not None and allowed(run.status, rule.waiting):
            endings.call_off(tx, run, by, at, why)
            return None
        lease = runs.get_lease(tx, run_id)
        if run.status not in ACTIVE or lease is None or lease.state is not LeaseState.HELD:
            hint = _again(run) if run.status.ended else f"there is nothing to {kind}"
            raise conflict("not_held", f"run {run_id} is {run.status}: nobody holds it", hint)
        if lease.incarnation.startswith(ORIGINALS):
            hint = "force-acquire takes the run over"
            raise conflict(f"cannot_{kind}", f"{lease.worker} speaks the original protocol and takes no orders", hint)
        order = attempts.in_force(tx, run_id, lease.epoch, kind)
        if order is not None:
            return order
        if run.status not in rule.before:
            raise conflict("not_now", f"run {run_id} is {run.status}", f"one that is {_either(rule)} can {kind}")
        attempt = attempts.get(tx, run_id, lease.epoch)
        assert attempt is not None
        if rule.asked is not None:
            runs.save(tx, change(run, rule.asked, at, f"{rule.asked} by {by}"))
        words = why or rule.words.format(worker=lease.worker)
        history.add_event(tx, at, rule.event, by, words, run_id, lease.epoch, {"worker": lease.worker})
        return attempts.give_order(tx, attempt, kind, by, why, at)

    async def acknowledge(self, order_id: int, incarnation: str, accepted: bool, message: str) -> None:
        """An answer to an order that is not open for this agent changes nothing."""

        def unit(tx: Tx) -> None:
            order = attempts.unanswered(tx, order_id, incarnation)
            if order is None:
                return
            at = self._clock.wall()
            attempts.answer_order(tx, order, accepted, message, at)
            attempt = attempts.get(tx, order.run_id, order.epoch)
            worker = attempt.worker if attempt is not None else endings.COMMANDER
            data = {"order": str(order.kind)}
            if accepted:
                if message:
                    history.add_event(tx, at, "order.acknowledged", worker, message, order.run_id, order.epoch, data)
                return
            said = message or "no reason given"
            history.add_event(tx, at, "order.refused", worker, said, order.run_id, order.epoch, data)
            self._refused(tx, order, said, at)

        await self._writer.run(unit)

    def _refused(self, tx: Tx, order: PendingOrder, said: str, at: float) -> None:
        """The run goes on as before, unless a weightier order still stands."""
        run, rule = runs.get(tx, order.run_id), ORDERS.get(order.kind)
        if run is None or rule is None or rule.refused is None or run.epoch != order.epoch:
            return
        stands = any(attempts.in_force(tx, order.run_id, order.epoch, kind) for kind in LASTING)
        if allowed(run.status, rule.refused) and not stands:
            runs.save(tx, change(run, rule.refused, at, f"{rule.refused}: {said}"))

    def _expected(self, tx: Tx, run_id: str, expected_epoch: int) -> Run:
        run = runs.get(tx, run_id)
        if run is None:
            raise unknown_run(run_id)
        if run.epoch != expected_epoch:
            raise conflict(
                "epoch_changed", f"run {run_id} is at epoch {run.epoch}, not {expected_epoch}", "look again and decide"
            )
        return run
