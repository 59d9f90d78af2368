"""`pkill`, `killall` and `ray` as a script under Relay finds them: none reaches beyond this attempt.

slime's own scripts begin with `pkill -9 python; pkill -9 ray; ray stop --force`, so that a run by hand finds no
leftovers of the last one. Under an agent that would kill the agent, its guardian and whoever else trains on this
machine. There is nothing to clear: a new attempt starts on a pod where Relay has stopped everything of the last one. So
these names are found first, on PATH and (bash asks them even before PATH, whatever a script makes of that) as exported
functions; they act on processes of this attempt alone, which all carry one variable in their environment. A script that
calls /usr/bin/pkill by its whole path is beyond them: the agent, its guardian and this launcher then survive by not
being called python; anything else called so would not.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path

STATE = "RELAY_SLIME_STATE"
"""The variable that everything of this attempt carries: the folder of its state."""
NAMES = ("pkill", "killall", "ray")
HERE = Path(__file__).resolve().parent


def say(words: str) -> None:
    sys.stderr.write("relay-slime: " + words + "\n")
    sys.stderr.flush()


def name_process(name: str) -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name, encoding="ascii")


def tame(state: Path, env: dict[str, str]) -> None:
    """Write the names into `state`/bin, and have `env` find them first."""
    folder = state / "bin"
    folder.mkdir()
    for name in NAMES:
        script = "slime_ray.py" if name == "ray" else "slime_tame.py"
        words = [sys.executable, "-S", str(HERE / script), name]
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
        (folder / name).chmod(0o755)
        env[f"BASH_FUNC_{name}%%"] = f'() {{ {shlex.join(words)} "$@"; }}'
        if not os.access(folder / name, os.X_OK):  # a mount with noexec: the real ones would be found instead
            say(f"{folder} takes no programs, so that a script's pkill would reach everybody here: nothing is started")
            raise SystemExit(126)
    env[STATE] = str(state)
    env["PATH"] = f"{folder}:{env.get('PATH', os.defpath)}"


def note(state: Path, words: str) -> None:
    """Into the attempt's own log, and for people."""
    say(words)
    with (state / "tame.log").open("a", encoding="utf-8") as file:
        file.write(words + "\n")


# -- processes of this attempt ---------------------------------------------------------------------------------------


def ours(state: Path) -> dict[int, tuple[int, str]]:
    """pid -> (parent, name) of whatever carries the variable. Empty where there is no /proc."""
    wanted = (f"{STATE}={state}").encode()
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            name, _, rest = (entry / "stat").read_bytes().partition(b"(")[2].rpartition(b")")
            fields = rest.split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            found[int(entry.name)] = (int(fields[1]), name.decode(errors="replace"))
    return found


def victims(state: Path) -> dict[int, str]:
    """pid -> name of all of it but who asks: neither the caller nor the script that it was called from."""
    found = ours(state)
    spared, pid = set(), os.getpid()
    while pid > 1 and pid not in spared:
        spared.add(pid)
        pid = found[pid][0] if pid in found else _parent(pid)
    return {pid: name for pid, (_, name) in found.items() if pid not in spared}


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def send(pids: list[int], number: int) -> int:
    """How many got it."""
    reached = 0
    for pid in pids:
        try:
            os.kill(pid, number)
            reached += 1
        except OSError:
            continue
    return reached


def signal_group(group: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, number)


def end_all(state: Path, grace: float = 3.0) -> None:
    """Ray's daemons and whatever else is left: SIGTERM, and SIGKILL after `grace` seconds."""
    until = time.monotonic() + grace
    asked: set[int] = set()
    while True:
        left = victims(state)
        if not left:
            return
        if time.monotonic() >= until:
            send(list(left), signal.SIGKILL)
        else:
            send([pid for pid in left if pid not in asked], signal.SIGTERM)
            asked.update(left)
        if time.monotonic() >= until + grace:
            return
        time.sleep(0.05)


# -- pkill and killall -----------------------------------------------------------------------------------------------

_PLAIN = {"-f", "-x", "-i", "-e", "--full", "--exact", "--ignore-case", "--echo", "-q", "--quiet", "-w", "--wait"}


def kill_by_name(state: Path, program: str, argv: list[str]) -> int:
    """As procps' pkill and psmisc' killall answer: 0 where a process got the signal, 1 where none did, 2 for an option
    that is not known here: it may mean fewer, so that nothing is done."""
    number, flags, names = int(signal.SIGTERM), set(), []
    called, words = " ".join([program, *argv]), iter(argv)
    for word in words:
        if word in ("-s", "--signal"):
            word = "-" + next(words, "")
        elif word.startswith("--signal="):
            word = "-" + word.partition("=")[2]
        if word in _PLAIN:
            flags.add(word)
        elif re.match(r"-[A-Z0-9]+\Z", word):
            number = _signal(word[1:])
            if number < 0:
                note(state, f"{called}: no such signal; nothing is done")
                return 2
        elif word.startswith("-"):
            note(state, f"{called}: {word} is not known under Relay; nothing is done")
            return 2
        else:
            names.append(word)
    if not names:
        return 2
    exact = program == "killall" or flags & {"-x", "--exact"}
    case = re.IGNORECASE if flags & {"-i", "--ignore-case"} else 0
    full = bool(flags & {"-f", "--full"})
    reached = 0
    for name in names:
        try:
            pattern = re.compile(re.escape(name) if program == "killall" else name, case)
        except re.error:
            continue
        match = pattern.fullmatch if exact else pattern.search
        found = [pid for pid, comm in victims(state).items() if match(command_line(pid) if full else comm)]
        reached += send(found, number)
    note(state, f"{called}: {reached} of this attempt's processes got it; what else runs here is left alone")
    return 0 if reached else 1


def _signal(name: str) -> int:
    if name.isdigit():
        return int(name) if int(name) <= 64 else -1
    return int(getattr(signal, name if name.startswith("SIG") else "SIG" + name, -1))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES or not os.environ.get(STATE):
        sys.exit(2)
    sys.exit(kill_by_name(Path(os.environ[STATE]), sys.argv[1], sys.argv[2:]))
