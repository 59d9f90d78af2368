"""The guardian: a small process between agent and trainer, so that neither can hurt the other by dying or being slow.

Run by path as `python -I -S guardian FD LOG GUARD GRACE ORPHAN FOLDER -- ARGV…` with the trainer's environment as
its own. Standard library only and few modules: it lives as long as the trainer, on the trainer's memory. It

- starts the trainer in a session of its own and owns every process that comes of it (subreaper, marker in the
  environment, a control group where one can be made),
- reads what the trainer prints, appends it to the log on the volume from a thread of its own, and passes it on to the
  agent, skipping what a slow agent does not take (the agent then reads it from the log),
- stops the whole tree on the agent's word, at the deadline the agent gave it, or when there was no agent for ORPHAN
  seconds: a new one takes over through a socket in FOLDER (`-`: none can, and the trainer is stopped at once),
- says when nothing is left of the tree, and leaves word in FOLDER of how it ended.
"""

from __future__ import annotations

# ruff: noqa: SIM105 - contextlib is not worth its memory here
import fcntl
import os
import select
import signal
import time

from relay_agent.guardian import cgroup
from relay_agent.guardian.files import OURS
from relay_agent.guardian.log import LOG_QUEUE, Log
from relay_agent.guardian.processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    boot_clock,
    prctl,
    signal_all,
    tree,
)
from relay_agent.guardian.protocol import (
    ALONE,
    CHUNK,
    DEADLINE,
    EARLY,
    ENDED,
    EXITED,
    GONE,
    HEADER,
    KILL,
    LOG_LOST,
    OUTPUT,
    REFUSED,
    SOCKET,
    STARTED,
    STOP,
)

PIPE = 1 << 20
RUSH = 8
"""Reads in a row, each within RUSH_GAP seconds of the last, after which output is let gather for RUSH_PAUSE: a trainer
that prints without pause costs little, and one that prints now and then is heard at once."""
RUSH_GAP, RUSH_PAUSE = 0.001, 0.002
LEFTOVER_GRACE = 3.0  # seconds between SIGTERM and SIGKILL for what a trainer leaves behind, or an agent leaves alone


class Guardian:
    def __init__(
        self, fd: int, log: str, guard: str, grace: float, orphan: float, folder: str, argv: list[str]
    ) -> None:
        self.agent = fd
        self.folder = folder
        self.listening = -1
        self.heard = b""  # half a line of the agent's
        self.deadline = 0.0  # on the boot clock
        self.why = "itself"  # it ended
        self.log = Log(log)
        self.guard = guard
        self.group = ""  # the trainer's own, where the system gives one
        self.grace = grace
        self.orphan = orphan
        self.argv = argv
        self.pid = 0
        self.code: int | None = None
        self.out = -1
        self.printed = 0
        self.read_at = 0.0
        self.rush = 0
        self.pending = b""  # what the agent has not taken yet
        self.skipped = False  # it missed some output and has to be told how far it got
        self.told_trouble = ""
        self.kill_at: float | None = None
        self.stop_at: float | None = None  # the agent is gone: when to stop the trainer
        self.alone = False

    # -- the trainer ---------------------------------------------------------------------------------------------

    def start(self) -> bool:
        """Fork and exec; False with the reason sent when there is nothing to exec."""
        read, write = os.pipe()
        failed, fail = os.pipe()
        parent = os.getpid()
        self.group = cgroup.make(self.guard)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                cgroup.enter(self.group)
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(127)
                for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGCHLD", "SIGPIPE", "SIGXFSZ"):  # as Python found them
                    signal.signal(getattr(signal, name), signal.SIG_DFL)
                null = os.open("/dev/null", os.O_RDONLY)
                os.dup2(null, 0)
                os.dup2(write, 1)
                os.dup2(write, 2)
                os.execvpe(self.argv[0], self.argv, os.environ)  # noqa: S606
            except OSError as error:
                os.write(fail, f"{error.errno} {error.strerror}".encode())
            finally:
                os._exit(127)
        os.close(write)
        os.close(fail)
        self.out = read
        reason = os.read(failed, 4096)
        os.close(failed)
        if reason:
            os.waitpid(self.pid, 0)
            self.tell(REFUSED, reason)
            return False
        os.set_blocking(self.out, False)
        try:
            fcntl.fcntl(self.out, getattr(fcntl, "F_SETPIPE_SZ", 1031), PIPE)
        except OSError:
            pass  # a smaller pipe does too
        self.tell(STARTED, str(self.pid).encode())
        return True

    def reap(self) -> None:
        """Collect every dead child; note how the trainer itself ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid and self.code is None:
                code = os.waitstatus_to_exitcode(status)
                self.code = code if code >= 0 else 128 - code
                self.tell(EXITED, str(self.code).encode())

    def stop(self, grace: float, why: str) -> None:
        """SIGTERM now, SIGKILL to the whole tree when `grace` seconds have passed. Asking again only shortens it."""
        at = time.monotonic() + grace
        if self.kill_at is None:
            if self.code is None:
                self.why = why
            self._signal_group(signal.SIGTERM)
            self._signal_group(signal.SIGCONT)
        self.kill_at = at if self.kill_at is None else min(self.kill_at, at)

    def _signal_group(self, number: int) -> None:
        if self.code is None:
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    def left(self) -> set[int]:
        """What is alive of the trainer's tree."""
        if os.path.isdir("/proc/self"):  # noqa: PTH112
            return tree(self.guard, os.getpid(), self.group)
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return set()
        return {-self.pid}  # a whole group, as os.kill takes it

    # -- output --------------------------------------------------------------------------------------------------

    def drain(self) -> bool:
        """Take one chunk of what the trainer printed; False when there is none for now."""
        if self.out < 0:
            return False
        now = time.monotonic()
        self.rush = self.rush + 1 if now - self.read_at < RUSH_GAP else 0
        if self.rush > RUSH:
            time.sleep(RUSH_PAUSE)
        self.read_at = time.monotonic()
        try:
            data = os.read(self.out, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            os.close(self.out)
            self.out = -1
            return False
        offset, self.printed = self.printed, self.printed + len(data)
        self.log.put(offset, data)
        if self.pending or self.alone:
            self.skipped = True
        else:
            self.tell(OUTPUT, data, offset)
        return True

    def tell(self, kind: bytes, payload: bytes, offset: int = 0) -> None:
        if not self.alone:
            self.pending += HEADER.pack(kind, offset, len(payload)) + payload
            self.flush()

    def flush(self) -> None:
        """Send what the agent takes without waiting for it."""
        try:
            while self.pending:
                self.pending = self.pending[os.write(self.agent, self.pending) :]
        except BlockingIOError:
            return
        except OSError:
            self.lost_agent()
            return
        if self.skipped:
            self.skipped = False
            self.tell(OUTPUT, b"", self.printed)

    # -- the agent -----------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Be there for a new agent. Without that this one's end is the trainer's."""
        if self.folder == "-":
            self.orphan = 0.0
            return
        import _socket

        try:
            listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
            here = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.chdir(self.folder)  # a socket's whole path may have 107 bytes
                try:
                    os.unlink(SOCKET)  # noqa: PTH108
                except FileNotFoundError:
                    pass
                listener.bind(SOCKET)
                listener.listen(1)
            finally:
                os.fchdir(here)
                os.close(here)
            self.listening = listener.detach()
            os.set_blocking(self.listening, False)
        except OSError as error:
            self.orphan = 0.0
            self.tell(ALONE, f"{self.folder}: {error.strerror}".encode())

    def accept(self) -> None:
        """A new agent: it hears what there is to know, and reads from the log what it missed."""
        import _socket

        try:
            fd, _ = _socket.socket(fileno=os.dup(self.listening))._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        if self.agent >= 0:
            os.close(self.agent)
        os.set_inheritable(fd, False)
        os.set_blocking(fd, False)
        self.agent, self.alone, self.stop_at, self.heard = fd, False, None, b""
        self.told_trouble = ""
        self.tell(STARTED, str(self.pid).encode())
        if self.code is not None:
            self.tell(EXITED, str(self.code).encode())
        self.tell(OUTPUT, b"", self.printed)

    def obey(self) -> None:
        try:
            words = os.read(self.agent, 4096)
        except BlockingIOError:
            return
        except OSError:
            words = b""
        if not words:
            self.lost_agent()
            return
        *lines, self.heard = (self.heard + words).split(b"\n")
        for line in lines:
            if line == KILL:
                self.stop(0.0, "order")
            elif line == STOP:
                self.stop(self.grace, "order")
            elif line.startswith(DEADLINE):
                self.deadline = float(line[1:])

    def lost_agent(self) -> None:
        if not self.alone:
            self.alone = True
            self.pending = b""
            self.stop_at = time.monotonic() + self.orphan

    def leave_word(self, leftovers: int) -> None:
        """How it ended, for an agent that was not there: code, bytes printed, leftovers, why."""
        if self.folder == "-" or self.code is None:
            return
        try:
            temporary = f"{self.folder}/{ENDED}.tmp"
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | OURS, 0o600)
            os.write(fd, f"{self.code} {self.printed} {leftovers} {self.why}\n".encode())
            os.fsync(fd)
            os.close(fd)
            os.rename(temporary, f"{self.folder}/{ENDED}")  # noqa: PTH104
        except OSError:
            pass  # then it is known that it is gone, and not how

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> int:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        os.set_inheritable(self.agent, False)  # a trainer that held it would hide our death from the agent
        wake, waker = os.pipe()
        for fd in (wake, waker, self.agent):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, frame: None)  # the agent decides
        self.listen()
        if not self.start():
            self._finish(0)
            return 127
        self.log.start()
        while self.code is None:
            self._wait(wake)
        self._finish(self._sweep(wake))
        return 0

    def _wait(self, wake: int, at_most: float | None = None) -> None:
        """Serve whatever comes first: output, the agent, a dead child, a deadline."""
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        full = self.log.waiting >= LOG_QUEUE  # the volume hangs: the trainer waits, orders are still obeyed
        if self.out >= 0 and not full:
            poll.register(self.out, select.POLLIN)
        if not self.alone:
            poll.register(self.agent, select.POLLIN | (select.POLLOUT if self.pending else 0))
        elif self.listening >= 0:
            poll.register(self.listening, select.POLLIN)
        limits = [at_most, 0.05 if full else None, 0.5 if self.deadline else None]  # poll does not count suspend
        limits += [max(0.0, at - time.monotonic()) for at in (self.kill_at, self.stop_at) if at is not None]
        timeout = min((limit for limit in limits if limit is not None), default=None)
        for fd, events in poll.poll(None if timeout is None else timeout * 1000 + 1):
            if fd == wake:
                try:
                    os.read(wake, 4096)
                except BlockingIOError:
                    pass
            elif fd == self.out:
                self.drain()
            elif fd == self.listening:
                self.accept()
            elif fd == self.agent:
                if events & select.POLLOUT:
                    self.flush()
                if events & ~select.POLLOUT:
                    self.obey()
        self.reap()
        now = time.monotonic()
        if self.stop_at is not None and now >= self.stop_at:
            self.stop_at = None
            self.stop(self.grace if self.orphan else min(self.grace, LEFTOVER_GRACE), "orphan")
        if self.deadline:
            left = self.deadline - EARLY - boot_clock()
            if left <= self.grace:
                self.deadline = 0.0
                self.stop(max(0.0, left), "deadline")
        if self.kill_at is not None and now >= self.kill_at and self.code is None:
            cgroup.kill(self.group)
            signal_all(self.left(), signal.SIGKILL)
            self.kill_at = now + 0.05
        if self.log.trouble != self.told_trouble:
            self.told_trouble = self.log.trouble
            self.tell(LOG_LOST, self.told_trouble.encode())

    def _sweep(self, wake: int) -> int:
        """Stop what the trainer left behind until two looks in a row find nothing. Returns how many there were."""
        asked: set[int] = set()
        kill_at = time.monotonic() + min(self.grace, LEFTOVER_GRACE)
        empty = 0
        while empty < 2:
            self.reap()
            left = self.left()
            if not left:
                empty += 1
                continue
            empty = 0
            killing = time.monotonic() >= kill_at or (self.kill_at is not None and time.monotonic() >= self.kill_at)
            signal_all(left if killing else left - asked, signal.SIGKILL if killing else signal.SIGTERM)
            if killing:
                cgroup.kill(self.group)
            asked |= left
            self._wait(wake, 0.02)
        return len(asked)

    def _finish(self, leftovers: int) -> None:
        """Take the last of the output, close the log, say the last word."""
        cgroup.remove(self.group)
        hung_at = time.monotonic() + 10.0
        while self.log.waiting < LOG_QUEUE or time.monotonic() < hung_at:
            if self.log.waiting >= LOG_QUEUE:
                time.sleep(0.02)
            elif not self.drain():
                break
        if self.code is not None:
            self.log.close(10.0, self.code)
        self.leave_word(leftovers)
        if not self.alone:
            os.set_blocking(self.agent, True)
        if self.log.trouble != self.told_trouble:
            self.tell(LOG_LOST, self.log.trouble.encode())
        self.skipped = False
        self.tell(OUTPUT, b"", self.printed)
        self.tell(GONE, str(leftovers).encode())


def main(argv: list[str]) -> int:
    fd, log, guard, grace, orphan, folder, dashes, *trainer = argv
    assert dashes == "--"
    try:
        with open("/proc/self/comm", "w") as file:  # noqa: PTH123 - `pkill python` in a trainer's script must not hit this
            file.write("relay-guardian")
    except OSError:
        pass
    return Guardian(int(fd), log, guard, float(grace), float(orphan), folder, trainer).run()
