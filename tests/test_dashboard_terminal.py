"""The dashboard as its users have it: a real terminal, a real commander; and the terminal comes back, always."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from relaytui.cli import dashboard
from relaytui.cli.options import Target
from relaytui.client.discover import local_endpoint, read_key
from relaytui.commander.embedded import EmbeddedCommander
from relaytui.commander.settings import CommanderSettings
from relaytui.dashboard.app import DashboardResult
from relaytui.dashboard.launch import MAX_LOG_BYTES, logging_to
from relaytui.wire.errors import RelayError
from relaytui.wire.proof import derived_token

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
RELAY_TUI = str(Path(sys.executable).parent / "relay-tui")


class Terminal:
    """A tmux pane of its own server, with a shell that stays after the program ended."""

    def __init__(self, folder: Path) -> None:
        self._socket = f"relay-test-{uuid.uuid4().hex[:12]}"
        self._folder = folder

    def tmux(self, *args: str) -> str:
        done = subprocess.run(["tmux", "-L", self._socket, *args], capture_output=True, text=True, timeout=20)
        return done.stdout

    def start(self, argv: list[str], env: dict[str, str], *, size: tuple[int, int] = (80, 24)) -> None:
        settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
        line = f"cd {shlex.quote(str(self._folder))}; echo SHELL; env {settings} {shlex.join(argv)}; echo BACK=$?; cat"
        (self._folder / "tmux.conf").write_text("set -g default-terminal tmux-256color\nset -g status off\n")
        self.tmux(
            "-f", str(self._folder / "tmux.conf"),
            "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), "sh", "-c", line,
        )  # fmt: skip

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def focus(self, key: str, line: str) -> None:
        """Press a key that moves the cursor into the field on this line, and wait until it is there."""

        def looks() -> list[str]:
            return [shown for shown in self.tmux("capture-pane", "-p", "-e").splitlines() if line in shown]

        before = looks()
        assert before
        self.keys(key)
        deadline = time.monotonic() + 10
        while looks() == before:
            assert time.monotonic() < deadline, f"the cursor never came:\n{self.text()}"
            time.sleep(0.02)

    def text(self) -> str:
        return self.tmux("capture-pane", "-p")

    def flags(self) -> tuple[str, ...]:
        return tuple(self.tmux("display-message", "-p", "#{alternate_on} #{mouse_any_flag} #{cursor_flag}").split())

    def shows(self, *wanted: str, without: str | None = None, seconds: float = 20.0) -> str:
        deadline = time.monotonic() + seconds
        while True:
            text = self.text()
            if all(part in text for part in wanted) and (without is None or without not in text):
                return text
            assert time.monotonic() < deadline, f"never showed {wanted}:\n{text}"
            time.sleep(0.05)

    def given_back(self, code: int) -> str:
        text = self.shows(f"BACK={code}", "SHELL")
        assert self.flags() == ("0", "0", "1"), "no alternate screen, no mouse reports, a cursor"
        return text

    def pid_of(self, word: str) -> int:
        """The program's process, below the pane's shell."""
        shell = int(self.tmux("display-message", "-p", "#{pane_pid}"))
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == shell and word in (path / "cmdline").read_text():
                    return int(path.name)
        raise AssertionError(f"{word} is not running:\n{self.text()}")

    def close(self) -> None:
        """End the server and whatever ran in it, also what a hangup does not end."""
        shell = self.tmux("list-panes", "-a", "-F", "#{pane_pid}").split()
        left = [process for pid in shell for process in _with_children(int(pid))]
        self.tmux("kill-server")
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=5)


def _with_children(pid: int) -> list[psutil.Process]:
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """The state folder of a commander that serves, with one run held by an original worker."""
    folder = tmp_path / "state"
    commander = EmbeddedCommander(CommanderSettings(state=folder, port=0))
    commander.start()
    try:
        asyncio.run(_hold_a_run(folder))
        yield folder
    finally:
        commander.stop()


async def _hold_a_run(folder: Path) -> None:
    import aiohttp

    endpoint, key = local_endpoint(folder), read_key(folder)
    assert endpoint is not None
    assert key is not None
    headers = {"X-Relay-Secret": derived_token(key, "worker")}
    async with aiohttp.ClientSession(headers=headers) as session:
        body = {"worker_id": "pod-a", "run_id": "sft-terminal"}
        async with session.post(f"{endpoint.url}/api/lease/acquire", json=body) as answer:
            token = (await answer.json())["lease_token"]
        report = {"lease_token": token, "run_id": "sft-terminal", "status": "RUNNING", "step": 7}
        async with session.post(f"{endpoint.url}/api/job/report", json=report) as answer:
            assert answer.status == 200


def environment(tmp_path: Path) -> dict[str, str]:
    return {
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "xdg"),
        "PATH": os.environ["PATH"],
        "LC_ALL": "C.UTF-8",
        "COLORTERM": "truecolor",
    }


def test_a_real_run_in_a_real_terminal(terminal: Terminal, state: Path, tmp_path: Path) -> None:
    terminal.start([RELAY_TUI, "--state", str(state)], environment(tmp_path))
    terminal.shows("● live", "sft-terminal", "● running", "pod-a", "drain")
    terminal.keys("3")
    terminal.shows("lease.granted", "sft-terminal")
    terminal.keys("1")
    terminal.shows("eta")
    terminal.keys("Enter")
    terminal.shows("● going on", "esc back")
    terminal.keys("d")
    terminal.shows("Drain", "pod-a", "SIGTERM", "Cancel")
    terminal.keys("Tab", "Enter")
    terminal.shows("takes no orders")  # the commander's no stays in the dialog
    terminal.keys("Escape")
    terminal.shows("esc back", without="SIGTERM")
    terminal.keys("f")
    terminal.shows("pod-a loses the run", "type sft-terminal to confirm")
    terminal.keys("sft-terminal")  # the cursor is where it is typed
    terminal.shows("│   sft-terminal ")
    terminal.focus("Enter", "Force-acquire")
    terminal.keys("Enter")
    terminal.shows("taken at epoch 2")
    terminal.keys("q")
    terminal.given_back(0)


def test_the_very_first_start_in_an_empty_home(terminal: Terminal, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    env = environment(home)
    del env["XDG_STATE_HOME"]
    terminal.start([RELAY_TUI, "--port", "0"], env)
    terminal.shows("● live")
    terminal.keys("q")
    terminal.given_back(0)
    state = home / ".local" / "state" / "relay-tui"
    assert [path for path in (state, *state.rglob("*")) if path.stat().st_mode & 0o077] == []


def test_the_first_frame_waits_for_nothing_that_only_what_follows_needs(
    terminal: Terminal, state: Path, tmp_path: Path
) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(_LOADED_AT_THE_FIRST_FRAME)
    terminal.start([sys.executable, str(probe), "--state", str(state)], environment(tmp_path))
    terminal.given_back(0)
    lines = (tmp_path / "loaded").read_text().splitlines()
    textuals, loaded = set(lines[0].split()), set(lines[1].split())
    ours = loaded - textuals
    foreign = {name.partition(".")[0] for name in ours} - set(sys.stdlib_module_names) - {"relaytui", "__main__"}
    assert foreign <= {"click", "msgspec", "orjson", "rich", "textual"}
    assert "relaytui.dashboard.screens.home" in ours
    assert lines[2:] == ["False"], "the collector rests"
    assert sorted(name for name in ours if name.startswith(_NOT_BEFORE_THE_FIRST_FRAME)) == []


_LOADED_AT_THE_FIRST_FRAME = """
import gc, sys
from pathlib import Path
import textual.app, textual.drivers.linux_driver
textuals = " ".join(sys.modules)
from relaytui.cli.main import main
from relaytui.dashboard.app import DashboardApp
def begin(app):
    Path("loaded").write_text(textuals + "\\n" + " ".join(sys.modules) + f"\\n{gc.isenabled()}")
    app.exit()
DashboardApp._begin = begin
main()
"""
_NOT_BEFORE_THE_FIRST_FRAME = (
    "email", "hashlib", "http.", "multiprocessing", "sqlite3", "ssl", "subprocess", "unittest", "urllib.request",
    "relaytui.commander",
    "relaytui.client.answers", "relaytui.client.api", "relaytui.client.feed", "relaytui.client.proving",
    "relaytui.dashboard.palette", "relaytui.dashboard.screens.asking", "relaytui.dashboard.screens.dialogs",
    "relaytui.dashboard.screens.help", "relaytui.dashboard.screens.quitting", "relaytui.dashboard.screens.run",
    "relaytui.dashboard.widgets.chart", "relaytui.dashboard.widgets.filter", "relaytui.dashboard.widgets.log",
)  # fmt: skip


def test_the_collector_rests_until_the_first_frame_and_works_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[bool]()

    def show(source: Callable[[], object], *, theme: str | None, program: str | None) -> DashboardResult:
        seen.append(gc.isenabled())
        source()  # asked for once the first frame is out
        seen.append(gc.isenabled())
        raise RelayError("ended", "before it was asked for anything")

    monkeypatch.setenv("RELAY_TOKEN", "x" * 43)
    monkeypatch.setattr(dashboard, "check_terminal", lambda: None)
    monkeypatch.setattr(dashboard, "show", show)
    try:
        for _ in range(2):
            with pytest.raises(RelayError, match="before it was asked"):
                dashboard.open_dashboard(Target(Path("unused"), "http://127.0.0.1:9"), port=None, theme=None)
            monkeypatch.setattr(dashboard, "_find_or_start", lambda *_: None)  # one that never comes so far
        assert (seen, gc.isenabled()) == ([False, True, False, False], True)
    finally:
        gc.enable()
        gc.unfreeze()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_gives_the_terminal_back(
    terminal: Terminal, state: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    terminal.start([RELAY_TUI, "--state", str(state)], environment(tmp_path))
    terminal.shows("● live", "sft-terminal")
    os.kill(terminal.pid_of("relay-tui"), number)
    terminal.given_back(code)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "is a FIFO, not a plain file"),
        (lambda path: path.mkdir(), "is a folder, not a plain file"),
        (lambda path: path.symlink_to("/dev/full"), "is a symbolic link, not a plain file"),
        (lambda path: path.parent.rmdir() or path.parent.write_text(""), "cannot be written"),
    ],
)
def test_a_log_that_is_no_plain_file_holds_nothing_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], object], said: str
) -> None:
    path = tmp_path / "logs" / "dashboard.log"
    path.parent.mkdir()
    make(path)
    with logging_to(path) as log:
        assert log.trouble == "", "nothing is opened before there is something to say"
        logging.getLogger("relaytui.dashboard").error("one")
        logging.getLogger("relaytui.dashboard").error("two")
        assert said in log.trouble
    assert capsys.readouterr() == ("", "")


def test_a_log_is_kept_for_its_owner_alone_and_does_not_grow_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "dashboard.log"
    path.parent.mkdir()
    path.write_bytes(b"x" * (MAX_LOG_BYTES + 1))
    with logging_to(path) as log:
        logging.getLogger("relaytui.dashboard").error("one \udcff")
    assert log.trouble == ""
    assert path.read_text().endswith("ERROR relaytui.dashboard: one \\udcff\n")
    assert path.with_suffix(".log.1").stat().st_size == MAX_LOG_BYTES + 1
    assert path.stat().st_mode & 0o777 == 0o600
    way = tmp_path / "state" / "log"
    with logging_to(way / "dashboard.log"):
        logging.getLogger("relaytui.dashboard").error("one")
    assert [folder.stat().st_mode & 0o777 for folder in (way, way.parent)] == [0o700, 0o700]


def test_a_crash_gives_the_terminal_back_and_tells_no_secret(terminal: Terminal, tmp_path: Path) -> None:
    log = tmp_path / "dashboard.log"
    script = tmp_path / "crash.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from relaytui.dashboard.launch import run_dashboard\n"
        "def opening():\n"
        "    token = 'hush-' + 'hush'\n"
        "    raise RuntimeError('boom')\n"
        f"result = run_dashboard(opening, log_path=Path({str(log)!r}))\n"
        "print(result.message)\n"
        "sys.exit(1 if result.reason == 'crash' else 0)\n"
    )
    terminal.start([sys.executable, str(script)], environment(tmp_path))
    text = terminal.given_back(1)
    assert "the dashboard crashed (RuntimeError)" in text.replace("\n", "")
    assert "Traceback" not in text
    said = log.read_text()
    assert "boom" in said
    assert "hush-hush" not in said


def test_ctrl_z_leaves_it_for_the_shell_and_what_is_typed_there_stays_there(
    terminal: Terminal, state: Path, tmp_path: Path
) -> None:
    terminal.start(["bash", "--norc", "-i"], {**environment(tmp_path), "PS1": "shell> "})
    terminal.shows("shell>")
    # In a script of its own, as make is one: the whole job is left, not the dashboard alone.
    (tmp_path / "job").write_text(f"{RELAY_TUI} --state {state}; echo left=$?\n")
    terminal.keys("sh job", "Enter")
    terminal.shows("● live", "sft-terminal")
    terminal.keys("C-z")
    terminal.shows("Stopped", "shell>")
    assert terminal.flags() == ("0", "0", "1")
    terminal.keys("echo drain $((6 * 7))", "Enter")
    terminal.shows("drain 42")
    terminal.tmux("send-keys", "-l", "fg\nd3")  # the shell reads its line; the rest was typed before anything was seen
    terminal.shows("● live", "1 runs 1", "eta", without="Cancel")
    terminal.keys("3")
    terminal.shows("lease.granted")
    terminal.keys("q")
    terminal.shows("left=0", "shell>")


def test_ctrl_z_where_no_shell_would_wake_it_is_a_word(terminal: Terminal, state: Path, tmp_path: Path) -> None:
    terminal.start([RELAY_TUI, "--state", str(state)], environment(tmp_path))
    terminal.shows("● live", "sft-terminal")
    terminal.keys("C-z")
    terminal.shows("no shell is here to come back to")
    terminal.keys("q")
    terminal.given_back(0)


def test_without_colours_a_state_is_read_from_glyph_and_word(terminal: Terminal, state: Path, tmp_path: Path) -> None:
    terminal.start([RELAY_TUI, "--state", str(state)], {**environment(tmp_path), "NO_COLOR": "1"})
    terminal.shows("● running", "sft-terminal")
    coloured = terminal.tmux("capture-pane", "-p", "-e")
    assert "38;" not in coloured
    assert "48;" not in coloured
    assert "\x1b[7m" in coloured or ";7m" in coloured, "the selected row is reversed"
    terminal.keys("q")
    terminal.given_back(0)


def test_keys_of_one_burst_keep_their_order(terminal: Terminal, state: Path, tmp_path: Path) -> None:
    terminal.start([RELAY_TUI, "--state", str(state)], environment(tmp_path))
    terminal.shows("● live", "sft-terminal")
    terminal.tmux("send-keys", "-l", "/qwen")
    terminal.shows("none of 1 run contains qwen")
    terminal.keys("Escape")
    terminal.shows("sft-terminal", without="contains")
    terminal.keys("q")
    terminal.given_back(0)
