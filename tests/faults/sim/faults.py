"""What goes wrong, when, and to whom: drawn from the seed. A world suffers some kinds only, so that others show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from relaytui.wire.errors import RelayError
from relaytui.wire.status import OrderKind
from tests.faults.sim.loop import Host
from tests.faults.sim.pod import PodHost

if TYPE_CHECKING:
    from tests.faults.sim.world import World

SLOW = 0.6


class Faults:
    def __init__(self, world: World) -> None:
        self.world = world
        self.loop = world.loop
        self.counts: Counter[str] = Counter()
        self.volume_full = False
        self.kinds: dict[str, Callable[[], bool]] = {
            "agent crash": self._crash_agent,
            "agent crash in a system call": self._crash_in_call,
            "agent SIGTERM": self._sigterm,
            "agent SIGSTOP": self._stop_agent,
            "trainer crash": self._crash_trainer,
            "pod frozen": self._freeze_pod,
            "pod lost": self._lose_pod,
            "pod power cut": self._power_cut,
            "commander crash": self._crash_commander,
            "commander SIGSTOP": self._stop_commander,
            "laptop sleeps": self._sleep,
            "laptop reboots": self._reboot,
            "partition": self._partition,
            "one-way partition": self._one_way,
            "connection reset": self._reset,
            "messages late": self._late,
            "wall clock step": self._step_clock,
            "volume full": self._fill_volume,
            "pod disk full": self._fill_pod,
            "commander disk full": self._fill_commander,
            "slow disks": self._slow,
            "force-acquire": self._force,
            "force-acquire, pod gone": self._force_gone,
            "drain": self._drain,
            "restored backup": self._restore,
        }
        self._chosen: list[str] = []

    # -- when ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        rng, names = self.loop.rng, list(self.kinds)
        self._chosen = rng.sample(names, rng.randint(2, 7))
        if rng.random() < 0.1:
            self._chosen = names
        if self.world.bug is not None and self.world.bug.kinds:
            self._chosen = list(self.world.bug.kinds)
        self.every = rng.uniform(1.2, 8.0 if self.world.bug is None else 2.0)
        self._later(rng.expovariate(1 / self.every), self._next)
        self.loop.at(self.world.plan.faulty_for, self._heal_all)
        if "restored backup" in self._chosen:
            self._later(rng.uniform(5, 15), self.world.commander.back_up)

    def _next(self) -> None:
        if self.loop.now >= self.world.plan.faulty_for:
            return
        name = self.loop.rng.choice(self._chosen)
        if self.kinds[name]():
            self.counts[name] += 1
            self.world.log(None, f"FAULT {name}")
        self._later(self.loop.rng.expovariate(1 / self.every), self._next)

    def _later(self, seconds: float, do: Callable[[], object]) -> None:
        self.loop.at(self.loop.now + seconds, do)

    def _for_a_while(self, undo: Callable[[], object]) -> None:
        """A moment, or longer than a lease; never beyond the time of faults."""
        rng, lease = self.loop.rng, self.world.plan.lease
        seconds = rng.choice([rng.uniform(0.05, 1), rng.uniform(0.1, 1) * lease, rng.uniform(1, 2.5) * lease])
        self._later(min(seconds, max(0.0, self.world.plan.faulty_for - self.loop.now)), undo)

    def _heal_all(self) -> None:
        world = self.world
        self.volume_full = False
        world.commander.fill_disk(False)
        world.net.heal()
        world.net.spike = 0.0
        self.loop.thread_delay = 0.002
        self._wake(world.commander.host)
        for process in self.loop.processes:
            process.stopped = False
        for pod in world.pods:
            pod.full = False
            pod.thaw()
        if not world.commander.runs:
            self._start_commander()
        if not any(pod.up for pod in world.pods):
            world.new_pod()
        world.log(None, "all faults cease")

    # -- to whom -------------------------------------------------------------------------------------------------

    def _pod(self) -> PodHost | None:
        pods = [pod for pod in self.world.pods if pod.up]
        return self.loop.rng.choice(pods) if pods else None

    def _busy(self) -> PodHost | None:
        """A pod with an agent; mostly the one whose agent holds the run."""
        pods = [pod for pod in self.world.pods if pod.up and pod.agent is not None and pod.agent.alive]
        training = [pod for pod in pods if any(not guard.gone for guard in pod.guardians)]
        rng = self.loop.rng
        return rng.choice(training if training and rng.random() < 0.8 else pods) if pods else None

    # -- agents, trainers and pods -------------------------------------------------------------------------------

    def _crash_trainer(self) -> bool:
        """In the middle of whatever it does; its agent may be away, frozen or cut off."""
        pod = self._busy()
        running = [guard for guard in pod.guardians if guard.code is None and guard.process.alive] if pod else []
        if not running:
            return False
        guard = self.loop.rng.choice(running)
        guard.exited(self.loop.rng.choice([1, 137, 139]))
        return True

    def _crash_agent(self) -> bool:
        pod = self._busy()
        if pod is None or pod.agent is None:
            return False
        pod.agent.steps_left = self.loop.rng.choice([1, self.loop.rng.randint(1, 40), self.loop.rng.randint(1, 400)])
        return True

    def _crash_in_call(self) -> bool:
        pod = self._busy()
        if pod is None or pod.agent is None:
            return False
        pod.agent.calls_left = self.loop.rng.randint(1, 40)
        return True

    def _sigterm(self) -> bool:
        pod = self._busy()
        if pod is None:
            return False
        pod.sigterm()
        if self.loop.rng.random() < 0.3:
            self._later(self.loop.rng.uniform(0, 3), pod.sigterm)
        return True

    def _stop_agent(self) -> bool:
        pod = self._busy()
        if pod is None or pod.agent is None:
            return False
        agent = pod.agent
        agent.stopped = True

        def go_on() -> None:
            agent.stopped = False

        self._for_a_while(go_on)
        return True

    def _freeze_pod(self) -> bool:
        pod = self._busy()
        if pod is None or pod.frozen:
            return False
        pod.freeze(counts=self.loop.rng.random() < 0.5)
        self._for_a_while(pod.thaw)
        return True

    def _lose_pod(self) -> bool:
        pod = self._busy()
        if pod is None:
            return False
        pod.lose()
        self._later(self.loop.rng.uniform(0.5, 10), self.world.new_pod)
        return True

    def _power_cut(self) -> bool:
        pod = self._busy()
        if pod is None:
            return False
        pod.power_cut()

        def back() -> None:
            pod.reboot()
            pod.start_agent()

        self._later(self.loop.rng.uniform(0.5, 5), back)
        return True

    # -- the commander -------------------------------------------------------------------------------------------

    def crash_commander(self) -> None:
        commander = self.world.commander
        commander.crash()
        self.world.observer.judge_books()
        rng = self.loop.rng
        down = rng.choice([rng.uniform(0.05, 2), rng.uniform(0.1, 1.5) * self.world.plan.lease])
        self._later(down, self._start_commander)

    def _start_commander(self) -> None:
        commander = self.world.commander
        if not commander.runs:
            self.world.log(None, "the commander starts")
            commander.start()

    def _crash_commander(self) -> bool:
        process = self.world.commander.process
        if process is None or not process.alive:
            return False
        process.steps_left = self.loop.rng.choice([1, self.loop.rng.randint(1, 200)])
        return True

    def _stop_commander(self) -> bool:
        process = self.world.commander.process
        if process is None or not process.alive:
            return False
        process.stopped = True

        def go_on() -> None:
            process.stopped = False

        self._for_a_while(go_on)
        return True

    def _sleep(self) -> bool:
        host = self.world.commander.host
        if host.frozen:
            return False
        host.freeze(counts=False)
        self._for_a_while(lambda: self._wake(host))
        return True

    def _wake(self, host: Host) -> None:
        host.thaw()

    def _reboot(self) -> bool:
        commander = self.world.commander
        if not commander.runs:
            return False
        self.crash_commander()
        commander.host.reboot()
        return True

    def _restore(self) -> bool:
        commander, observer = self.world.commander, self.world.observer
        if observer.restored or not commander.runs or commander.full:
            return False
        commander.crash()
        observer.judge_books()
        done = commander.restore()
        if done:
            observer.restore()
            for (_, name), stream in observer.streams.items():
                if name == "state":
                    stream.acked = 0
        self._later(1.0, self._start_commander)
        return done

    # -- the network and clocks ----------------------------------------------------------------------------------

    def _partition(self) -> bool:
        return self._cut(both=True)

    def _one_way(self) -> bool:
        return self._cut(both=False)

    def _cut(self, *, both: bool) -> bool:
        pod = self._pod()
        if pod is None:
            return False
        ends = [pod, self.world.commander.host]
        self.loop.rng.shuffle(ends)
        self.world.net.cut(ends[0], ends[1], both=both)
        self._for_a_while(lambda: self.world.net.heal(pod))
        return True

    def _reset(self) -> bool:
        pod = self._pod()
        if pod is None:
            return False
        self.world.net.reset(pod)
        return True

    def _late(self) -> bool:
        net = self.world.net
        net.spike = self.loop.rng.choice([0.02, 0.2])

        def undo() -> None:
            net.spike = 0.0

        self._for_a_while(undo)
        return True

    def _step_clock(self) -> bool:
        host = self.loop.rng.choice([self.world.commander.host, *self.world.pods])
        host.stepped += self.loop.rng.choice([-7200.0, 7200.0, -1.0, 1e9])
        return True

    # -- disks ---------------------------------------------------------------------------------------------------

    def _fill_volume(self) -> bool:
        self.volume_full = True

        def undo() -> None:
            self.volume_full = False

        self._for_a_while(undo)
        return True

    def _fill_pod(self) -> bool:
        pod = self._pod()
        if pod is None:
            return False
        pod.full = self.world.observer.spool_failed = True

        def undo() -> None:
            pod.full = False

        self._for_a_while(undo)
        return True

    def _fill_commander(self) -> bool:
        commander = self.world.commander
        commander.fill_disk(True)
        self._for_a_while(lambda: commander.fill_disk(False))
        return True

    def _slow(self) -> bool:
        self.loop.thread_delay = SLOW

        def undo() -> None:
            self.loop.thread_delay = 0.002

        self._for_a_while(undo)
        return True

    # -- an operator ---------------------------------------------------------------------------------------------

    def _force(self) -> bool:
        return self._operator(gone=False)

    def _force_gone(self) -> bool:
        return self._operator(gone=True)

    def _operator(self, *, gone: bool) -> bool:
        commander = self.world.commander
        core = commander.core
        view = core.board.runs.get(self.world.plan.run_id) if core is not None else None
        if core is None or view is None or commander.process is None:
            return False
        epoch = view.run.epoch

        async def act() -> None:
            self.world.observer.ordered(epoch)
            if gone:
                self.world.observer.overridden(epoch)
            try:
                await core.orders.force(self.world.plan.run_id, epoch, "op", "because", pod_gone=gone)
            except RelayError as error:
                self.world.log(commander.process, f"force: {error}")

        commander.process.spawn(act(), "force")
        return True

    def _drain(self) -> bool:
        commander = self.world.commander
        core = commander.core
        view = core.board.runs.get(self.world.plan.run_id) if core is not None else None
        if core is None or view is None or commander.process is None:
            return False
        epoch = view.run.epoch

        async def act() -> None:
            self.world.observer.ordered(epoch)
            try:
                await core.orders.give(OrderKind.DRAIN, self.world.plan.run_id, epoch, "op", "because")
            except RelayError as error:
                self.world.log(commander.process, f"drain: {error}")

        commander.process.spawn(act(), "drain")
        return True
