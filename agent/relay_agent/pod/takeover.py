"""What a new agent finds of its run on this pod, and what it does about it (design §4.9).

`RULES` is the whole of the rule: what became of the old trainer × what the commander says of its lease × whether the
trainer's command is still the same.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from relay_agent import guardian
from relay_agent.checkpoints.disk import SYSTEM, sync_folder
from relay_agent.pod.pod import DONE, Note, Pod, unread
from relay_agent.process import say
from relay_agent.spool.spool import Spool
from relay_agent.trainer.leftovers import let_save, stop_leftovers, thaw
from relay_agent.trainer.supervise import GREETING, Ending

KILLED = 128 + 9


class Trainer(StrEnum):
    """What became of it while no agent was there."""

    RUNNING = "running"
    EXITED = "exited"  # by itself, and its guardian left word
    STOPPED = "stopped"  # by its guardian, so that it could save
    CRASHED = "crashed"  # with its guardian: nobody knows how


class Standing(StrEnum):
    """Of its lease."""

    SAME = "same"  # its epoch is the newest: live, or revived
    HIGHER = "higher"  # another was granted since
    UNKNOWN = "unknown"  # the commander has no such lease


class Act(StrEnum):
    KEEP = "keep"  # take it over; it trains on in its own epoch
    REGISTER = "register"  # take it over, and have the commander know it again
    DRAIN = "drain"  # have it save and stop; start the new command from there
    FINISH = "finish"  # publish what it left and say how it ended
    AGAIN = "again"  # publish what it left, give the lease back, and acquire anew
    QUARANTINE = "quarantine"  # stop what runs; what it saved later lies aside as an orphan line


_SAME, _CHANGED = True, False
RULES: dict[tuple[Trainer, Standing, bool], Act] = {
    (Trainer.RUNNING, Standing.SAME, _SAME): Act.KEEP,
    (Trainer.RUNNING, Standing.SAME, _CHANGED): Act.DRAIN,
    (Trainer.RUNNING, Standing.HIGHER, _SAME): Act.QUARANTINE,
    (Trainer.RUNNING, Standing.HIGHER, _CHANGED): Act.QUARANTINE,
    (Trainer.RUNNING, Standing.UNKNOWN, _SAME): Act.REGISTER,
    (Trainer.RUNNING, Standing.UNKNOWN, _CHANGED): Act.DRAIN,
    (Trainer.EXITED, Standing.SAME, _SAME): Act.FINISH,
    (Trainer.EXITED, Standing.SAME, _CHANGED): Act.FINISH,
    (Trainer.EXITED, Standing.HIGHER, _SAME): Act.QUARANTINE,
    (Trainer.EXITED, Standing.HIGHER, _CHANGED): Act.QUARANTINE,
    (Trainer.EXITED, Standing.UNKNOWN, _SAME): Act.FINISH,
    (Trainer.EXITED, Standing.UNKNOWN, _CHANGED): Act.FINISH,
}
for _trainer in (Trainer.STOPPED, Trainer.CRASHED):
    for _changed in (_SAME, _CHANGED):
        RULES[_trainer, Standing.SAME, _changed] = Act.AGAIN
        RULES[_trainer, Standing.HIGHER, _changed] = Act.QUARANTINE
        RULES[_trainer, Standing.UNKNOWN, _changed] = Act.AGAIN


SAVES = 120.0
"""Seconds without a word that a trainer nobody can take over has to save and stop."""


@dataclass(frozen=True)
class Found:
    """An attempt of an agent that is gone. `line`: to the guardian of a trainer that runs; `ending`: of one that does
    not."""

    folder: Path
    note: Note
    trainer: Trainer
    line: socket.socket | None = None
    guardian: int = 0
    ending: Ending | None = None


def look(pod: Pod, run_id: str) -> Found | None:
    """What an earlier agent of this run left on this pod and nobody else looks after. Blocking."""
    for folder, note in reversed(list(pod.notes())):
        if note is None or note.run_id != run_id or (folder / DONE).exists() or not pod.is_here(folder, note):
            continue
        if not note.started and not pod.agent_lives(note):
            continue  # it has reports to deliver, and no trainer
        if pod.agent_lives(note):
            return None  # it keeps its trainer: the commander decides between the two
        return _look(folder, note)
    return None


def heir(pod: Pod, run_id: str) -> str:
    """The incarnation of an agent that was granted this run here and is gone before it started a trainer: whoever comes
    next is the same holder, and need not wait until that lease runs out. Empty: there is none. Blocking."""
    for folder, note in reversed(list(pod.notes())):
        if note is None or note.run_id != run_id:
            continue
        left = not note.started and not (folder / DONE).exists() and pod.is_here(folder, note)
        return note.incarnation if left and not pod.agent_lives(note) else ""
    return ""


def backlog(pod: Pod, run_id: str, found: Found | None) -> list[Spool]:
    """What agents that are gone could not deliver, of any run; what is delivered is forgotten. Blocking."""
    spools: list[Spool] = []
    for folder, note in pod.notes():
        if note is None and folder.parent.name == run_id:  # of another run it may be one that has just begun
            _set_aside(pod, folder, run_id)
        if note is None or (found is not None and folder == found.folder):
            continue
        if pod.is_here(folder, note) and not (folder / DONE).exists():
            if pod.agent_lives(note):
                continue
            if note.run_id != run_id:
                open_ended = (folder / guardian.SOCKET).exists() and not (folder / guardian.ENDED).exists()
                if open_ended and _may_run(note.guard):
                    say(f"a trainer of run {note.run_id} may still run on this pod: an agent of that run takes it over")
                continue
            stop_leftovers(note.guard)
        spool = Spool(note.run_id, note.epoch, note.token, folder, trouble=say)
        spool.load()
        if spool.empty:
            pod.forget(folder)
        else:
            spools.append(spool)
    return spools


def _may_run(guard: str) -> bool:
    """Whether something of a trainer lives; also where nobody can tell."""
    return not Path("/proc/self").exists() or bool(guardian.tree(guard))


def _set_aside(pod: Pod, folder: Path, run_id: str) -> None:
    """Nobody can take over what nobody can read. Its trainer, if there is one, may save before the next one starts."""
    if not any(path for path in folder.iterdir() if not path.name.startswith(".")):
        pod.forget(folder)  # it died before it had begun
        return
    say(f"{folder} is set aside: {unread(folder)}")
    mark = pod.mark(run_id, int(folder.name[1:])) if folder.name[1:].isdigit() else ""
    line = _call(folder, mark)[0] if mark else None
    if line is not None:
        say("its trainer still runs: stopping it, so that it can save")
        with suppress(OSError):
            line.setblocking(True)
            line.settimeout(SAVES)
            line.sendall(guardian.STOP + b"\n")
            while line.recv(1 << 16):
                continue
        line.close()
    if mark:
        stop_leftovers(mark)
    pod.aside(folder)


def _look(folder: Path, note: Note) -> Found:
    line, pid = _call(folder, note.guard)
    if line is not None:
        return Found(folder, note, Trainer.RUNNING, line, _peer(line))
    asked = os.path.lexists(folder / guardian.BESIDE)  # by an agent before this one
    if pid and _ending(folder) is None:
        say("its guardian listens to somebody else, or to nobody: stopping the trainer, so that it can save")
        asked |= let_save(pid, note.grace, lambda: _ending(folder) is not None, lambda: _leave_word(folder))
    ending = _ending(folder)
    if ending is not None:
        if asked and ending.why == "itself":  # for all that its guardian knows
            ending = ending._replace(why="order")
        itself = ending.why in ("itself", "oom")
        return Found(folder, note, Trainer.EXITED if itself else Trainer.STOPPED, ending=ending)
    leftovers = stop_leftovers(note.guard)
    return Found(folder, note, Trainer.CRASHED, ending=Ending(KILLED, -1, leftovers, "killed"))


def _leave_word(folder: Path) -> None:
    """To its guardian, and to the agent after us: that the trainer was asked to stop."""
    with suppress(OSError):  # where the pod's disk refuses, we know it for as long as we live
        os.close(os.open(folder / guardian.BESIDE, os.O_WRONLY | os.O_CREAT | guardian.OURS, 0o600))
        sync_folder(SYSTEM, folder)


def _call(folder: Path, guard: str) -> tuple[socket.socket | None, int]:
    """A line to the guardian of this attempt once it has answered; None where there is none, and the pid of one that
    is there and does not answer."""
    line = socket.socket(socket.AF_UNIX)
    pid = 0
    try:
        line.settimeout(GREETING)
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            short = Path(f"/proc/self/fd/{at}")  # a socket's whole path may have 107 bytes
            _connect(line, str((short if short.exists() else folder) / guardian.SOCKET))
        finally:
            os.close(at)
        pid = _peer(line)
        thaw(pid)
        line.sendall(guardian.HELLO + guard.encode() + b"\n")
        if select.select([line], [], [], GREETING)[0] and line.recv(1, socket.MSG_PEEK):
            line.setblocking(False)
            return line, pid
    except OSError:
        pass
    line.close()
    return None, pid


def _connect(line: socket.socket, path: str) -> None:
    """Whoever called before and went away is in its queue still, until it comes to them."""
    until = time.monotonic() + GREETING
    while True:
        try:
            line.connect(path)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.05)


def _peer(line: socket.socket) -> int:
    """Pid of whoever listens at the other end; 0 where nobody can tell."""
    with suppress(OSError, AttributeError):
        return int(struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
    return 0


def _ending(folder: Path) -> Ending | None:
    """The guardian's word on how it ended."""
    try:
        fd = os.open(folder / guardian.ENDED, os.O_RDONLY | guardian.OURS)
        try:
            words = os.read(fd, 256).decode("ascii").split()
        finally:
            os.close(fd)
        code, printed, leftovers, why = words
        return Ending(int(code), int(printed), int(leftovers), why)
    except (OSError, ValueError):
        return None
