"""The agent's side of a child process: start it, hand it a job, hear it out within its deadlines, and end it.

Whatever happens in there (it hangs, is killed for its memory, prints nonsense) is `Trouble` here, and its whole process
group is gone when the call returns.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import Struct

from relay_agent.process import own_children
from relay_agent.secret_words import scrub
from relay_agent.sending.protocol import MAX_LINE, AnyMessage, Failed, Go, May, Phase, Progress, Result, Untold, line
from relay_agent.sending.trouble import Trouble
from relaytui.wire.text import clean

T = TypeVar("T")

STARTS_WITHIN = 60.0
"""Seconds until a child's first word: it imports much, from a disk that may be cold."""
QUIET: Mapping[str, float] = {
    "looking": 300.0,
    "hashing": 600.0,
    "uploading": 900.0,
    "commit": 300.0,
    "verify": 300.0,
    "tag": 180.0,
    "pruning": 300.0,
    "downloading": 900.0,
}
"""Seconds in a phase without a byte that moved, at most. The network's own time-outs and what the other side asks for
come first."""
QUIET_ELSE = 300.0
LONGEST = 24 * 3600.0
"""Seconds of one call, at most, whatever moves."""
_STDERR = 4096
_PASSED_ON = (
    "PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy",
    "https_proxy", "all_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "LD_LIBRARY_PATH",
)  # fmt: skip
"""Of the pod's environment, what a child needs to reach the network. No secret is among them."""


def child_environment(cache: str, more: Mapping[str, str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """`cache`: a folder on the pod's own disk that libraries may use."""
    environ = os.environ if environ is None else environ
    return {name: environ[name] for name in _PASSED_ON if name in environ} | {"HOME": cache, **more}


def _no(what: str) -> float:
    return 0.0


async def call(
    package: str,
    job: Struct,
    result: type[T],
    *,
    cache: str,
    environ: Mapping[str, str] = {},
    may: Callable[[str], float] = _no,
    on_phase: Callable[[str], None] = lambda name: None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    quiet: Mapping[str, float] = QUIET,
    longest: float = LONGEST,
) -> T:
    """The job's result; Trouble. `package`: who does it (`child`). `may` is asked before what cannot be taken back, in
    a thread: for how many seconds it may be done, 0 for no. `environ`: of the child, besides what every one has.
    Cancelled, it ends the child at once."""
    try:
        asked = line(job)
    except Untold as untold:
        raise Trouble("untold", str(untold)) from None
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-m", "relay_agent.sending.child", package,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=child_environment(cache, environ), start_new_session=True, limit=MAX_LINE, cwd="/",
        )  # fmt: skip
    except OSError as error:
        raise Trouble("no_child", f"no process can be started: {error.strerror or error}", "transient") from None
    own_children.add(process.pid)
    complaint = asyncio.create_task(_last_words(process))
    talk = _Talk(process, may, on_phase, on_progress, quiet)
    try:
        async with asyncio.timeout(longest):
            data = await talk.over(asked)
    except TimeoutError:
        raise Trouble("too_long", f"it took over {longest:g} s", "transient", phase=talk.phase) from None
    except Ended:
        await _kill(process)
        raise await _died(process, complaint, talk.phase) from None
    finally:
        await _kill(process)
        complaint.cancel()
        await asyncio.gather(complaint, return_exceptions=True)
        own_children.discard(process.pid)
    try:
        return msgspec.json.decode(data, type=result)
    except msgspec.DecodeError as error:
        raise Trouble("nonsense", f"the result does not read: {error}", "unknown", phase=talk.phase) from None


class Ended(Exception):  # noqa: N818 - it says what happened
    """The child ended without a result."""


@dataclass
class _Talk:
    _process: asyncio.subprocess.Process
    _may: Callable[[str], float]
    _on_phase: Callable[[str], None]
    _on_progress: Callable[[int, int], None]
    _quiet: Mapping[str, float]
    phase: str = ""

    async def over(self, job: bytes) -> msgspec.Raw:
        await self._say(job)
        loop = asyncio.get_running_loop()
        allowed = self._quiet.get("", STARTS_WITHIN)
        until = loop.time() + allowed
        moved = -1
        while True:
            try:
                async with asyncio.timeout_at(until):
                    message = await self._hear()
            except TimeoutError:
                where = f"nothing moved while {self.phase}" if self.phase else "it did not start"
                raise Trouble("stalled", f"{where} for {allowed:g} s", "unknown", phase=self.phase) from None
            match message:
                case Result(data):
                    return data
                case Failed(code, words, kind, wait):
                    raise Trouble(code, words_of(words, 400), kind, wait, self.phase)
                case Phase(name):
                    self.phase = clean(name, 40)
                    self._on_phase(self.phase)
                    moved = -1
                case Progress(done, total):
                    self._on_progress(done, total)
                    if done == moved:
                        continue
                    moved = done
                case May(what):
                    await self._say(line(Go(await asyncio.to_thread(self._may, what))))
            allowed = self._quiet.get(self.phase, QUIET_ELSE)
            until = loop.time() + allowed

    async def _say(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except OSError:
            raise Ended from None

    async def _hear(self) -> AnyMessage:
        assert self._process.stdout is not None
        try:
            data = await self._process.stdout.readuntil(b"\n")
            message: AnyMessage = msgspec.json.decode(data, type=AnyMessage)
        except asyncio.IncompleteReadError:
            raise Ended from None
        except (asyncio.LimitOverrunError, msgspec.DecodeError, RecursionError) as error:
            raise Trouble("nonsense", f"the child said nonsense: {error}", "unknown", phase=self.phase) from None
        return message


def words_of(said: str, limit: int) -> str:
    """What a child said of itself, without what is secret and without an end."""
    return clean(scrub(said), limit)


async def _last_words(process: asyncio.subprocess.Process) -> bytes:
    """The end of what it printed; all of it is read, or it would wait for a reader."""
    assert process.stderr is not None
    kept = b""
    while data := await process.stderr.read(65536):
        kept = (kept + data)[-_STDERR:]
    return kept


async def _died(process: asyncio.subprocess.Process, complaint: asyncio.Task[bytes], phase: str) -> Trouble:
    kept = b""
    with suppress(TimeoutError):
        kept = await asyncio.wait_for(asyncio.shield(complaint), 2)
    last = kept.decode(errors="replace").strip().rpartition("\n")[2]
    code = process.returncode or 0
    how = f"was ended by {_name(-code)}" if code < 0 else f"exited with {code}"
    words = f"the child {how}" + (f": {words_of(last, 200)}" if last else "")
    return Trouble("child_died", words, "unknown", phase=phase)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def _kill(process: asyncio.subprocess.Process) -> None:
    """It and all that it started; what has ended by itself keeps its exit code."""
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is None and process.stdout is not None and process.stdout.at_eof():
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 2)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
