"""Child processes: one JSON object asked, one answered, always with a deadline, ended by their own handle."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from relay_agent.sending.child import NICE

PAGE = 65_536
REPOSITORY = Path(__file__).resolve().parents[2]
FOREIGN = ("RELAY_", "SLIME_", "HF_", "COMMANDER_URL", "RUN_ID", "WORKER_ID", "MODE", "PORT", "TARGET_STEPS")
"""Variables that would configure Relay; what the person who runs the bench has set must not change it."""


class BenchError(Exception):
    """A bench could not be run; one line."""


def environment(**added: str) -> dict[str, str]:
    """This process's environment without settings of Relay, with `added`.

    Python keeps its bytecode, as it does for any installed program; otherwise ours, which is not compiled when it is
    installed for development, would be compiled anew at every start.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return {**kept, **added}


def program(name: str) -> str:
    """An installed command, from the same environment as this Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise BenchError(f"{path} is missing; `make venv` installs it")
    return str(path)


def module(name: str, *arguments: str) -> list[str]:
    """Argv that runs a module of tests.bench."""
    return [sys.executable, "-m", f"tests.bench.{name}", *arguments]


def giving_way(argv: Sequence[str]) -> list[str]:
    """Argv that runs `argv` as late as an agent's own sending child: beside other work a yardstick that does not give
    way would be measured against one that does. For a new session."""
    settle = f'echo {NICE} 2>/dev/null >/proc/self/autogroup; exec nice -n {NICE} "$@"'
    return ["sh", "-c", settle, "sh", *argv]


def resident(pid: int) -> int:
    """Bytes of VmRSS."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise BenchError(f"process {pid} has no VmRSS: it ended")


class Child:
    """A started process. Stdin and stdout carry JSON objects where it speaks them; stderr goes to a file."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path = REPOSITORY,
    ) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=dict(environment() if env is None else env),
                cwd=cwd,
                start_new_session=True,
            )
        self._buffer = bytearray()

    @property
    def pid(self) -> int:
        return self.process.pid

    def answer(self, timeout: float) -> dict[str, Any]:
        """The next JSON object that it says; BenchError when it ended or said none in time."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while (value := self._object()) is None:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise self.broken(f"said nothing for {timeout:.0f} s")
                chunk = os.read(self.process.stdout.fileno(), PAGE)
                if not chunk:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self.process.wait(1.0)  # for its exit code
                    raise self.broken("ended")
                self._buffer += chunk
        if "error" in value:
            raise self.broken(f"said {value['error']}")
        return value

    def _object(self) -> dict[str, Any] | None:
        """The next whole object said, which may take several lines; None while it is not whole."""
        text = self._buffer.decode("utf-8", "replace").lstrip()
        if "\n" not in text:
            return None
        if not text.startswith("{"):
            raise self.broken(f"said {text[:100]!r}, which is not a JSON object")
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except ValueError:
            return None
        self._buffer = bytearray(text[end:].encode())
        assert isinstance(value, dict)
        return value

    def ask(self, question: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        self.tell(question)
        return self.answer(timeout)

    def tell(self, question: Mapping[str, Any]) -> None:
        """Asks, for an answer that is fetched later."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.broken("ended") from None

    def wait(self, timeout: float) -> int:
        """Its exit code; BenchError when it goes on."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self.broken(f"still runs after {timeout:.0f} s") from None

    def stop(self, grace: float = 10.0) -> None:
        """Asks it to end, then ends it and whatever it left in its own session's process group."""
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace)
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def broken(self, what: str) -> BenchError:
        said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = f"; its last words: {said[-1][:300]}" if said else ""
        return BenchError(f"{self.name} {what} (exit code {self.process.poll()}){last}")


@contextlib.contextmanager
def child(
    name: str,
    argv: Sequence[str],
    folder: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path = REPOSITORY,
) -> Iterator[Child]:
    """Runs `argv` while the block does; its stderr is `folder/name.err`."""
    started = Child(name, argv, folder / f"{name.replace(' ', '-')}.err", env, cwd)
    try:
        yield started
    finally:
        started.stop()
