"""Both programs where stdin, stdout or stderr is closed, full or left, and where Ctrl-C comes early."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import programs
import pytest
from cli_kit import RELAY, Served, clean_environment

AGENT = RELAY.with_name("relay-agent")
DEADLINE = 20.0


def environment(state: Path) -> dict[str, str]:
    return clean_environment(
        STATE=str(state),
        RELAY=str(RELAY),
        AGENT=str(AGENT),
        COMMANDER_URL="http://127.0.0.1:9",
        RELAY_L1_ROOT="/nowhere",
    )


def started(line: str, state: Path, **streams: Any) -> programs.Popen:
    """`line` with $STATE and these streams, all of which are there: that needs no exec (`programs.py`)."""
    known = {"relay-tui": RELAY, "relay-agent": AGENT, "$STATE": state}
    words = [str(known.get(word, word)) for word in line.split()]
    return programs.Popen(words, stderr=subprocess.PIPE, text=True, env=environment(state), **streams)


def ended(process: programs.Popen) -> tuple[int, str]:
    with process:
        _, words = process.communicate(timeout=DEADLINE)
    return process.returncode, words


def left(line: str, state: Path, *, before: bool) -> tuple[int, str]:
    """How it ends where its reader is gone: before it began, or while it runs."""
    reading, writing = os.pipe()
    if before:
        os.close(reading)
    process = started(line, state, stdout=writing)
    os.close(writing)
    if not before:
        os.close(reading)
    return ended(process)


def shell(line: str, state: Path) -> subprocess.CompletedProcess[str]:
    """`line` in bash, with $STATE; its exit code is that of the first program of a pipe."""
    line = line.replace("relay-tui", '"$RELAY"').replace("relay-agent", '"$AGENT"')
    return subprocess.run(
        ["bash", "-c", f'{line}; exit "${{PIPESTATUS[0]}}"'],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
        env=environment(state),
    )


PRINTING = [
    "relay-tui --help",
    "relay-tui runs --help",
    "relay-tui status --state $STATE",
    "relay-tui runs --state $STATE",
    "relay-tui events --state $STATE --json",
    "relay-tui token worker --state $STATE",
    "relay-tui print-lium-command --commander-url h --run-id r --image i --node n --json",
    "relay-agent --version",
    "relay-agent doctor --json",
]


@pytest.mark.parametrize("line", PRINTING)
def test_what_cannot_be_printed_is_one_line_and_a_reader_that_left_is_none(line: str, served: Served) -> None:
    program = line.split()[0]
    with Path("/dev/full").open("w") as full:
        assert ended(started(line, served.state, stdout=full)) == (
            74,
            f"{program}: stdout cannot be written: no space left on device\n",
        )
    closed = shell(f"{line} >&-", served.state)
    assert (closed.returncode, closed.stderr) == (74, f"{program}: stdout cannot be written: it is closed\n")
    code, words = left(line, served.state, before=False)
    assert code in (0, 141)  # it may have been quicker than its reader's end
    assert words == ""


def test_a_reader_that_left_for_certain_is_141_and_quiet(served: Served) -> None:
    for line in ("runs --json", "runs"):
        assert left(f"relay-tui {line} --state $STATE", served.state, before=True) == (141, "")


LOG = """
import sys
from importlib import import_module
from relaytui.cli.main import main
from relaytui.client.answers import Log
from relaytui.wire.rows import LogLine

lines = Log([LogLine(1, n, 0.0, "x" * 100) for n in range(5_000)])
import_module("relaytui.cli.log").ask = lambda target, question: (lines, [])
sys.argv = ["relay-tui", "log", "tiny"]
main()
"""


def test_the_head_of_a_long_log_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "log.py").write_text(LOG)
    for reader, code in (("| head -1", 141), (">/dev/full", 74)):
        line = f"{sys.executable} {tmp_path}/log.py {reader}"
        done = shell(line, tmp_path)
        assert done.returncode == code
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("relay-tui runs --state /nowhere 2>&-", 69),
        ("relay-tui runs --state $STATE 2>/dev/full", 0),
        ("relay-tui runs --state $STATE 2>&- >&- <&-", 74),
        ("relay-tui runs --nonsense 2>&-", 2),
        ("relay-tui drain tiny --state $STATE 2>&- <&-", 130),
        ("relay-tui drain tiny --state $STATE 2>/dev/full </dev/null", 130),
        ("relay-tui demo >&- <&-", 2),
        ("relay-tui --state $STATE 2>&-", 2),
        ("relay-agent 2>&-", 2),
        ("relay-agent --config /nowhere 2>/dev/full <&-", 2),
    ],
)
def test_without_the_other_streams_the_exit_code_says_it(line: str, code: int, served: Served) -> None:
    done = shell(line, served.state)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("lacking", ["stdin", "stdout", "stderr"])
@pytest.mark.parametrize("line", ["relay-tui --state $STATE", "relay-tui demo"])
def test_a_dashboard_without_a_whole_terminal_is_one_line(line: str, lacking: str, tmp_path: Path) -> None:
    """Textual draws on stderr: into a file that is a black terminal."""
    master, terminal = os.openpty()
    with (tmp_path / "out").open("w+") as file:
        streams = {name: file if name == lacking else terminal for name in ("stdin", "stdout", "stderr")}
        try:
            done = subprocess.run(
                ["bash", "-c", line.replace("relay-tui", '"$RELAY"')],
                timeout=DEADLINE,
                check=False,
                env=clean_environment(RELAY=str(RELAY), STATE=str(tmp_path / "state"), LC_ALL="C.UTF-8"),
                **streams,
            )
            os.close(terminal)
            file.seek(0)
            words = file.read() if lacking == "stderr" else os.read(master, 1 << 16).decode()
        finally:
            os.close(master)
    assert done.returncode == 2
    assert words.startswith(f"relay-tui: the dashboard needs a terminal: {lacking} is none")
    assert ("relay-tui serve" if "demo" in line else f"`relay-tui --state {tmp_path / 'state'} serve`") in words
    assert len(words.splitlines()) == 1
    assert not (tmp_path / "state").exists()


def test_a_question_that_nobody_can_answer_is_a_no(served: Served) -> None:
    line = "relay-tui drain tiny --state $STATE"
    for name, way in (("/dev/null", os.O_RDONLY), ("/dev/null", os.O_WRONLY), ("/dev/full", os.O_RDONLY)):
        stdin = os.open(name, way)
        code, words = ended(started(line, served.state, stdin=stdin, stdout=subprocess.PIPE))
        os.close(stdin)
        assert code == 130
        assert "nothing was done" in words.splitlines()[-1]
        assert "--yes" in words
    no = shell(f"echo n | {line}; exit ${{PIPESTATUS[1]}}", served.state)
    assert no.returncode == 130
    assert no.stderr.endswith("relay-tui: nothing was done\n")


def test_a_commander_whose_address_cannot_be_printed_does_not_stay(tmp_path: Path) -> None:
    done = shell("relay-tui serve --json --port 0 --state $STATE >/dev/full", tmp_path / "state")
    assert done.returncode == 74
    assert done.stderr.splitlines()[-1] == "relay-tui: stdout cannot be written: no space left on device"
    assert not (tmp_path / "state" / "commander.json").exists()


# -- Ctrl-C ------------------------------------------------------------------------------------------------------

SLOW = """
import os, time
open(os.environ["REACHED"], "w").close()
time.sleep(60)
"""


def interrupted(process: subprocess.Popen[str], reached: Path) -> tuple[int, str]:
    until = time.monotonic() + DEADLINE
    while not reached.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until, "it never came so far"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=DEADLINE)
    return process.returncode, words


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ([RELAY, "runs"], "click"),
        ([RELAY, "runs"], "orjson"),
        ([RELAY, "runs"], "rich"),
        ([RELAY, "runs"], "aiohttp"),
        ([RELAY, "serve"], "aiosqlite"),
        ([AGENT], "click"),
        ([AGENT], "msgspec"),
        ([AGENT, "doctor"], "aiohttp"),
    ],
)
def test_ctrl_c_while_it_loads_is_quiet(command: list[str | Path], module: str, tmp_path: Path) -> None:
    """A module that takes its time stands for the moment in which the signal comes."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / f"{module}.py").write_text(SLOW)
    (tmp_path / "key").write_bytes(b"k" * 32)
    address = {"url": "http://127.0.0.1:9", "pid": 1, "version": "0", "started_at": 0}
    (tmp_path / "commander.json").write_text(json.dumps(address))
    env = clean_environment(
        PYTHONPATH=str(tmp_path / "slow"), REACHED=str(tmp_path / "reached"), RELAY_COMMANDER_STATE=str(tmp_path),
        COMMANDER_URL="http://127.0.0.1:9", RELAY_SHARED_SECRET="s" * 20,
    )  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert interrupted(process, tmp_path / "reached") == (130, "")


def test_ctrl_c_while_it_waits_for_an_answer_is_quiet(tmp_path: Path) -> None:
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        env = clean_environment(RELAY_TOKEN="t" * 20)
        process = subprocess.Popen(
            [RELAY, "status", "--connect", f"127.0.0.1:{silent.getsockname()[1]}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        silent.settimeout(DEADLINE)
        connection, _ = silent.accept()
        with connection:
            (tmp_path / "reached").touch()
            assert interrupted(process, tmp_path / "reached") == (130, "")


def test_where_ctrl_c_is_ignored_it_stays_so() -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "from relaytui.shell.interrupt import leave_at_once; leave_at_once();"
        "signal.raise_signal(signal.SIGINT); print('on')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stdout) == (0, "on\n")


def test_serve_ends_with_one_line_where_its_state_is_deleted(tmp_path: Path) -> None:
    served = Served(tmp_path / "state")
    shutil.rmtree(tmp_path / "state")
    _, said = served.process.communicate(timeout=DEADLINE)
    assert served.process.returncode == 74
    last = said.splitlines()[-1]
    assert last.startswith(f"relay-tui: {tmp_path / 'state' / 'relay.db'} was deleted under the running commander")
    assert "Traceback" not in said
