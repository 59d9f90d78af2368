"""The guardian: a small process between agent and trainer, so that neither can hurt the other by dying or being slow.

Run by path as `python -I -S guardian FD LOG GUARD GRACE ORPHAN FOLDER [pty] -- ARGV…` with the trainer's environment
as its own. Standard library only and few modules: it lives as long as the trainer, on the trainer's memory. It

- starts the trainer in a session of its own and owns every process that comes of it (subreaper, marker in the
  environment, a control group where one can be made),
- reads what the trainer prints, appends it to the log on the volume from a thread of its own, and passes it on to the
  agent, skipping what a slow agent does not take (the agent then reads it from the log),
- stops the whole tree on the agent's word, at the deadline the agent gave it, or when there was no agent for ORPHAN
  seconds: a new one takes over through a socket in FOLDER, where its first word is GUARD (`-`: none can, and the
  trainer is stopped at once),
- says when nothing is left of the tree, and leaves word in FOLDER of how it ended.

Its end is the trainer's (PDEATHSIG): once there is one, no byte from a socket and no failing call ends it. What fails
is said on stderr and to the agent, and everything else goes on being served.
"""

from __future__ import annotations

# ruff: noqa: SIM105 - contextlib is not worth its memory here
import os
import select
import signal
import time

from relay_agent.guardian.line import CALLER_SPEAKS, CALLERS, Line
from relay_agent.guardian.log import LOG_QUEUE, Log
from relay_agent.guardian.output import Output
from relay_agent.guardian.processes import (
    PR_SET_CHILD_SUBREAPER,
    boot_clock,
    give_way,
    prctl,
    signal_all,
)
from relay_agent.guardian.protocol import (
    ALONE,
    ASKED,
    DEADLINE,
    EARLY,
    EXITED,
    GATHER,
    GONE,
    KILL,
    LEAVE,
    LEAVE_MOST,
    LOG_LOST,
    NOTICE,
    OOM,
    REFUSED,
    SIGNALLED,
    STARTED,
    STOP,
    TAKE,
    TAKEN,
    TROUBLE,
)
from relay_agent.guardian.trainer import RECENT, Trainer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

FOR_EVER = 1e12
"""Seconds: no deadline lies beyond."""
TRIES = 100
"""How often what the trainer left is looked for where the system does not let us look."""
TAKES = 16
"""Questions for what was printed that wait for a slow volume: the answer to a later one is that to those before it."""
LEFTOVER_GRACE = 3.0  # seconds for what a trainer leaves behind: to end by itself, and between SIGTERM and SIGKILL
LOOKS = 0.5
"""Seconds between two looks at what may end by itself: each reads /proc whole, and a child's end is heard at once."""


class Guardian:
    def __init__(
        self, fd: int, log: str, guard: str, grace: float, orphan: float, folder: str, argv: list[str], pty: bool
    ) -> None:
        self.line = Line(fd, folder)
        self.deadline = 0.0  # on the boot clock
        self.why = "itself"  # it ended
        self.log = Log(log)
        self.guard = guard
        self.grace = self.notice = grace
        self.orphan = orphan
        self.pty = pty
        self.trainer = Trainer(argv, guard, pty=pty)
        self.output = Output(-1, pty=pty)
        self.takes: list[tuple[bytes, int]] = []  # not answered yet: the number, and up to which byte it is about
        self.told_trouble = ""
        self.said = ""  # what went wrong last
        self.kill_at: float | None = None
        self.leave_until = 0.0  # what it left behind
        self.left_alone = False  # it was stopped for want of an agent

    # -- the trainer ---------------------------------------------------------------------------------------------

    def start(self) -> bool:
        """False, with the reason sent, where there is nothing to start."""
        try:
            self.output = Output(self.trainer.begin(), pty=self.pty)
        except OSError as error:
            self.line.tell(REFUSED, f"{error.errno} {error.strerror}".encode())
            return False
        self.line.tell(STARTED, str(self.trainer.pid).encode())
        return True

    def reap(self) -> bool:
        """Collect every dead child; say so where it was the trainer itself. False: nobody of the tree is left."""
        lived = self.trainer.code is None
        left = self.trainer.reap()
        if lived and self.trainer.code is not None:
            self._heed_beside()
            if self.why == "itself" and self.trainer.oom:
                self.why = "oom"
            self._guarded(self.drain_all)  # who hears of its end has heard what it had to say
            self._tell_end()
        return left

    def _heed_beside(self) -> None:
        """Who stops it past us leaves word before that."""
        if self.why == "itself" and self._guarded(self.line.asked_beside):
            self.why = "order"

    def _tell_end(self) -> None:
        if self.why == "oom":
            self.line.tell(OOM, b"")
        elif self.why != "itself":
            self.line.tell(ASKED, self.why.encode())
        if self.trainer.signalled:
            self.line.tell(SIGNALLED, b"")
        self.line.tell(EXITED, str(self.trainer.code).encode())

    def stop(self, grace: float, why: str) -> None:
        """SIGTERM now, SIGKILL to the whole tree when `grace` seconds have passed, or at the deadline where that is
        sooner: another one may be told next. Asking again only shortens it."""
        if self.deadline:
            grace = min(grace, max(0.0, self.deadline - EARLY - boot_clock()))
        at = time.monotonic() + grace
        if self.kill_at is None:
            if self.trainer.code is None:
                self.why = why
            self.trainer.signal(signal.SIGTERM)
            self.trainer.signal(signal.SIGCONT)
        self.kill_at = at if self.kill_at is None else min(self.kill_at, at)

    # -- output --------------------------------------------------------------------------------------------------

    def drain(self) -> bool:
        """Take one chunk of what the trainer printed; False when there is none for now."""
        data = self.output.take() if self.output.fd >= 0 else b""
        if data:
            self.log.put(self.line.output(data), data)
        if self.takes:
            self._answer(all_taken=not data)
        return bool(data)

    def drain_all(self) -> None:
        """What there is by now, as far as the volume is not behind already."""
        for _ in range(LOG_QUEUE):
            if self.log.waiting >= LOG_QUEUE or not self.drain():
                break

    def _answer(self, all_taken: bool) -> None:
        """Those who asked for what was printed before that, once it is taken."""
        answered = [number for number, end in self.takes if all_taken or end <= self.line.printed]
        if answered:
            del self.takes[: len(answered)]
            self.line.tell_printed()
            self.line.tell(TAKEN, answered[-1])

    # -- the agent -----------------------------------------------------------------------------------------------

    def greet(self) -> None:
        """A new agent: it hears what there is to know, and reads from the log what it missed."""
        self.told_trouble = ""
        self.output.gather = 0.0  # as for every agent, until it says otherwise
        self.takes.clear()  # it counts its own anew
        self.line.tell(STARTED, str(self.trainer.pid).encode())
        self.line.tell_printed()
        if self.trainer.code is not None:
            self._tell_end()

    def obey(self, order: bytes) -> None:
        if order == KILL:
            self.stop(0.0, "order")
        elif order == STOP:
            self.stop(self.grace, "order")
        elif order.startswith(TAKE):
            self.takes[TAKES - 1 :] = [(order[1:], self.line.printed + self.output.holds)]
            self._guarded(self.drain_all)
        elif order[:1] in (DEADLINE, NOTICE, GATHER, LEAVE):
            try:
                seconds = float(order[1:])
            except ValueError:
                return
            if not 0.0 <= seconds < FOR_EVER:
                return
            if order.startswith(DEADLINE):
                self.deadline = seconds
            elif order.startswith(NOTICE):
                self.notice = min(self.grace, seconds)
            elif order.startswith(LEAVE):
                self.leave_until = time.monotonic() + min(seconds, LEAVE_MOST)
            else:
                self.output.gather = seconds

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> int:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        os.set_inheritable(self.line.fd, False)  # a trainer that held it would hide our death from the agent
        wake, waker = os.pipe()
        for fd in (wake, waker, self.line.fd):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for name in ("SIGCHLD", "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
            signal.signal(getattr(signal, name), lambda number, frame: None)  # the agent decides; none of it ends us
        if self.line.folder == "-":
            self.orphan = 0.0
        elif alone := self.line.listen():  # without that, this agent's end is the trainer's
            self.orphan = 0.0
            self.line.tell(ALONE, alone)
        if not self.start():
            self._finish(0)
            return 127
        self.log.start()
        while self.trainer.code is None:
            self._wait(wake)
        self._finish(self._guarded(self._sweep, wake) or 0)
        return 0

    def _guarded(self, work: Callable[..., T], *args: object) -> T | None:
        """What `work` gives. Where it fails that is said, and everything else goes on: nobody but us keeps the trainer
        alive, and what fails now may not fail later."""
        try:
            return work(*args)
        except Exception as error:  # noqa: BLE001
            words = f"{type(error).__name__} in {getattr(work, '__name__', work)}: {error}"
            if words != self.said:
                self.said = words
                try:
                    os.write(2, os.fsencode(f"relay-guardian: {words}\n"))
                except OSError:
                    pass
                self.line.tell(TROUBLE, os.fsencode(words))
            time.sleep(0.02)
            return None

    def _wait(self, wake: int, at_most: float | None = None) -> None:
        """Serve whatever comes first: output, the agent, a dead child, a deadline."""
        for fd, events in self._guarded(self._ready, wake, at_most) or ():
            self._guarded(self._serve, fd, events, wake)
        self._guarded(self.reap)
        self._guarded(self._on_time)

    def _ready(self, wake: int, at_most: float | None) -> list[tuple[int, int]]:
        poll, line = select.poll(), self.line
        poll.register(wake, select.POLLIN)
        full = self.log.waiting >= LOG_QUEUE  # the volume hangs: the trainer waits, orders are still obeyed
        pause = 0.0
        if self.output.fd >= 0 and not full and (self.takes or not (pause := self.output.pause())):
            poll.register(self.output.fd, select.POLLIN)
        if not line.alone:
            poll.register(line.fd, select.POLLIN | (select.POLLOUT if line.pending else 0))
        elif line.listening >= 0:
            if len(line.callers) < CALLERS:
                poll.register(line.listening, select.POLLIN)
            for caller in line.callers:
                poll.register(caller, select.POLLIN)
        limits = [at_most, pause or None, 0.05 if full else 0.0 if self.takes else None]
        limits.append(0.5 if self.deadline else None)  # poll does not count suspend
        limits.append(RECENT if self.trainer.code is None else None)
        limits += [max(0.0, at - time.monotonic()) for at in (self.kill_at, self._stop_at()) if at is not None]
        limits += [max(0.0, since + CALLER_SPEAKS - time.monotonic()) for since in line.callers.values()]
        timeout = min((limit for limit in limits if limit is not None), default=None)
        return poll.poll(None if timeout is None else timeout * 1000 + 1)

    def _serve(self, fd: int, events: int, wake: int) -> None:
        if fd == wake:
            try:
                os.read(wake, 4096)
            except BlockingIOError:
                pass
        elif fd == self.output.fd:
            self.drain()
        elif fd == self.line.listening:
            self.line.accept()
        elif fd in self.line.callers:
            if self.line.greeted(fd, self.guard):
                self.left_alone = False
                self.greet()
        elif fd == self.line.fd:
            if events & select.POLLOUT:
                self.line.flush()
            if events & ~select.POLLOUT:
                for order in self.line.orders():
                    self.obey(order)

    def _stop_at(self) -> float | None:
        """When the trainer is to be stopped for want of an agent."""
        lost_at = self.line.lost_at
        return None if lost_at is None or self.left_alone else lost_at + self.orphan

    def _on_time(self) -> None:
        """What is due by now."""
        now = time.monotonic()
        self.trainer.look()
        self.line.drop_silent()
        stop_at = self._stop_at()
        if stop_at is not None and now >= stop_at:
            self.left_alone = True
            self.stop(self.grace if self.orphan else min(self.grace, LEFTOVER_GRACE), "orphan")
        if self.deadline:
            left = self.deadline - EARLY - boot_clock()
            if left <= (self.notice if self.kill_at is None else self.grace):
                self.deadline = 0.0
                self.stop(max(0.0, left), "deadline")
        if self.kill_at is not None and now >= self.kill_at and self.trainer.code is None:
            self.kill_at = now + 0.05
            self.trainer.kill()
        if self.log.trouble != self.told_trouble:
            self.told_trouble = self.log.trouble
            self.line.tell(LOG_LOST, os.fsencode(self.told_trouble))
        if self.takes:
            self.drain_all()

    def _sweep(self, wake: int) -> int:
        """Stop what the trainer left behind until two looks in a row find nothing. Returns how many there were.

        What it left when it had ended well by itself, a saving child or a flushing one, may end by itself first, and
        has longer where its agent says so. Whom a look misses a child that is not collected tells of, or a group that
        is not empty."""
        asked: set[int] = set()
        may_end = self.trainer.code == 0 and self.why == "itself"
        ends_by = time.monotonic() + LEFTOVER_GRACE
        kill_at = 0.0
        empty = blind = 0
        while empty < 2 and blind < TRIES:
            hidden = self.reap() or self.trainer.populated
            left = self._guarded(self.trainer.left)
            if left is None:
                blind += 1
                continue
            if not left and not hidden:
                empty += 1
                continue
            empty = 0
            now = time.monotonic()
            until = max(ends_by, self.leave_until)
            if may_end and self.kill_at is None and now < until:
                self._wait(wake, min(LOOKS, until - now))  # the end of a child wakes us
                continue
            may_end = False  # who was told to end does
            kill_at = kill_at or now + min(self.grace, LEFTOVER_GRACE)
            killing = now >= kill_at or (self.kill_at is not None and now >= self.kill_at)
            signal_all(left if killing else left - asked, signal.SIGKILL if killing else signal.SIGTERM)
            if killing:
                self.trainer.kill_group()
            asked |= left
            self._wait(wake, 0.02)
        self.trainer.kill_group()  # whoever no look has seen
        self.trainer.failed -= asked
        return len(asked)

    def _finish(self, stopped: int) -> None:
        """Take the last of the output, close the log, say the last word. `stopped`: of what it left behind."""
        leftovers = stopped + len(self.trainer.failed) + self.trainer.lost
        self._guarded(self.trainer.remove_group)
        hung_at = time.monotonic() + 10.0
        while self.log.waiting < LOG_QUEUE or time.monotonic() < hung_at:
            if self.log.waiting >= LOG_QUEUE:
                time.sleep(0.02)
            elif not self._guarded(self.drain):
                break
        if self.trainer.code is not None:
            self._heed_beside()  # what it left may have been
            cut = " leftovers" if leftovers else ""
            cut = cut if self.why in ("itself", "oom") else f" {self.why}"
            self.log.close(10.0, f"{self.trainer.code}{cut}")
            self.line.leave_word(f"{self.trainer.code} {self.line.printed} {leftovers} {self.why}\n")
        if not self.line.alone:
            os.set_blocking(self.line.fd, True)
        if self.log.trouble != self.told_trouble:
            self.line.tell(LOG_LOST, os.fsencode(self.log.trouble))
        self.line.tell_printed()
        self.line.tell(GONE, f"{leftovers} {stopped}".encode())


def main(argv: list[str]) -> int:
    options, trainer = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    fd, log, guard, grace, orphan, folder, *more = options
    try:
        with open("/proc/self/comm", "w") as file:  # noqa: PTH123 - `pkill python` in a trainer's script must not hit this
            file.write("relay-guardian")
    except OSError:
        pass
    give_way()
    made = Guardian(int(fd), log, guard, float(grace), float(orphan), folder, trainer, "pty" in more)
    for order in more:
        made.obey(order.encode())
    return made.run()
