"""The trainer as a tree of processes: begun, signalled, looked for, collected."""

from __future__ import annotations

# ruff: noqa: SIM105 - contextlib is not worth its memory here
import os
import signal
import time

from relay_agent.guardian import cgroup, terminal
from relay_agent.guardian.processes import PR_SET_PDEATHSIG, give_way_no_more, prctl, signal_all, tree

ENDINGS = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)
"""By these a script has what it began beside itself end when it is done."""
CRASHES = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGXFSZ)
"""By these nothing ends that has done its work."""
RECENT = 60.0
"""Seconds before the trainer's end: what died by then may have been in the middle of a save."""


def ended_well(code: int) -> bool:
    """Whether a process of the tree has done its work, or was told to end. `code` as Python gives it."""
    return code == 0 or _signal(code) in ENDINGS


def _signal(code: int) -> int:
    """The signal that a process died of, also where a shell tells of it."""
    return -code if code < 0 else code - 128


class Trainer:
    """`argv`, in a session of its own and with our environment, in which `guard` marks all that comes of it. `pty`: it
    prints to a terminal."""

    def __init__(self, argv: list[str], guard: str, *, pty: bool) -> None:
        self.pid = 0
        self.code: int | None = None
        """Once it has ended: as a shell gives it, 128 + n for signal n."""
        self.signalled = False
        """Then: a signal ended it."""
        self.oom = False
        """Then: the kernel had killed something of it, or of its pod, for want of memory."""
        self.failed: set[int] = set()
        """Processes that it left behind and that failed, as one does that cannot save."""
        self.lost = 0
        """How many of its processes were killed shortly before it ended well, as far as anybody tells: those that were
        left to us, and those that the kernel counted as killed for want of memory. Who waits for its own knows."""
        self._argv = argv
        self._guard = guard
        self._pty = pty
        self._group = ""  # its own, where the system gives one
        self._oom_kills = kills = cgroup.oom_kills()
        self._oom_looks = kills, kills  # of a kill since the earlier one of the last two nobody knows when it was
        self._looked = time.monotonic()
        self._crashed: list[float] = []  # when; lately

    def begin(self) -> int:
        """Fork and exec; where to read what it prints. OSError where there is nothing to exec."""
        read, write = terminal.make() if self._pty else os.pipe()
        failed, fail = os.pipe()
        parent = os.getpid()
        self._group = cgroup.make(self._guard)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                give_way_no_more()
                cgroup.enter(self._group)
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(127)
                for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGCHLD", "SIGPIPE", "SIGXFSZ"):  # as Python found them
                    signal.signal(getattr(signal, name), signal.SIG_DFL)
                null = os.open("/dev/null", os.O_RDONLY)
                os.dup2(null, 0)
                os.dup2(write, 1)
                os.dup2(write, 2)
                os.execvpe(self._argv[0], self._argv, os.environ)  # noqa: S606
            except OSError as error:
                os.write(fail, f"{error.errno} {error.strerror}".encode())
            finally:
                os._exit(127)
        os.close(write)
        os.close(fail)
        reason = os.read(failed, 4096).decode(errors="replace")
        os.close(failed)
        if reason:
            os.waitpid(self.pid, 0)
            os.close(read)
            number, _, words = reason.partition(" ")
            raise OSError(int(number), words)
        return read

    def reap(self) -> bool:
        """Collect every dead child; note how the trainer itself ended. False: there is none any more, dead or alive,
        and as orphans become ours, nobody else of the tree either."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            code = os.waitstatus_to_exitcode(status)
            if pid != self.pid and self.code is not None and not ended_well(code):
                self.failed.add(pid)
            if pid == self.pid and self.code is None:
                self.code, self.signalled = abs(code) + 128 * (code < 0), code < 0
                self._count_lost()
            elif self.code is None and _signal(code) in CRASHES:
                now = time.monotonic()
                self._crashed = [at for at in self._crashed if now - at < RECENT] + [now]

    def look(self) -> None:
        """At what the kernel counts; to be called at least once in RECENT seconds."""
        if time.monotonic() - self._looked >= RECENT:
            self._looked = time.monotonic()
            self._oom_looks = self._oom_looks[1], cgroup.oom_kills()

    def _count_lost(self) -> None:
        now, kills = time.monotonic(), cgroup.oom_kills()
        self.oom = kills > self._oom_kills
        if self.code == 0:
            self.lost = max(sum(now - at < RECENT for at in self._crashed), kills - self._oom_looks[0])

    def signal(self, number: int) -> None:
        """To its own process group, for as long as it lives."""
        if self.code is None:
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    def kill(self) -> None:
        """SIGKILL to all of the tree that can be seen."""
        self.kill_group()
        self.signal(signal.SIGKILL)
        signal_all(self.left(), signal.SIGKILL)

    def left(self) -> set[int]:
        """What is alive of the tree. A look can miss who is never the same process for long."""
        if os.path.isdir("/proc/self"):  # noqa: PTH112 - pathlib is not worth its memory here
            return tree(self._guard, os.getpid(), self._group)
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return set()
        return {-self.pid}  # a whole group, as os.kill takes it

    # -- its control group, where it has one -------------------------------------------------------------------------

    @property
    def populated(self) -> bool:
        """Whether somebody is alive in it, seen or not."""
        return cgroup.populated(self._group)

    def kill_group(self) -> None:
        cgroup.kill(self._group)

    def remove_group(self) -> None:
        cgroup.remove(self._group)
