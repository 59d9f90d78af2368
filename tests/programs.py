"""`relay-tui` and `relay-agent` as processes of their own, without each of them loading Python and Relay anew.

Half a second of processor goes into every start, and the tests start some thousand programs. So each process of tests
has one helper (this file, run as a program) that has loaded both programs up to where they look at their arguments, and
does nothing else; `Popen` and `run` here ask it for a copy of itself. What they get is what `subprocess` gives: a child
of the process that asked (CLONE_PARENT), with streams, environment, folder and session as asked for, default signals,
no descriptor but those, and an exit code to wait for. It runs the very script that an exec would run, as `__main__`.

The processes that send for an agent are had in the same way: by a copied agent that sends somewhere, which has a helper
of its own, and in the process of tests within `sending`. So are the test hub's process and its real client,
and what is killed again and again.

What differs: /proc shows the helper's command line and environment, and its memory; imports have taken place, and what
proves that one has KEY or SECRET is made. Whoever tests that, or what comes before it (early signals, closed streams,
locales, a terminal, limits), uses `subprocess` itself, as both programs do. What is asked for in a way that is unknown
here is started by exec.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import gc
import importlib
import marshal
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TUI = Path(sys.executable).with_name("relay-tui")
AGENT = Path(sys.executable).with_name("relay-agent")
PROGRAMS = (str(TUI), str(AGENT))
CHILD = [sys.executable, "-I", "-m", "relay_agent.sending.child"]
PACKAGES = ("relay_agent.hub.far", "relay_agent.artifacts.far")
"""What a process that sends works by."""
HUB = [sys.executable, "-m", "tests.hub"]
CLIENT = [sys.executable, "-P", str(Path(__file__).parent / "hub" / "real_client.py")]
FAULTS = "tests.faults."
"""Modules that `python -m` runs, too."""
HOLDER = f"{FAULTS}hub_holder"
"""It sends as an agent does."""
SENDS = {"HF_REPO", "ARTIFACTS"}
"""Variables of an agent that starts such processes."""
CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine) if sys.platform == "linux" else None
CLONE_PARENT = 0x8000
BEFORE_MAIN = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "OPENSSL_", "SSL_")
"""Variables that are looked at before the program's own first line, or as what it imports is loaded."""
MAX_ASKED = 100_000
"""Bytes that surely fit into one message."""
KEY = b"k" * 32
"""A state folder's key for tests."""
SECRET = "a-shared-secret-of-some-length"
"""A shared secret for tests."""


class Popen(subprocess.Popen[Any]):
    """As in `subprocess`."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any, *more: Any) -> None:  # fmt: skip  # noqa: E501
        _, _, shell, in_read, in_write, out_read, out_write, err_read, err_write, signals, gid, gids, uid, *last = more
        umask, session, *group = last
        words = [os.fspath(word) for word in ([args] if isinstance(args, str | os.PathLike) else args)]
        streams = [own if fd == -1 else fd for own, fd in enumerate((in_read, out_write, err_write))]
        environ = dict(os.environ if env is None else env)
        folder = str(Path(os.fsdecode(cwd or ".")).absolute())
        asked = marshal.dumps((words, folder, list(environ.items()), bool(session)))
        if (
            CLONE is None
            or not (words[0] in PROGRAMS or is_child(words) or words[:3] in (HUB, CLIENT) or is_of_faults(words))
            or not (close_fds and signals)
            or any((executable, preexec_fn, pass_fds, shell))
            or (gid, gids, uid, umask, *group) != (None, None, None, -1, *[-1 for _ in group])
            or before_main(environ, is_child(words)) != before_main(helper().environ, is_child(words))
            or any(os.isatty(fd) for fd in streams)
            or not Path(cwd or ".").is_dir()
            or len(asked) > MAX_ASKED
        ):
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more)  # type: ignore[misc]
            return
        self.pid = helper().copy(asked, streams)
        self._child_created = True
        self._close_pipe_fds(in_read, in_write, out_read, out_write, err_read, err_write)  # type: ignore[attr-defined]


def run(
    args: Any, *, capture_output: bool = False, timeout: float | None = None, check: bool = False, **how: Any
) -> Any:
    """As in `subprocess`."""
    said = how.pop("input", None)
    if capture_output:
        how |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if said is not None:
        how["stdin"] = subprocess.PIPE
    with Popen(args, **how) as process:
        try:
            out, err = process.communicate(said, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


@contextmanager
def sending() -> Iterator[None]:
    """What an agent's code in this process starts is a copy, where it sends."""
    unix_events: Any = asyncio.unix_events
    before = unix_events.subprocess
    unix_events.subprocess = SimpleNamespace(Popen=Popen, PIPE=subprocess.PIPE)
    try:
        yield
    finally:
        unix_events.subprocess = before


def is_child(words: list[Any]) -> bool:
    return words[:-1] == CHILD and words[-1] in PACKAGES


def is_of_faults(words: list[Any]) -> bool:
    return words[:2] == HUB[:2] and str(words[2]).startswith(FAULTS)


def before_main(environ: dict[Any, Any], isolated: bool) -> dict[Any, Any]:
    """Python's own count only where it is not isolated."""
    looked_at = BEFORE_MAIN[isolated:]
    return {name: value for name, value in environ.items() if os.fsdecode(name).startswith(looked_at)}


class Helper:
    """The process that is copied, as its owner sees it."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.turn = threading.Lock()
        self.environ = dict(os.environ)

    def copy(self, asked: bytes, streams: list[int]) -> int:
        """The process that does what was asked for."""
        with self.turn:
            socket.send_fds(self.line, [asked], streams)
            return int(self.line.recv(64))


_helpers: list[Helper] = []
_starting = threading.Lock()


def helper() -> Helper:
    with _starting:
        if not _helpers:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                )  # fmt: skip
            atexit.register(process.wait)
            atexit.register(ours.close)
            _helpers.append(Helper(ours))
        return _helpers[0]


# -- the helper itself ----------------------------------------------------------------------------------------------


def load_everything() -> None:
    """But what is loaded by a dashboard, or looks at the environment."""
    for package in ("relaytui", "relay_agent"):
        path = importlib.import_module(package).__path__
        for found in pkgutil.walk_packages(path, f"{package}."):
            if not {"__main__", "dashboard", "demo"} & set(found.name.split(".")):
                importlib.import_module(found.name)
    from relaytui.wire.proof import derived_token, proof_key

    for secret in (SECRET, derived_token(KEY, "operator"), derived_token(KEY, "worker")):
        proof_key(secret)  # slow on purpose, and remembered: no copy has to make it


def clone() -> int:
    """os.fork(), but the copy is a child of this process's own parent."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid = int(ctypes.PyDLL(None).syscall(CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    (python.PyOS_AfterFork_Parent if pid else python.PyOS_AfterFork_Child)()
    return pid


def become(folder: str, environ: list[tuple[Any, Any]], session: bool, streams: list[int]) -> None:
    """What lies between fork and exec, and what Python does before a script."""
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    os.closerange(3, 1 << 16)
    os.chdir(folder)
    if session:
        os.setsid()
    os.environb.clear()
    os.environb.update({os.fsencode(name): os.fsencode(value) for name, value in environ})
    time.tzset()
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        old = getattr(sys, name)
        new = open(number, mode, 1 if number == 2 else -1, old.encoding, old.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def leave(code: int) -> None:
    """As Python ends, but for the taking to pieces of all that was loaded: it would have to be copied for that."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code & 0xFF)


def serve(line: socket.socket) -> list[str]:
    """In the helper, for as long as somebody asks; in each copy, what it shall run."""
    while True:
        asked, streams, *_ = socket.recv_fds(line, MAX_ASKED * 2, 3)
        if not asked:
            os._exit(0)
        words, folder, environ, session = marshal.loads(asked)
        pid = clone()
        if pid == 0:
            become(folder, environ, session, streams)
            return list(words)
        for fd in streams:
            os.close(fd)
        line.send(b"%d" % pid)


def with_helper(words: list[str]) -> list[str]:
    """In a copy that sends: it goes on with a helper of its own, made before anything is done here. In a copy of that
    one, what it shall run."""
    if not ((words[0] == str(AGENT) and SENDS & os.environ.keys()) or words[2:3] == [HOLDER]):
        return words
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        _helpers.append(Helper(ours))
        subprocess.Popen = Popen  # type: ignore[misc]
        return words
    ours.close()
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    words = serve(theirs)
    theirs.detach()
    return words


def script(words: list[str]) -> list[str]:
    """What these words run, as a script and its arguments; `sys.path` becomes what it is there."""
    if words[0] in PROGRAMS:
        return words
    if words[:3] == HUB:
        sys.path[0] = os.getcwd()  # noqa: PTH109 - text
        return [str(Path(__file__).parent / "hub" / "__main__.py"), *words[3:]]
    if is_of_faults(words):
        sys.path[0] = os.getcwd()  # noqa: PTH109 - text
        return [str(Path(__file__).parent / "faults" / f"{words[2].removeprefix(FAULTS)}.py"), *words[3:]]
    del sys.path[0]
    set_hub_library()
    return words[2:] if words[:3] == CLIENT else [str(importlib.import_module(CHILD[-1]).__file__), words[-1]]


def set_hub_library() -> None:
    """It takes its settings from the environment as it is loaded."""
    constants = importlib.import_module("huggingface_hub.constants")
    before = {name: value for name, value in vars(constants).items() if name.isupper()}
    importlib.reload(constants)
    for name, module in list(sys.modules.items()):
        if name.startswith("huggingface_hub."):
            for known in before.keys() & vars(module).keys():
                if vars(module)[known] is before[known]:
                    setattr(module, known, getattr(constants, known))


if __name__ == "__main__":
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    sys.path[0] = str(TUI.parent)
    load_everything()
    gc.collect()
    gc.freeze()
    sys.argv = serve(channel)
    channel.detach()
    sys.argv = script(with_helper(sys.argv))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, int):
            leave(end.code)
        raise
