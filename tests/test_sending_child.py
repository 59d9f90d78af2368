"""The child process that sends: how far it gives way to whatever else runs on the pod."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from relay_agent.artifacts.jobs import Attach, Attached, Store
from relay_agent.sending import calls
from relay_agent.sending.protocol import MAX_LINE
from relay_agent.sending.trouble import Trouble

MODULE = """
import os
def niceness():
    return os.getpriority(os.PRIO_PROCESS, 0)
STARTED = niceness()
def work(job, tell):
    return [STARTED, niceness()]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="niceness of a thread and of a session are Linux's")
@pytest.mark.parametrize(("before", "starts", "works"), [(0, 10, 15), (19, 19, 19)])
def test_it_starts_sooner_than_it_works(tmp_path: Path, before: int, starts: int, works: int) -> None:
    """What else takes all processors would keep it from starting in time, were it as patient from the beginning."""
    assert orjson.loads(said_by(tmp_path, MODULE, "nice", "-n", str(before)))["data"] == [starts, works]


def said_by(folder: Path, module: str, *before: str) -> bytes:
    """The first line of a child that does `work`."""
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").write_text('JOBS = int\nWORK = {int: "module.work"}\n')
    (package / "module.py").write_text(module)
    (package / "failures.py").write_text("from relay_agent.sending import trouble\ndef told(error, job):\n")
    with (package / "failures.py").open("a") as file:
        file.write("    return trouble.told(error)\n")
    argv = [*before, sys.executable, "-m", "relay_agent.sending.child", "package"]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=env
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"1\n")
        process.stdin.flush()
        return process.stdout.readline()


@pytest.mark.parametrize("result", [r'["q\udcfe.json"]', "{1: object()}", f"'x' * {MAX_LINE}"])
def test_a_result_that_cannot_be_told_is_a_failure_for_good(tmp_path: Path, result: str) -> None:
    """It would come again with every try, however often all of it is done."""
    told = orjson.loads(said_by(tmp_path, f"def work(job, tell):\n    return {result}\n"))
    assert (told["type"], told["code"], told["kind"]) == ("failed", "untold", "permanent")


@pytest.mark.parametrize("words", [r"'q\udcfe.json is no file'", f"'x' * {MAX_LINE}"])
def test_a_failure_is_told_whatever_is_in_its_words(tmp_path: Path, words: str) -> None:
    module = (
        f"from relay_agent.sending.trouble import Trouble\ndef work(job, tell):\n    raise Trouble('bad', {words})\n"
    )
    told = orjson.loads(said := said_by(tmp_path, module))
    assert (told["type"], told["code"], told["kind"]) == ("failed", "bad", "permanent")
    assert told["words"]
    assert len(said) < 10_000


async def test_a_job_that_cannot_be_told_is_a_failure_for_good(tmp_path: Path) -> None:
    job = Attach(Store("http://127.0.0.1:9", "secret", "run-1", 1, "token"), "/v\udcff", ["*"], 1, 1)
    with pytest.raises(Trouble, match="UTF-8") as untold:
        await calls.call("relay_agent.artifacts.far", job, Attached, cache=str(tmp_path))
    assert (untold.value.code, untold.value.kind) == ("untold", "permanent")
