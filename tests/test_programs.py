"""A copy of the helper is what an exec of the program is, to who started it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import programs
import psutil
import pytest
from cli_kit import clean_environment

from relay_agent.hub import calls
from relay_agent.hub.protocol import Check, Checked, Where
from relay_agent.sending.trouble import Trouble

pytestmark = pytest.mark.skipif(programs.CLONE is None, reason="there is nothing but exec here")


@contextmanager
def serving(state: Path, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A commander that listens."""
    command = [programs.TUI, "serve", "--port", "0", "--json", "--state", state]
    with programs.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **how) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"{\n"
            yield process
        finally:
            process.kill()


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize(
    "words",
    [
        [programs.TUI, "runs", "--state", "empty"],
        [programs.TUI, "serve", "--help"],
        [programs.TUI, "nonsense"],
        [programs.TUI, "restore", "nothing", "--state", "empty"],
        [programs.AGENT, "example"],
        [programs.AGENT],
    ],
    ids=lambda words: " ".join([words[0].name, *words[1:]]),
)
def test_it_says_and_returns_the_same(words: list[str | Path], tmp_path: Path) -> None:
    env = clean_environment(HOME=str(tmp_path), ODD=os.fsdecode(b"\xff"))
    ways = [
        run(words, cwd=tmp_path, env=env, input=b"no\n", capture_output=True, timeout=60)
        for run in (programs.run, subprocess.run)
    ]
    copied, executed = [(done.returncode, done.stdout, done.stderr) for done in ways]
    assert copied == executed


def test_it_is_a_child_in_its_own_place_that_is_signalled_and_waited_for(tmp_path: Path) -> None:
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        with serving(Path("state"), cwd=tmp_path, start_new_session=True) as process:
            place = Path(f"/proc/{process.pid}")
            assert programs.__file__.encode() in cmdline(process.pid)
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            assert [int(field) for field in fields[1:4]] == [os.getpid(), process.pid, process.pid]
            assert (place / "cwd").readlink() == tmp_path
            ours = {path.readlink() for path in Path("/proc/self/fd").iterdir() if path.exists()}
            theirs = {path.readlink() for path in (place / "fd").iterdir() if int(path.name) > 2}
            shared = {str(each) for each in ours & theirs}
            assert not any(each.startswith(("pipe:", "socket:")) for each in shared), shared
            process.send_signal(number)
            assert process.wait(20) == code
        assert not place.exists()
    assert (tmp_path / "state" / "key").exists()


@pytest.mark.parametrize(
    "way",
    [{"env": {**os.environ, "PYTHONUTF8": "0"}}, {"preexec_fn": os.getpid}, {"pass_fds": (0,)}, {"umask": 0o77}],
    ids=lambda way: next(iter(way)),
)
def test_what_is_asked_for_in_another_way_is_an_exec(way: dict[str, Any], tmp_path: Path) -> None:
    with serving(tmp_path / "state", **way) as process:
        assert programs.__file__.encode() not in cmdline(process.pid)


def test_so_is_another_program() -> None:
    done = programs.run([sys.executable, "-c", "print(1)"], capture_output=True, check=True)
    assert done.stdout == b"1\n"


# -- what sends for an agent -------------------------------------------------------------------------------------------


def url_of(peer: socket.socket) -> str:
    return f"http://127.0.0.1:{peer.getsockname()[1]}"


@pytest.mark.parametrize("way", [programs.sending, nullcontext])
async def test_a_process_that_sends_is_had_in_both_ways(tmp_path: Path, way: Any) -> None:
    before = psutil.Process().children()
    with socket.create_server(("127.0.0.1", 0)) as peer, way():
        check = Check(Where("me/x", "hf_x", url_of(peer)), "run-1")
        job = asyncio.create_task(calls.call(check, Checked, cache=str(tmp_path)))
        connection, _ = await asyncio.to_thread(peer.accept)
        children = [each for each in psutil.Process().children() if each not in before]
        (child,) = [each for each in children if each.cwd() == "/"]
        assert (programs.__file__.encode() in cmdline(child.pid)) == (way is programs.sending)
        assert os.getsid(child.pid) == child.pid
        connection.close()
        child.kill()
        with pytest.raises(Trouble, match="SIGKILL"):
            await job


def test_one_of_a_copied_agent_is_its_child_and_ends_with_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as peer:
        peer.settimeout(60)
        env = clean_environment(
            HOME=str(tmp_path), RELAY_AGENT_STATE=str(tmp_path), HF_REPO="me/x", HF_TOKEN="hf_x", HF_DRY_RUN="false",
            HF_ENDPOINT=url_of(peer),
        )  # fmt: skip
        with programs.Popen(
            [programs.AGENT, "doctor"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as agent:
            connection, _ = peer.accept()
            with connection:
                theirs = psutil.Process(agent.pid).children()
                assert [programs.__file__.encode() in cmdline(each.pid) for each in theirs] == [True, True]
                (child,) = [each for each in theirs if each.cwd() == "/"]
                assert os.getsid(child.pid) == child.pid
                agent.kill()
    gone, _ = psutil.wait_procs(theirs, 20)
    assert len(gone) == 2


SETTINGS = """
import json, os, sys
import huggingface_hub.file_download, huggingface_hub.utils
{more}
of = {{name: vars(module) for name, module in sys.modules.items() if name.startswith("huggingface_hub.")}}
plain = str, int, float, type(None)
print(json.dumps({{
    name: {{each: value for each, value in known.items() if each.isupper() and isinstance(value, plain)}}
    for name, known in of.items()
}}))
"""


def test_the_hubs_library_there_goes_by_the_environment_that_was_asked_for(tmp_path: Path) -> None:
    """Although it was loaded in another one."""
    here = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0", "PYTHONPATH": str(Path(__file__).parent)}
    theirs = here | calls.environment(str(tmp_path), xet=False)
    late = f"os.environ |= {theirs!r}; import programs; programs.set_hub_library()"
    loaded, changed = (
        json.loads(subprocess.check_output([sys.executable, "-c", SETTINGS.format(more=more)], env=env, timeout=60))
        for more, env in (("", theirs), (late, here))
    )
    assert changed == loaded
    assert changed["huggingface_hub.constants"]["HF_HUB_DISABLE_XET"] is True
