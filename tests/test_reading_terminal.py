"""A trainer on a terminal of its own: its bytes untouched, its end told, and a new agent takes it over."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from agent_rig import eventually, rigged

from relay_agent.trainer.supervise import Supervised

PYTHON = "import os; print(*map(os.isatty, (0, 1, 2)), os.get_terminal_size(1).columns, os.environ['TERM'], flush=True)"


async def start(tmp_path: Path, script: str, heard: Callable[[bytes], None], **env: str) -> Supervised:
    trainer = Supervised(tmp_path / "log", heard, lambda lines, size: None)
    guard = f"guard-{os.getpid()}-{tmp_path.name}"
    environment = {"PATH": os.environ["PATH"], **env}
    await trainer.start(("bash", "-c", script), environment, guard, 5.0, pty=True)
    return trainer


async def test_it_sees_a_terminal_and_its_bytes_pass_as_they_are(tmp_path: Path) -> None:
    heard = bytearray()
    script = f'python3 -c "{PYTHON}"; printf "\\r 10%%|#|\\r 20%%\\n\\x1b[31mred\\x00\\xff\\n\\t\\x03\\x04end"; exit 7'
    trainer = await start(tmp_path, script, heard.extend, TERM="dumb")
    assert await trainer.exited == 7
    assert await trainer.gone == 0
    first, _, rest = bytes(heard).partition(b"\n")
    assert first == b"False True True 200 xterm-256color"
    assert rest == b"\r 10%|#|\r 20%\n\x1b[31mred\x00\xff\n\t\x03\x04end"
    assert (tmp_path / "log").read_bytes() == bytes(heard)


async def test_much_is_read_to_its_last_byte_and_it_is_the_first_of_its_group(tmp_path: Path) -> None:
    heard = bytearray()
    trainer = await start(tmp_path, "cat /proc/$$/stat; seq 1 60000", heard.extend, TERM="vt100")
    assert await trainer.exited == 0
    await trainer.gone
    first, _, rest = bytes(heard).partition(b"\n")
    _, _, group, session, tty, *_ = first.rpartition(b")")[2].split()
    assert first.split()[0] == group == session
    assert tty == b"0", "nobody's terminal: its end is no signal to anybody"
    assert rest.split() == [b"%d" % n for n in range(1, 60001)]


async def test_who_keeps_the_terminal_open_is_stopped_as_on_a_pipe(tmp_path: Path) -> None:
    heard = bytearray()
    trainer = await start(tmp_path, "sleep 60 & echo begun; exit 0", heard.extend)
    assert await trainer.exited == 0
    assert await trainer.gone == 1
    assert bytes(heard) == b"begun\n"


STAYS = """
import os, pathlib, sys, time
print("step 1/3 loss 3.0", os.isatty(1), flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
for step in (2, 3):
    print(f"\\rstep {step}/3 loss 1.0", os.isatty(1), flush=True)
"""


def test_a_new_agent_takes_over_who_is_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "stays.py").write_text(STAYS)
    variables = {"ORPHAN_TIMEOUT": "60", "PTY": "true"}
    with rigged(tmp_path) as rig:
        command = f"exec {sys.executable} {tmp_path}/stays.py {tmp_path}/go"
        first = rig.agent(command, **variables)
        try:
            eventually(lambda: rig.run()["step"] == 1, "its first step")
            first.process.kill()
            first.process.wait()
        finally:
            (tmp_path / "go").touch()
        second = rig.agent(command, **variables)
        assert second.wait() == 0, second.says()
        assert [line for line in rig.lines() if line.strip()] == [
            "step 1/3 loss 3.0 True", "step 2/3 loss 1.0 True", "step 3/3 loss 1.0 True",
        ]  # fmt: skip
        assert (rig.folder / "logs/e00000001.log").read_bytes() == (
            b"step 1/3 loss 3.0 True\n\rstep 2/3 loss 1.0 True\n\rstep 3/3 loss 1.0 True\n"
        )
        assert [attempt["outcome"] for attempt in rig.run()["attempts"]] == ["completed"]
